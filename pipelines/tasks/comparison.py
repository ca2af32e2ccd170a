"""Comparison of a fine-tuned run with simpler predictors, and a one-sentence verdict."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from pipelines.evaluation.measurement import Result, Section, Table

SCRATCH = "the same from scratch"
"""Name of the same model, trained from random weights with the same settings"""

BEFORE = "the run before fine-tuning"

Values = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """The headline numbers of a run and of simpler predictors on the same examples."""

    key = "comparison"
    section = Section("Beside simpler predictors", "Each was trained or fitted on the same training examples.")

    number: str
    """Name of the number by which predictors are compared"""
    highest: bool
    """Whether a higher number is better"""
    own: Values
    others: dict[str, Values]

    @classmethod
    def of(cls, first: Result, better: str, others: Mapping[str, Result]) -> "Comparison":
        """Return the comparison of a run with others. `first` and `others` are the first results of each."""
        headlines = (name for name, shown in first.numbers().items() if shown.headline)
        names = [name for name in headlines if getattr(first, name) is not None]
        decides = {shown.name: getattr(first, name) for name, shown in first.numbers().items() if name in names}
        values = {
            name: {first.numbers()[key].name: value for key, value in asdict(other).items() if key in names}
            for name, other in others.items()
        }
        number = next((name for name, value in decides.items() if value is not None), next(iter(decides)))
        return cls(number=number, highest=better == "highest", own=decides, others=values)

    def keeping(self, earlier: "Comparison | None") -> "Comparison":
        """Return the comparison with predictors added that only `earlier` has, such as a model from scratch."""
        return self if earlier is None else replace(self, others={**earlier.others, **self.others})

    def gain(self, other: str) -> float | None:
        """Return how much better the run is than another predictor: below 0 if the run is worse, None if unknown."""
        own, theirs = self.own[self.number], self.others[other].get(self.number)
        if own is None or theirs is None:
            return None
        return own - theirs if self.highest else theirs - own

    def sentences(self, tokens: int) -> list[str]:
        gains = {name: gain for name in self.others if (gain := self.gain(name)) is not None}
        if not gains:
            return []
        worse = [self._against(name) for name, gain in gains.items() if gain < 0]
        scratch = gains.get(SCRATCH)
        sentences = []
        if scratch is not None and scratch < 0:
            sentences.append(
                f"Pretraining makes it worse here: {self.number} {self.shown(self.own)} against "
                f"{self.shown(self.others[SCRATCH])} from scratch. Train with `from_scratch`, or from a run that saw "
                "more text."
            )
            worse = [self._against(name) for name, gain in gains.items() if gain < 0 and name != SCRATCH]
        if worse:
            sentences.append(f"By {self.number} ({self.shown(self.own)}) it loses to {' and '.join(worse)}.")
        elif scratch is None or scratch >= 0:
            best = min(gains, key=gains.__getitem__)
            others = f"all {len(gains)} simpler predictors; the best of them is " if len(gains) > 1 else ""
            sentences.append(
                f"By {self.number} ({self.shown(self.own)}) it is at least as good as {others}{self._against(best)}."
            )
        return sentences

    def parts(self) -> list[Table | str]:
        heads = list(self.own)
        rows = {"this run": self.own, **self.others}
        cells = [(name, [_cell(values.get(head)) for head in heads]) for name, values in rows.items()]
        return [Table("This run and simpler predictors", "Predictor", heads, cells)]

    def _against(self, name: str) -> str:
        return f"{name} ({self.shown(self.others[name])})"

    def shown(self, values: Values) -> str:
        """Return the compared number as text, for this run or another predictor."""
        return _cell(values.get(self.number))


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
