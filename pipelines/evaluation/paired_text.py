"""The text that two runs have in common, and the scores of both on it, in the tokens of their own tokenizers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lm.metrics.intervals import block_length
from pipelines.evaluation.confidence import FEWEST_DOCUMENTS
from pipelines.evaluation.documents import Key, StreamText
from pipelines.evaluation.windows import TokenScores

ROUNDING = 1e-3  # bytes; sums of fractions of bytes are inexact


class ScoredText(NamedTuple):
    """The scores of one run on a split, in the tokens of its own tokenizer."""

    scores: TokenScores
    text: StreamText
    keys: list[Key]


class PlacedScores(NamedTuple):
    """The scores of N tokens of one run, by their place in a text."""

    places: np.ndarray
    """(N,): first byte of each token in the text"""
    sizes: np.ndarray
    """(N,): bytes of each token, or 1 for bits per token"""
    nats: np.ndarray
    """float64 (N,)"""
    units: np.ndarray
    """int (N,): number of each token's unit of the bootstrap"""
    written: np.ndarray
    """bool (N,): whether the token has bytes in the text"""

    def sums(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the nats and the sizes of each of `count` units, each (units,) float64."""
        nats, sizes = (np.bincount(self.units, column, minlength=count) for column in (self.nats, self.sizes))
        return nats, sizes


@dataclass(frozen=True)
class PairedText:
    """The documents that two runs have in common, joined to one text.

    Documents are paired by the hash of their bytes. If a dataset ends within a document, only the bytes that both
    datasets have count. A unit of the bootstrap is a document, or a segment of the text if there are few documents.
    """

    sides: tuple[ScoredText, ScoredText]
    pairs: np.ndarray
    """int64 (P, 2): numbers of a document in both runs"""
    segment: int | None
    """Bytes of a segment; None if units are documents"""

    @classmethod
    def of(cls, ours: ScoredText, theirs: ScoredText, window: int) -> "PairedText":
        """Pair the documents of two runs. `window` is the context of our run in tokens.

        Raises ValueError if no document is in both.
        """
        places = {key: place for place, key in enumerate(theirs.keys)}
        pairs = np.array([(place, places[key]) for place, key in enumerate(ours.keys) if key in places], np.int64)
        if not len(pairs):
            raise ValueError(
                "no document is in both datasets, so the runs cannot be compared: build both from the same corpus with "
                "bytelm build-dataset"
            )
        segment = None
        if len(pairs) < FEWEST_DOCUMENTS:
            segment = max(1, round(ours.text.size / len(ours.text.start) * window))
        return cls((ours, theirs), pairs, segment)

    @cached_property
    def common(self) -> np.ndarray:
        """The bytes (P,) of each document that both runs have."""
        sizes = [np.diff(run.text.document_starts)[self.pairs[:, side]] for side, run in enumerate(self.sides)]
        return np.asarray(np.minimum(*sizes))

    @property
    def units(self) -> int:
        """The number of units."""
        return len(self.pairs) if self.segment is None else int(self.common.sum() - 1) // self.segment + 1

    @property
    def block(self) -> int | None:
        """The units of a block that the bootstrap draws; None if it draws single documents."""
        return None if self.segment is None else block_length(self.units)

    def scores(self, side: int) -> PlacedScores:
        """Return the scores of one run, 0 for ours or 1, on the common text."""
        scores = self.sides[side].scores
        pair, places, sizes, counted = self._place(side, scores.indices)
        unit = pair
        if self.segment is not None:
            # A separator at the end has no byte.
            unit = np.minimum((places // self.segment).astype(np.int64), self.units - 1)
        sizes = sizes[counted]
        return PlacedScores(places[counted], sizes, scores.nats[counted], unit[counted], sizes > 0)

    def cuts(self, side: int) -> np.ndarray:
        """Return the first byte of each token of one run in the common text, whether it was scored or not."""
        _, places, _, counted = self._place(side, np.arange(len(self.sides[side].text.start)))
        return np.asarray(places[counted])

    def _place(self, side: int, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the pair, first byte and size of the tokens `indices` (N,), and whether they count, each (N,)."""
        text = self.sides[side].text
        number = np.full(text.documents, -1)
        number[self.pairs[:, side]] = np.arange(len(self.pairs))
        pair = number[text.document[indices]]
        sizes = text.sizes[indices]
        inside = text.start[indices] - text.document_starts[text.document[indices]]
        counted = (pair >= 0) & (inside + sizes <= self.common[pair] + ROUNDING)
        return pair, (np.cumsum(self.common) - self.common)[pair] + inside, sizes, counted

    def documents(self, written: bytes) -> Sequence[bytes]:
        """Return the common bytes of each document. `written` is the text of our stream."""
        starts = self.sides[0].text.document_starts[self.pairs[:, 0]].tolist()
        return [written[start : start + size] for start, size in zip(starts, self.common.tolist(), strict=True)]
