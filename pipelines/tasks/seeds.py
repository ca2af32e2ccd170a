"""Results of a fine-tuned run over several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pipelines.evaluation.measurement import Result, Section, Table


@dataclass(frozen=True, kw_only=True)
class Seeds(Result):
    """The headline numbers of a run, and of runs that differ only in the seed, on the same examples."""

    key = "seeds"
    section = Section(
        "Other seeds",
        "The same training with other seeds: other weights of the head, other order of the examples, other dropout. "
        "The deviation is that of a sample, with n - 1.",
    )

    seeds: tuple[int, ...]
    """Seeds; the first is the seed of the run"""
    numbers_of: dict[str, tuple[float | None, ...]]
    """Value for each seed, by the name of the number; None if undefined"""

    @classmethod
    def of(cls, seeds: Sequence[int], results: Sequence[Result]) -> "Seeds":
        """Return the headline numbers of `results`, the first result of each seed."""
        shown = {key: number.name for key, number in results[0].numbers().items() if number.headline}
        values = {name: tuple(getattr(result, key) for result in results) for key, name in shown.items()}
        return cls(seeds=tuple(seeds), numbers_of={name: own for name, own in values.items() if any(_known(own))})

    def parts(self) -> list[Table | str]:
        rows = []
        for name, values in self.numbers_of.items():
            known = _known(values)
            spread = stdev(known) if len(known) > 1 else 0.0
            cells = [f"{len(known)}", *(f"{each:.4f}" for each in (fmean(known), spread, min(known), max(known)))]
            rows.append((name, cells))
        heads = ["seeds", "mean", "standard deviation", "lowest", "highest"]
        return [Table("Over seeds", "Number", heads, rows)]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]
