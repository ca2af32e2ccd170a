"""Examples of a task as arrays, and batches of them. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.training.batch import Array, Batch

ABSENT = -1
"""Id of padding in arrays of ids"""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An example as a model reads it: T positions and P targets; several texts make arrays (C, T)."""

    ids: Array
    """(T,) or (C, T) int64, ABSENT at padding"""
    targets: Array
    """(P,) or (C, P) int64, or float32 for numbers"""
    weights: Array | None = None
    """Like targets, float32: 0 where there is no target; None: 1 everywhere"""
    types: Array | None = None
    """Like ids, int64: token types"""
    segments: Array | None = None
    """Like ids, int64: numbers of documents that do not attend to each other"""
    source: Array | None = None
    """(S,) int64: ids that the encoder of an encoder-decoder reads"""
    extra: Array | None = None
    """(E,) float32: numbers that the loss or the results of the task read"""
    places: Array | None = None
    """(T,) or (T, 2) int64, ABSENT elsewhere: the word, or the characters of a text, that a position stands for"""
    origin: int = 0
    """Number of the example; a long one may have several windows"""
    cut: bool = False
    """Whether a text is longer than the model reads"""

    @property
    def tokens(self) -> int:
        """Positions with a token, of the source too."""
        return int((self.ids != ABSENT).sum()) + (0 if self.source is None else len(self.source))


def batch_of(examples: Sequence[Encoded]) -> Batch:
    """Return a batch of B examples, padded to the largest. Padding is no target, and no position attends to it."""
    ids = _padded([example.ids for example in examples], ABSENT)
    targets = _padded([example.targets for example in examples], 0)
    given = [np.ones(e.targets.shape, np.float32) if e.weights is None else e.weights for e in examples]
    sources = [example.source for example in examples if example.source is not None]
    source = _padded(sources, ABSENT) if sources else None
    return Batch(
        inputs=np.maximum(ids, 0),
        targets=targets,
        weights=_padded(given, 0),
        source=None if source is None else np.maximum(source, 0),
        source_present=_present(source),
        segments=_optional([example.segments for example in examples]),
        present=_present(ids),
        types=_optional([example.types for example in examples]),
        extra=_optional([example.extra for example in examples]),
    )


def _padded(arrays: Sequence[Array], fill: int) -> Array:
    """Return arrays of one number of axes as one, each filled up at the end."""
    shape = np.max([array.shape for array in arrays], axis=0)
    result = np.full((len(arrays), *shape), fill, dtype=arrays[0].dtype)
    for row, array in zip(result, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return result


def _optional(arrays: Sequence[Array | None]) -> Array | None:
    present = [array for array in arrays if array is not None]
    return _padded(present, 0) if present else None


def _present(ids: Array | None) -> Array | None:
    """Return where there is a token; None if there is one everywhere."""
    return None if ids is None or (ids != ABSENT).all() else ids != ABSENT
