"""The summary of a sweep: means and intervals over seeds, and the recommended size of each kind."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm.analysis.repeats import Repeats
from pipelines.sweep.plan import Budget, Vocabulary

# Tao et al. 2024, "Scaling Laws with Vocabulary", fitted from 33M parameters on.
TAO_SMALLEST = 33e6
TAO_PARAMETERS = 3_145_728
TAO_EXPONENT = 0.8354


def tao_size(non_embedding: int, width: int) -> float:
    """Return the best number of entries by Tao et al. 2024, for N non-embedding parameters.

    It is N_v / width; N_v = 3,145,728 (N / 33M)^0.8354 are the parameters of the best vocabulary's embedding.
    """
    parameters: float = TAO_PARAMETERS * (non_embedding / TAO_SMALLEST) ** TAO_EXPONENT
    return parameters / width


def summarize(budget: Budget, results: Mapping[Vocabulary, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the summary of the finished runs, by vocabulary: one row each, and one recommendation for each kind."""
    rows: list[dict[str, Any]] = []
    kinds: dict[str, Any] = {}
    for kind in dict.fromkeys(each.kind for each in results):
        groups = {
            each.size: [run["bits_per_byte"] for run in runs] for each, runs in results.items() if each.kind == kind
        }
        repeats = Repeats(groups)
        rows += [
            _row(repeats, vocabulary, runs) for vocabulary, runs in sorted(results.items()) if vocabulary.kind == kind
        ]
        kinds[kind] = {
            "best": repeats.best(),
            "as_good": sorted(repeats.as_good()),
            "deviation": repeats.deviation if repeats.freedom else None,
            "freedom": repeats.freedom,
        }
    n = budget.non_embedding
    tao = {"size": tao_size(n, budget.recipe.model.width), "non_embedding": n, "extrapolated": n < TAO_SMALLEST}
    return {"flops": budget.flops, "rows": rows, "kinds": kinds, "tao": tao}


def _row(repeats: Repeats[int], vocabulary: Vocabulary, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = runs[0]
    return {
        "kind": vocabulary.kind,
        "size": vocabulary.size,
        "seeds": [run["seed"] for run in runs],
        "bits_per_byte": repeats.means[vocabulary.size],
        "margin": repeats.margin(vocabulary.size),
        "each": [run["bits_per_byte"] for run in runs],
        "bytes_per_token": first["bytes_per_token"],
        "embedding_share": first["embedding_parameters"] / first["parameters"],
        "parameters": first["parameters"],
        "tokens": first["tokens"],
        "bytes_seen": first["bytes_seen"],
        "epochs": first["epochs"],
        "flops": first["flops"],
    }
