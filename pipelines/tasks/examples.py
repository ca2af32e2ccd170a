"""Examples of a task as arrays, and batches of examples. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.training.batch import Array, Batch

ABSENT = -1
"""Id of padding in arrays of ids"""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """An example as a model reads it: T positions and P targets. C choices make arrays (C, T)."""

    ids: Array
    """(T,) or (C, T) int64; ABSENT at padding"""
    targets: Array
    """(P,) or (C, P) int64; float32 if the targets are numbers"""
    weights: Array | None = None
    """float32 in the shape of `targets`: 0 where there is no target; None: 1 everywhere"""
    types: Array | None = None
    """int64 in the shape of `ids`: token types"""
    segments: Array | None = None
    """int64 in the shape of `ids`: document indices. Documents do not attend to each other"""
    source: Array | None = None
    """(S,) int64: ids that the encoder of an encoder-decoder reads"""
    extra: Array | None = None
    """(E,) float32: values for the loss or the results of the task"""
    places: Array | None = None
    """(T,) or (T, 2) int64: the word, the characters (start, end), or the position in `other`; ABSENT elsewhere"""
    other: Array | None = None
    """(S + 1,) int64: ids of the same text in another vocabulary, S to read and one more to predict"""
    origin: int = 0
    """Index of the example. A long example may have several windows"""
    cut: bool = False
    """Whether a text was cut"""

    @property
    def tokens(self) -> int:
        """Number of positions with a token, including the source."""
        return int((self.ids != ABSENT).sum()) + (0 if self.source is None else len(self.source))

    @property
    def prompt(self) -> list[int]:
        """The ids of a decoder's example before its first target."""
        assert self.weights is not None
        prompt: list[int] = self.ids[: int((self.weights > 0).argmax()) + 1].tolist()
        return prompt


def batch_of(examples: Sequence[Encoded]) -> Batch:
    """Return a batch of B examples, padded to the longest. Padding has weight 0, and no position attends to padding."""
    ids = _padded([example.ids for example in examples], ABSENT)
    targets = _padded([example.targets for example in examples], 0)
    given = [np.ones(e.targets.shape, np.float32) if e.weights is None else e.weights for e in examples]
    sources = [example.source for example in examples if example.source is not None]
    source = _padded(sources, ABSENT) if sources else None
    others = [example.other for example in examples if example.other is not None]
    places = [example.places for example in examples if example.places is not None] if others else []
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
        other=_padded(others, ABSENT) if others else None,
        places=_padded(places, ABSENT) if places else None,
    )


def _padded(arrays: Sequence[Array], fill: int) -> Array:
    """Return arrays with equal numbers of axes as one array, each padded at the end with `fill`."""
    shape = np.max([array.shape for array in arrays], axis=0)
    result = np.full((len(arrays), *shape), fill, dtype=arrays[0].dtype)
    for row, array in zip(result, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return result


def _optional(arrays: Sequence[Array | None]) -> Array | None:
    present = [array for array in arrays if array is not None]
    return _padded(present, 0) if present else None


def _present(ids: Array | None) -> Array | None:
    """Return a mask of the positions with a token; None if every position has one."""
    return None if ids is None or (ids != ABSENT).all() else ids != ABSENT
