"""The 95 % intervals of the numbers of a split."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from lm.metrics.intervals import DRAWS
from pipelines.cli.display import count_text
from pipelines.evaluation.confidence import FEWEST_CONTEXTS, FEWEST_DOCUMENTS, SEED, Interval
from pipelines.evaluation.measurement import Measurement, Result
from pipelines.evaluation.split import ScoredSplit


@dataclass(frozen=True)
class Intervals(Result):
    """The 95 % intervals of numbers, and what the bootstrap drew."""

    key = "intervals"

    resampled: Literal["documents", "blocks"] | None
    """None for a text that is too short for intervals"""
    documents: int
    contexts: int | None
    """None if the bootstrap drew documents; so is `contexts_per_block`"""
    contexts_per_block: int | None
    draws: int
    seed: int
    bounds: dict[str, Interval | None]
    """[low, high] of numbers by their keys in evaluation.json"""

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        if value is None:
            return cls(None, 0, None, None, 0, 0, {})
        if isinstance(value, dict):
            value = value | {"bounds": {key: value[key] for key in value.keys() - cls.__dataclass_fields__.keys()}}
        intervals = super().from_json(value)
        if intervals and intervals.resampled == "blocks" and None in (intervals.contexts, intervals.contexts_per_block):
            raise ValueError("intervals of blocks have no number of contexts")
        return intervals

    def to_json(self) -> Any:
        if self.resampled is None:
            return None
        entry = super().to_json()
        return entry.pop("bounds") | entry

    def completed_by(self, old: Self) -> Self:
        return replace(self, bounds={**old.bounds, **self.bounds})

    def sentences(self, tokens: int) -> list[str]:
        if self.resampled is None:
            return [
                f"No 95 % intervals: they need {FEWEST_DOCUMENTS} documents, or {FEWEST_CONTEXTS} contexts. For span "
                "corruption and denoising, only contexts count."
            ]
        if self.resampled == "documents":
            return [f"In brackets: 95 % intervals, by a bootstrap over the {self.documents:,} documents."]
        few = f"the text has only {count_text(self.documents, 'document')}"
        why = few if self.documents < FEWEST_DOCUMENTS else "each mixes documents"
        return [
            f"In brackets: 95 % intervals, by a bootstrap over blocks of {self.contexts_per_block} of the "
            f"{self.contexts:,} contexts, because {why}."
        ]


@dataclass(frozen=True, kw_only=True)
class OfNumbers(Measurement):
    """The intervals that the measurements before it computed."""

    result = Intervals

    def measure(self, split: ScoredSplit) -> Intervals:
        sampling, bounds = split.sampling, split.intervals
        if sampling is None:
            return Intervals(None, 0, None, None, 0, 0, {})
        if sampling.block is None:
            return Intervals("documents", sampling.documents, None, None, DRAWS, SEED, bounds)
        return Intervals("blocks", sampling.documents, sampling.units, sampling.block, DRAWS, SEED, bounds)


MEASUREMENT = OfNumbers
