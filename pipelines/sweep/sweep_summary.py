"""The summary of a sweep: means and intervals over seeds, and the recommended sizes."""

from collections.abc import Mapping, Sequence
from typing import Any

from lm.metrics.intervals import Repeats
from pipelines.cli.display import quantity
from pipelines.sweep.plan import Budget, Vocabulary

# Tao et al. 2024, "Scaling Laws with Vocabulary", fitted from 33M non-embedding parameters on.
TAO_SMALLEST = 33e6
TAO_PARAMETERS = 3_145_728
TAO_EXPONENT = 0.8354

Result = Mapping[str, Any]
"""The result of a run (`Work.result`), with the entry `lost_bits_per_byte`"""


def tao_size(non_embedding: int, width: int) -> float:
    """Return the best number of entries by Tao et al. 2024 for a model with N non-embedding parameters.

    It is N_v / width, where N_v = 3,145,728 (N / 33M)^0.8354 is the best number of embedding parameters.
    """
    parameters: float = TAO_PARAMETERS * (non_embedding / TAO_SMALLEST) ** TAO_EXPONENT
    return parameters / width


def summarize(budget: Budget, results: Mapping[Vocabulary, Sequence[Result]]) -> dict[str, Any]:
    """Return the summary of finished runs, by vocabulary.

    `rows` has an entry for each vocabulary. `best` has the vocabulary with the fewest bits per byte of each kind, and
    under `all` of all kinds. `not_significantly_worse` lists it and the vocabularies that do not differ from it at the
    5 % level; it is None with one seed, which has no test. Intervals assume the same standard deviation of a run for
    all vocabularies.
    """
    repeats = Repeats({vocabulary: [_bits(run) for run in runs] for vocabulary, runs in results.items()})
    kinds = dict.fromkeys(result.kind for result in results)
    groups = {kind: [result for result in results if result.kind == kind] for kind in kinds} | {"all": list(results)}
    n, width = budget.non_embedding, budget.recipe.model.width
    return {
        "flops": budget.flops,
        "non_embedding_parameters": n,
        "deviation": repeats.deviation if repeats.freedom else None,
        "degrees_of_freedom": repeats.freedom,
        "rows": [_row(repeats, vocabulary, runs) for vocabulary, runs in results.items()],
        "best": {name: _best(repeats, among) for name, among in groups.items()},
        "tao_2024": {"size": round(tao_size(n, width)), "extrapolated": n < TAO_SMALLEST},
    }


def _best(repeats: Repeats[Vocabulary], among: Sequence[Vocabulary]) -> dict[str, Any]:
    near = repeats.not_significantly_worse(among)
    listed = None if near is None else [each._asdict() for each in near]
    return {**repeats.best(among)._asdict(), "not_significantly_worse": listed}


def vocabularies_to_mark(best: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the vocabularies to mark for an entry of `best`: the best, and any that is not significantly worse."""
    return best["not_significantly_worse"] or [best]


def _bits(run: Result) -> float:
    return float(run["bits_per_byte"] + run["lost_bits_per_byte"])


def _row(repeats: Repeats[Vocabulary], vocabulary: Vocabulary, runs: Sequence[Result]) -> dict[str, Any]:
    first = runs[0]
    same = ("bytes_per_token", "tokens", "bytes_seen", "epochs", "flops", "parameters", "embedding_parameters")
    return {
        **vocabulary._asdict(),
        "bits_per_byte": repeats.means[vocabulary],
        "margin": repeats.margin(vocabulary),
        "runs": {str(run["seed"]): _bits(run) for run in runs},
        "lost_bits_per_byte": first["lost_bits_per_byte"],
        "embedding_share": first["embedding_parameters"] / first["parameters"],
        **{name: first[name] for name in same},
    }


HEADS = ("kind", "entries", "bits per byte", "B/token", "embedding", "tokens", "text", "epochs")


def cells(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table under HEADS. A * marks the vocabularies that `vocabularies_to_mark` returns."""
    good = {
        (marked["kind"], marked["size"]) for best in summary["best"].values() for marked in vocabularies_to_mark(best)
    }
    return [
        (
            row["kind"],
            f"{row['size']:,}",
            f"{row['bits_per_byte']:.4f}{_margin(row)}{'*' if (row['kind'], row['size']) in good else ' '}",
            f"{row['bytes_per_token']:.2f}",
            f"{row['embedding_share']:.0%}",
            quantity(row["tokens"], ""),
            quantity(row["bytes_seen"], "B"),
            f"{row['epochs']:.2g}",
        )
        for row in summary["rows"]
    ]


def _margin(row: Mapping[str, Any]) -> str:
    return "" if row["margin"] is None else f" ±{row['margin']:.4f}"


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """Return the conclusions, and how to read the table."""
    rows = {(row["kind"], row["size"]): row for row in summary["rows"]}
    sizes = {kind: [row["size"] for row in summary["rows"] if row["kind"] == kind] for kind, _ in rows}
    found = [_recommendation(best, sizes[kind]) for kind, best in summary["best"].items() if kind != "all"]
    if len(found) > 1:
        found.append(_best_of_all(summary["best"]["all"]))
    tao = summary["tao_2024"]
    below = ", extrapolated below their 33M" if tao["extrapolated"] else ""
    found.append(
        f"Tao et al. 2024: {tao['size']:,} entries for {quantity(summary['non_embedding_parameters'], '')} "
        f"non-embedding parameters{below}"
    )
    if summary["degrees_of_freedom"]:
        found.append(
            "*: lowest of its kind, or not significantly worse (5 % level, not corrected for many comparisons). "
            f"±: 95 % interval over seeds; standard deviation of a run {summary['deviation']:.4f} "
            f"({summary['degrees_of_freedom']} degrees of freedom)"
        )
    else:
        found.append(
            "*: lowest of its kind. One seed gives no intervals and no test, and other seeds may rank the vocabularies "
            "differently: raise `seeds` to add runs"
        )
    lost = {kind: max(r["lost_bits_per_byte"] for r in rows.values() if r["kind"] == kind) for kind, _ in rows}
    for kind, bits in lost.items():
        if bits:
            found.append(
                f"{kind}: includes {bits:.3f} bits per byte for text that its tokens lose, such as white space"
            )
    return found


def _recommendation(best: Mapping[str, Any], sizes: Sequence[int]) -> str:
    """Return a phrase about the best of a kind. It says if this is the largest or smallest of the `sizes` tried."""
    once = " in one run" if best["not_significantly_worse"] is None else ""
    ends = {max(sizes): ", the largest tried", min(sizes): ", the smallest tried"} if len(sizes) > 1 else {}
    others = [f"{marked['size']:,}" for marked in vocabularies_to_mark(best) if marked["size"] != best["size"]]
    also = f"; {_list_text(others)} not significantly worse" if others else ""
    return f"{best['kind']}: {best['size']:,} entries{once}{ends.get(best['size'], '')}{also}"


def _best_of_all(best: Mapping[str, Any]) -> str:
    if best["not_significantly_worse"] is None:
        return f"all kinds: {_name(best)} in one run"
    others = [_name(each) for each in best["not_significantly_worse"] if each["kind"] != best["kind"]]
    also = f"{_list_text(others)} not significantly worse" if others else "every other kind is significantly worse"
    return f"all kinds: {_name(best)}; {also}"


def _name(each: Mapping[str, Any]) -> str:
    return f"{each['kind']} {each['size']:,}"


def _list_text(names: Sequence[str]) -> str:
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{listed} {'are' if len(names) > 1 else 'is'}"
