"""The numbers of a mixture: means over its sources, weighted by their shares of the training tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lm.metrics.predictions import perplexity
from pipelines.evaluation.evaluation_file import Evaluation
from pipelines.evaluation.numbers import with_overflow
from pipelines.run.folder import Run

MEANS = ("cross_entropy", "cross_entropy_bits", "entropy_bits", "accuracy")
SETTINGS = ("window", "stride", "min_context", "document_mask", "dtype")


def mean_evaluation(run: Run, split: str, shares: Sequence[float], sources: Sequence[Evaluation]) -> Evaluation:
    """Return the evaluation of a mixture, from the evaluations of its sources on the same split."""
    first = sources[0].measured
    measured = first | {
        "data": " ".join(run.facts["data"]),
        "dataset_fingerprint": run.facts["dataset_fingerprint"],
        "seconds": round(sum(each.measured["seconds"] for each in sources), 3),
    }
    return Evaluation(split, mean_numbers(shares, [each.numbers for each in sources]), measured)


def mean_numbers(shares: Sequence[float], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a text that mixes its sources by `shares`, fractions of its tokens that add up to 1.

    Tokens and bytes are totals. Bits per byte are the mean bits of a token divided by its mean bytes. Other
    numbers are left out.
    """

    def mean(values: Iterable[float]) -> float:
        return sum(share * value for share, value in zip(shares, values, strict=True))

    def known(*keys: str) -> list[str]:
        return [key for key in keys if all(each.get(key) is not None for each in sources)]

    numbers: dict[str, Any] = {key: sum(each[key] for each in sources) for key in known("tokens", "bytes")}
    numbers |= {key: mean(each[key] for each in sources) for key in known(*MEANS)}
    numbers |= {"perplexity": perplexity(numbers["cross_entropy"]), "bits_per_byte": None}
    if known("bits_per_byte"):
        bytes_per_token = mean(each["bytes"] / each["tokens"] for each in sources)
        numbers["bits_per_byte"] = numbers["cross_entropy_bits"] / bytes_per_token
    return with_overflow(numbers | {key: sources[0][key] for key in SETTINGS if key in sources[0]})
