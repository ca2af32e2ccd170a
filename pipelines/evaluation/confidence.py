"""The units that the bootstrap of 95 % intervals draws from a split: its documents (see `lm.metrics.intervals`).

Below 30 documents the text is cut into segments of one context, and blocks of consecutive segments are drawn. A text of
fewer than 20 segments has no interval.
"""

import math
from dataclasses import dataclass

import numpy as np

from lm.metrics.intervals import DRAWS, block_length, circular_blocks, resampled_sums
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.windows import TokenScores

Interval = tuple[float | None, float | None]
"""The bounds of a 95 % interval. A bound of a perplexity is None if no float holds it."""
FEWEST_DOCUMENTS = 30
FEWEST_CONTEXTS = 20
"""With 2 to 10 contexts, a nominal 95 % interval covers the true number in only 43 to 78 % of texts."""
SEED = 0


@dataclass(frozen=True)
class Sampling:
    """The units that the bootstrap draws: documents, or blocks of segments. A segment has the size of one context."""

    unit: np.ndarray
    """int (N,): number of the unit of each scored token"""
    units: int
    documents: int
    block: int | None
    """segments per block; None if units are documents"""

    def draw(self, *columns: np.ndarray) -> np.ndarray:
        """Return the sums of `columns`, each (N,), over each of DRAWS samples: (DRAWS, columns) float64."""
        return draw(np.stack([self.sums(column) for column in columns], axis=1), self.block)

    def sums(self, column: np.ndarray) -> np.ndarray:
        """Return the sum of `column` (N,) over each unit: (units,) float64."""
        return np.bincount(self.unit, weights=column, minlength=self.units)


def draw(sums: np.ndarray, block: int | None) -> np.ndarray:
    """Return the sums of each sample: (U, K) to (DRAWS, K). A sample draws units, or blocks of `block` units."""
    if block is None:
        return resampled_sums(sums, draws=DRAWS, seed=SEED)
    picks = math.ceil(len(sums) / block)
    # `picks` blocks may hold more units than the text.
    share = len(sums) / (picks * block)
    return share * resampled_sums(circular_blocks(sums, block), picks=picks, draws=DRAWS, seed=SEED)


def sampling_of(scores: TokenScores, text: StreamText | None, window: int) -> Sampling | None:
    """Return the units of a split; None if there are too few for an interval.

    `text` is the stream of the scores. Without it the documents are pairs, numbered by `windows`. The blocks of span
    corruption mix several documents, so its units are contexts.
    """
    if text is None:
        return _documents_or_segments(scores.windows, scores.windows)
    if scores.indices[0] < 0:
        return _segments(scores.windows, text.documents)
    segment_bytes = max(1, round(text.size / len(text.start) * window))
    segments = (text.start[scores.indices] // segment_bytes).astype(np.int64)
    return _documents_or_segments(text.document[scores.indices], segments)


def _documents_or_segments(document: np.ndarray, segments: np.ndarray) -> Sampling | None:
    documents = int(document[-1]) + 1
    if documents < FEWEST_DOCUMENTS:
        return _segments(segments, documents)
    return Sampling(document, documents, documents, None)


def _segments(segments: np.ndarray, documents: int) -> Sampling | None:
    count = int(segments.max()) + 1
    return Sampling(segments, count, documents, block_length(count)) if count >= FEWEST_CONTEXTS else None
