"""`bytelm evaluate`: what a trained model is worth, in the numbers that people quote.

evaluation.json has, per split: `tokens` and `bytes` scored (special tokens weigh 0 bytes), `cross_entropy` (nats
per token), `cross_entropy_bits`, `perplexity`, `bits_per_byte` (null for masked models and span corruption: theirs is
no code length),
`entropy_bits`, `accuracy`, `calibration_error`, `unigram_cross_entropy_bits`, `bigram_cross_entropy_bits`,
`unigram_entropy_bits`, `kl_unigram_bits`; with another run `kl_bits`, `reverse_kl_bits`, `js_bits`; on synthetic
sources `entropy_rate_bits`, `kl_true_bits`; for masked models `pseudo_perplexity`; for pairs, whose targets are scored
given their sources, `bleu`, `bleu_signature`, `exact_match`, `beams`, `length_penalty` and `examples`; and always
`window`, `stride`, `min_context`, `document_mask`, `dtype`. `curves` has the loss by position (nats) and the
reliability diagram.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.arguments import Device, Dtype, RunFolder, parse
from pipelines.files import write_json


def evaluate(
    run: RunFolder,
    *,
    data: Path | None = None,
    against: Path | None = None,
    splits: tuple[str, ...] = ("validation",),
    stride: int | None = None,
    min_context: int = 1,
    beams: int = 4,
    length_penalty: float = 1.0,
    compressors: bool = False,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> dict[str, Any]:
    """Measure a run on held-out text; write evaluation.json into its folder and return it.

    Args:
        data: Folder of a dataset; by default the one that the run was trained on.
        against: Folder of another run with the same tokenizer and objective, to measure the divergence from.
        splits: Splits of the dataset to score.
        stride: Tokens between two windows; the window itself by default, so that every block has fresh context.
        min_context: Positions with fewer tokens of context than this are left out.
        beams: Of pairs: targets that beam search for BLEU follows side by side; 0 leaves the search out.
        length_penalty: Of pairs: a target's log-probability is divided by its length to this power.
        compressors: Whether to add what xz and zstd need for the same text: minutes for a large corpus.
    """
    from pipelines.loading import load_trained
    from pipelines.scoring import fit_baselines
    from pipelines.training.data import make_any_objective, open_dataset
    from pipelines.training.run import Run

    if not splits:
        raise ValueError("--splits names no split: leave it out, or name some, such as validation test")
    this = Run(run)
    tok = this.tokenizer()
    dataset = open_dataset(data or _own_dataset(this), this.recipe.objective)
    if dataset.tokenizer_fingerprint != tok.fingerprint:
        raise ValueError(
            f"{dataset.folder} was built with another tokenizer than that of {run} "
            f"({dataset.tokenizer_fingerprint[:16]} and {tok.fingerprint[:16]}): build a dataset with the run's"
        )
    if beams < 0:
        raise ValueError(f"--beams is {beams}, but must not be negative")
    if not -100 <= length_penalty <= 100:
        raise ValueError(
            f"--length-penalty is {length_penalty}, but must be from -100 to 100 (1 for the mean of a token)"
        )
    if compressors and this.recipe.objective == "sequence-pairs":
        raise ValueError(f"{run} was trained on pairs, and --compressors is about a text: leave it out")
    window, stride = _window(this, dataset, stride, min_context)
    objective = make_any_objective(this.recipe, window, tok)
    streams = {split: dataset.split(split) for split in splits}
    other_run = _comparable(Run(against), this, tok.fingerprint) if against else None
    trained = load_trained(this, device, dtype)
    other = load_trained(other_run, device, dtype) if other_run else None
    scorer = _Scorer(
        trained.model,
        other.model if other else None,
        objective,
        tok,
        fit_baselines(dataset, objective),
        dataset.info["corpus"].get("synthetic"),
        {
            "window": window,
            "stride": stride,
            "min_context": min_context,
            "document_mask": this.recipe.model.document_mask,
            "dtype": trained.machine.dtype_name,
        },
        {"beams": beams, "length_penalty": length_penalty},
    )
    result: dict[str, Any] = {
        "run": this.name,
        "checkpoint": trained.checkpoint.name,
        "data": str(dataset.folder),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": tok.fingerprint,
        "against": str(against) if against else None,
        "splits": {split: scorer.score(stream, split) for split, stream in streams.items()},
    }
    if compressors:
        for split in splits:
            result["splits"][split]["compressors"] = _compressed(dataset, tok, split)
    write_json(this.folder / "evaluation.json", result)
    return result


@dataclass(frozen=True)
class _Scorer:
    """All that the numbers of a split depend on but the split; the types are those of `pipelines.scoring`, which
    imports torch."""

    model: Any
    other: Any
    objective: Any
    tokenizer: Any
    baselines: tuple[Any, Any]
    synthetic: dict[str, Any] | None
    settings: dict[str, Any]
    search: dict[str, Any]

    def score(self, stream: Any, name: str) -> dict[str, Any]:
        """The entry of evaluation.json for the split `name`, whose tokens or pairs are `stream`."""
        from pipelines.display import Bar
        from pipelines.scoring import Truth, score

        windows, total = self._windows(stream)
        truth = Truth(self.synthetic, stream, self.tokenizer) if self.synthetic else None
        with Bar(f"scoring {name}", total, "tok") as bar:
            numbers = score(
                self.model,
                windows,
                self.tokenizer,
                self.baselines,
                window=self.objective.positions,
                other=self.other,
                truth=truth,
                bar=bar,
            )
        return numbers | self._more(stream, name) | self.settings

    def _windows(self, stream: Any) -> tuple[Any, int | None]:
        """What is scored of a split, and how many tokens that is where it is known beforehand."""
        from pipelines.scoring import decoder_windows, encoder_windows, pair_windows, span_windows
        from pipelines.training.loader import MaskedToken, NextToken, SpanCorruption

        match self.objective:
            case NextToken():
                return decoder_windows(
                    stream, self.objective, self.settings["stride"], self.settings["min_context"]
                ), stream.tokens
            case MaskedToken():
                return encoder_windows(stream, self.objective), None
            case SpanCorruption():
                return span_windows(stream, self.objective), stream.blocks * self.objective.positions
        return pair_windows(stream, self.objective), int(sum(self.objective.lengths(stream)[1]))

    def _more(self, stream: Any, name: str) -> dict[str, Any]:
        """The numbers that only this kind of model has."""
        from pipelines.display import Bar
        from pipelines.scoring import PSEUDO_POSITIONS, pseudo_perplexity
        from pipelines.training.loader import MaskedToken, NextToken, SpanCorruption

        match self.objective:
            case NextToken():
                return {}
            case SpanCorruption():
                return {"bits_per_byte": None}
            case MaskedToken():
                with Bar("masking one by one", PSEUDO_POSITIONS, "tok") as bar:
                    unigram = self.baselines[0]
                    found = pseudo_perplexity(self.model, stream, self.objective, self.tokenizer, unigram, bar)
                return found | {"bits_per_byte": None}
        if not self.search["beams"]:
            return {}
        from pipelines.translation import translation_numbers

        with Bar(f"searching {name}", len(stream), "pairs") as bar:
            return translation_numbers(self.model, stream, self.objective, self.tokenizer, **self.search, bar=bar)


def _window(run: Any, dataset: Any, stride: int | None, min_context: int) -> tuple[int, int]:
    """(window, stride) in tokens; ValueError for settings that mean nothing to the run or the dataset."""
    positions, objective = run.recipe.model.context_length, run.recipe.objective
    window = positions - 2 if objective == "masked-token" else positions
    if objective != "next-token" and (stride is not None or min_context != 1):
        raise ValueError(
            f"{run.folder} was trained on {objective}: it reads whole blocks or pairs, so --stride and --min-context "
            "mean nothing to it"
        )
    if objective in ("masked-token", "span-corruption") and dataset.context_length != window:
        raise ValueError(
            f"{run.folder} reads blocks of {window} tokens, but {dataset.folder} has blocks of "
            f"{dataset.context_length}: build a dataset with --context-length {window}"
        )
    stride = window if stride is None else stride
    for name, value in (("--stride", stride), ("--min-context", min_context)):
        if not 1 <= value <= window:
            raise ValueError(f"{name} is {value}, but must be from 1 to the window of {window} tokens")
    return window, stride


def _own_dataset(run: Any) -> Path:
    """The dataset that the run was trained on; ValueError where it has none, being imported, or has lost it."""
    if not run.facts["data"]:
        raise ValueError(f"{run.folder} was imported and has no dataset: say which one to measure it on with --data")
    if not run.data.exists():
        raise ValueError(f"the dataset of the run, {run.data}, is not there any more: say where one is with --data")
    return run.data


def _compressed(dataset: Any, tok: Any, split: str) -> dict[str, dict[str, float]]:
    from pipelines.compressors import compressed_bits_per_byte
    from pipelines.display import Bar

    with Bar("compressing", None, "B") as bar:
        return compressed_bits_per_byte(dataset, tok, split, progress=bar.update)


def _comparable(other: Any, this: Any, fingerprint: str) -> Any:
    if other.facts.get("tokenizer_fingerprint") != fingerprint:
        raise ValueError(
            f"{other.folder} and {this.folder} have different tokenizers: their predictions are over different "
            "tokens and have no divergence"
        )
    theirs, ours = ((r.recipe.objective, r.recipe.model.context_length) for r in (other, this))
    if theirs != ours:
        raise ValueError(
            f"{other.folder} and {this.folder} do not predict the same positions: "
            f"{theirs[0]} with a context of {theirs[1]}, and {ours[0]} with {ours[1]}"
        )
    return other


NOT_NUMBERS = ("curves", "compressors", "examples", "bleu_signature")


def show(result: dict[str, Any]) -> None:
    """Print an evaluation as a table, a row a number, a column a split."""
    from pipelines.display import say, table

    splits = result["splits"]
    names = dict.fromkeys(key for numbers in splits.values() for key in numbers if key not in NOT_NUMBERS)
    table(
        (result["run"], *splits),
        [(name, *(_cell(numbers.get(name)) for numbers in splits.values())) for name in names],
    )
    signatures = {numbers["bleu_signature"] for numbers in splits.values() if numbers.get("bleu_signature")}
    for signature in signatures:
        say(f"BLEU: {signature}")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main(arguments: list[str]) -> None:
    show(parse(evaluate, arguments, "evaluate"))
