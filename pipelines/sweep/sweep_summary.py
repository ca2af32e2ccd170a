"""The summary of a sweep: means and intervals over seeds, and the recommended sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True, kw_only=True)
class SweptVocabulary:
    """A kind and size of vocabulary, and its runs. Numbers of a run are equal for all seeds."""

    kind: str
    size: int
    """Entries"""
    bits_per_byte: float
    """Mean over the seeds, on held-out text, with the text that the tokenizer loses"""
    margin: float | None
    """Half the width of the 95 % interval of the mean; None with one seed"""
    runs: dict[str, float]
    """Bits per byte by seed"""
    lost_bits_per_byte: float
    """Part of the bits per byte for text that the tokens lose, such as white space"""
    embedding_share: float
    """Embedding and output matrix as a share of all parameters, from 0 to 1"""
    bytes_per_token: float
    """On held-out text"""
    tokens: int
    """Tokens that a run trains on"""
    bytes_seen: float
    """Bytes of text that a run trains on, repetitions included"""
    epochs: float
    flops: float
    """FLOPs of a run"""
    parameters: int
    embedding_parameters: int


@dataclass(frozen=True, kw_only=True)
class BestVocabulary:
    """The vocabulary with the fewest bits per byte among several."""

    kind: str
    size: int
    not_significantly_worse: list[Vocabulary] | None
    """It and those that do not differ from it at the 5 % level; None with one seed, which has no test"""

    @property
    def marked(self) -> list[Vocabulary]:
        """The vocabularies to mark: the best, and any that is not significantly worse."""
        return self.not_significantly_worse or [Vocabulary(self.kind, self.size)]  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class TaoSize:
    """The best number of entries by Tao et al. 2024."""

    size: int
    extrapolated: bool
    """Whether the model is smaller than those that the law was fitted to"""


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepSummary:
    """The result of `bytelm sweep-vocabulary`.

    Intervals assume the same standard deviation of a run for all vocabularies.
    """

    flops: float
    """FLOPs that each run may take"""
    non_embedding_parameters: int
    deviation: float | None
    """Standard deviation of a run, in bits per byte; None with one seed"""
    degrees_of_freedom: int
    """Runs minus vocabularies"""
    rows: list[SweptVocabulary]
    best: dict[str, BestVocabulary]
    """By kind, and under `all` of all kinds"""
    tao_2024: TaoSize

    def to_json(self) -> dict[str, Any]:
        """Return the contents of results.json."""
        contents = asdict(self)
        for best in contents["best"].values():
            near = best["not_significantly_worse"]
            best["not_significantly_worse"] = near and [vocabulary._asdict() for vocabulary in near]
        return contents

    def __repr__(self) -> str:
        return "\n".join(sentences(self))


def tao_size(non_embedding: int, width: int) -> float:
    """Return the best number of entries by Tao et al. 2024 for a model with N non-embedding parameters.

    It is N_v / width, where N_v = 3,145,728 (N / 33M)^0.8354 is the best number of embedding parameters.
    """
    parameters: float = TAO_PARAMETERS * (non_embedding / TAO_SMALLEST) ** TAO_EXPONENT
    return parameters / width


def summarize(budget: Budget, results: Mapping[Vocabulary, Sequence[Result]]) -> SweepSummary:
    """Return the summary of finished runs, by vocabulary."""
    repeats = Repeats({vocabulary: [_bits(run) for run in runs] for vocabulary, runs in results.items()})
    kinds = dict.fromkeys(result.kind for result in results)
    groups = {kind: [result for result in results if result.kind == kind] for kind in kinds} | {"all": list(results)}
    n, width = budget.non_embedding, budget.recipe.model.width
    return SweepSummary(
        flops=budget.flops,
        non_embedding_parameters=n,
        deviation=repeats.deviation if repeats.freedom else None,
        degrees_of_freedom=repeats.freedom,
        rows=[_row(repeats, vocabulary, runs) for vocabulary, runs in results.items()],
        best={name: _best(repeats, among) for name, among in groups.items()},
        tao_2024=TaoSize(size=round(tao_size(n, width)), extrapolated=n < TAO_SMALLEST),
    )


def _best(repeats: Repeats[Vocabulary], among: Sequence[Vocabulary]) -> BestVocabulary:
    near = repeats.not_significantly_worse(among)
    return BestVocabulary(**repeats.best(among)._asdict(), not_significantly_worse=near)


def _bits(run: Result) -> float:
    return float(run["bits_per_byte"] + run["lost_bits_per_byte"])


def _row(repeats: Repeats[Vocabulary], vocabulary: Vocabulary, runs: Sequence[Result]) -> SweptVocabulary:
    first = runs[0]
    same = ("bytes_per_token", "tokens", "bytes_seen", "epochs", "flops", "parameters", "embedding_parameters")
    return SweptVocabulary(
        **vocabulary._asdict(),
        bits_per_byte=repeats.means[vocabulary],
        margin=repeats.margin(vocabulary),
        runs={str(run["seed"]): _bits(run) for run in runs},
        lost_bits_per_byte=first["lost_bits_per_byte"],
        embedding_share=first["embedding_parameters"] / first["parameters"],
        **{name: first[name] for name in same},
    )


HEADS = ("kind", "entries", "bits per byte", "B/token", "embedding", "tokens", "text", "epochs")


def cells(summary: SweepSummary) -> list[tuple[str, ...]]:
    """Return the rows of the table under HEADS. A * marks the vocabularies in `BestVocabulary.marked`."""
    good = {(marked.kind, marked.size) for best in summary.best.values() for marked in best.marked}
    return [
        (
            row.kind,
            f"{row.size:,}",
            f"{row.bits_per_byte:.4f}{_margin(row)}{'*' if (row.kind, row.size) in good else ' '}",
            f"{row.bytes_per_token:.2f}",
            f"{row.embedding_share:.0%}",
            quantity(row.tokens, ""),
            quantity(row.bytes_seen, "B"),
            f"{row.epochs:.2g}",
        )
        for row in summary.rows
    ]


def _margin(row: SweptVocabulary) -> str:
    return "" if row.margin is None else f" ±{row.margin:.4f}"


def sentences(summary: SweepSummary) -> list[str]:
    """Return the conclusions, and how to read the table."""
    rows = {(row.kind, row.size): row for row in summary.rows}
    sizes = {kind: [row.size for row in summary.rows if row.kind == kind] for kind, _ in rows}
    conclusions = [_recommendation(best, sizes[kind]) for kind, best in summary.best.items() if kind != "all"]
    if len(conclusions) > 1:
        conclusions.append(_best_of_all(summary.best["all"]))
    tao = summary.tao_2024
    below = ", extrapolated below their 33M" if tao.extrapolated else ""
    conclusions.append(
        f"Tao et al. 2024: {tao.size:,} entries for {quantity(summary.non_embedding_parameters, '')} "
        f"non-embedding parameters{below}"
    )
    if summary.degrees_of_freedom:
        conclusions.append(
            "*: lowest of its kind, or not significantly worse (5 % level, not corrected for many comparisons). "
            f"±: 95 % interval over seeds; standard deviation of a run {summary.deviation:.4f} "
            f"({summary.degrees_of_freedom} degrees of freedom)"
        )
    else:
        conclusions.append(
            "*: lowest of its kind. One seed gives no intervals and no test, and other seeds may rank the vocabularies "
            "differently: raise `seeds` to add runs"
        )
    lost = {kind: max(r.lost_bits_per_byte for r in rows.values() if r.kind == kind) for kind, _ in rows}
    for kind, bits in lost.items():
        if bits:
            conclusions.append(
                f"{kind}: includes {bits:.3f} bits per byte for text that its tokens lose, such as white space"
            )
    return conclusions


def _recommendation(best: BestVocabulary, sizes: Sequence[int]) -> str:
    """Return a phrase about the best of a kind. It says if this is the largest or smallest of the `sizes` tried."""
    once = " in one run" if best.not_significantly_worse is None else ""
    ends = {max(sizes): ", the largest tried", min(sizes): ", the smallest tried"} if len(sizes) > 1 else {}
    others = [f"{marked.size:,}" for marked in best.marked if marked.size != best.size]
    also = f"; {_list_text(others)} not significantly worse" if others else ""
    return f"{best.kind}: {best.size:,} entries{once}{ends.get(best.size, '')}{also}"


def _best_of_all(best: BestVocabulary) -> str:
    if best.not_significantly_worse is None:
        return f"all kinds: {_name(best)} in one run"
    others = [_name(other) for other in best.not_significantly_worse if other.kind != best.kind]
    also = f"{_list_text(others)} not significantly worse" if others else "every other kind is significantly worse"
    return f"all kinds: {_name(best)}; {also}"


def _name(vocabulary: Vocabulary | BestVocabulary) -> str:
    return f"{vocabulary.kind} {vocabulary.size:,}"


def _list_text(names: Sequence[str]) -> str:
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{listed} {'are' if len(names) > 1 else 'is'}"
