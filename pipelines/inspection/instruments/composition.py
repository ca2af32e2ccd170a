"""Which heads read what earlier heads write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lm.config import ModelConfig
from lm.introspection.composition import composition_scores
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.reporting.pictures import HeatMap, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

STRONGEST = 6  # pairs of each kind in the table
KINDS = {"query": "Q", "key": "K", "value": "V"}


@dataclass(frozen=True)
class ComposedPair:
    """How much a head reads of what an earlier head writes, above chance."""

    earlier: str
    """Layer and head, such as 0.1"""
    later: str
    query: float
    key: float
    value: float


@dataclass(frozen=True)
class CompositionOfRun(Result):
    """The composition scores of all pairs of heads."""

    key = "composition"
    section = Section(
        "Composition of heads",
        "A score is how much a later head reads of what an earlier head writes (its OV circuit), in its queries (Q), "
        "keys (K) or values (V). It is the Frobenius norm of the product of the two matrices over the product of their "
        "norms, minus 1 / sqrt(width), the score of random matrices (Elhage et al. 2021). An induction head has K "
        "composition with a head that attends to the previous token. With rotary positions, Q and K hold for one "
        "`distance`. The scores are computed from weights alone. They cannot tell whether the heads work together on a "
        "text: patch or delete them.",
    )

    pairs: tuple[ComposedPair, ...]
    distance: int
    """Positions from the query back to the key, for rotary positions"""

    def parts(self) -> list[Table | str]:
        if not self.pairs:
            return ["heads compose only across layers, but the model has one layer"]
        tables: list[Table | str] = []
        for kind, title in KINDS.items():
            ranked = sorted(self.pairs, key=lambda pair: -getattr(pair, kind))[:STRONGEST]
            rows = [(f"{one.earlier} → {one.later}", [f"{getattr(one, k):+.3f}" for k in KINDS]) for one in ranked]
            tables.append(Table(f"strongest {title} composition", "heads", [*KINDS.values()], rows))
        return tables

    def pictures(self) -> Sequence[Picture]:
        if not self.pairs:
            return []
        columns = list(dict.fromkeys(pair.earlier for pair in self.pairs))
        rows = list(dict.fromkeys(pair.later for pair in self.pairs))
        maps = {title: np.full((len(rows), len(columns)), np.nan) for title in KINDS.values()}
        for pair in self.pairs:
            for kind, title in KINDS.items():
                maps[title][rows.index(pair.later), columns.index(pair.earlier)] = getattr(pair, kind)
        text = "How much the later head reads of what the earlier one writes; blue is above chance."
        return [
            HeatMap(
                title="Composition of heads", text=text, maps=maps, rows=rows, columns=columns,
                x="earlier head", y="later head", signed=True,
            )
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CompositionInstrument(Instrument):
    """Composition scores."""

    result = CompositionOfRun
    reads_text = False
    usual = False

    distance: int = 0
    """Positions from the query back to the key, for the composition of models with rotary positions"""

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "composition")

    def look(self, run: LoadedRun, text: str) -> CompositionOfRun:
        found = composition_scores(run.model, self.distance)
        heads = run.config.model.heads
        names = [f"{layer}.{head}" for layer in range(len(run.model.stack.blocks)) for head in range(heads)]
        pairs = [
            ComposedPair(names[j], names[i], *(float(scores[i, j]) for scores in (found.query, found.key, found.value)))
            for i in range(len(names))
            for j in range(i // heads * heads)
        ]
        return CompositionOfRun(tuple(pairs), self.distance)


INSTRUMENT = CompositionInstrument
