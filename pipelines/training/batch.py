"""Batches: arrays of token ids, targets and weights, and one rank's rows. Imports no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

ROW_MULTIPLE = 64  # a batch predicts at a multiple of this many positions

Array = np.ndarray


@dataclass(frozen=True)
class Shard:
    """The rows of every batch that one rank reads."""

    rank: int = 0
    world_size: int = 1

    def rows(self, count: int) -> tuple[Array, Array]:
        """Return the numbers of this rank's rows in a batch of `count` rows, and whether each belongs to it.

        Shards are contiguous, cover the batch and differ in size by at most one. All ranks read equally many rows: a
        smaller shard also reads a row of another rank, whose weights must be 0 (`Batch.weighing_only`).
        """
        first, end = (count * rank // self.world_size for rank in (self.rank, self.rank + 1))
        rows = np.arange(first, first + -(-count // self.world_size))
        return np.minimum(rows, count - 1), rows < end


ALL_ROWS = Shard()


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, P) int64 with weights (B, P) float32, 0 where a position is not a target."""

    inputs: Array
    targets: Array
    weights: Array
    source: Array | None = None
    """(B, S) int64: ids that the encoder of an encoder-decoder reads."""
    source_present: Array | None = None
    """(B, S) bool: False where the source is padding; None without padding."""
    segments: Array | None = None
    """(B, P) int64: document number of each position, for models with a document mask."""
    present: Array | None = None
    """(B, T) bool: False where the input is padding; None without padding."""
    types: Array | None = None
    """(B, T) int64: token types, such as 1 in the second text of a pair; None: all 0."""
    causal: Array | None = None
    """(B, 1) bool: False for rows of a decoder that attend to both sides; None: every row attends to the past."""
    extra: Array | None = None
    """(B, E) float32: numbers that the loss of a task reads."""
    other: Array | None = None
    """(B, S + 1) int64: the same texts in another vocabulary, S ids to read and one more to predict; -1 at padding."""
    places: Array | None = None
    """(B, P) int64: the position among `other` that has read the same bytes as each position; -1 if there is none."""

    def split(self, size: int) -> Iterable["Batch"]:
        """Yield micro-batches of at most `size` rows."""
        for start in range(0, len(self.inputs), size):
            yield self._index(slice(start, start + size))

    def columns(self, count: int) -> "Batch":
        """Return the first `count` positions of every row; only for batches without a source."""
        if count == self.inputs.shape[1]:
            return self
        return self._index((slice(None), slice(count)))

    def pad_to_multiple(self, size: int) -> "Batch":
        """Return the batch with its last row repeated, at weight 0, until `size` divides the number of rows."""
        count = len(self.inputs)
        rows = np.arange(-(-count // size) * size)
        if len(rows) == count:
            return self
        return self._index(np.minimum(rows, count - 1)).weighing_only(rows < count)

    def weighing_only(self, rows: Array) -> "Batch":
        """Return the batch with weights of 0 wherever `rows` (B,) bool is False."""
        kept = rows.reshape(-1, *[1] * (self.weights.ndim - 1))
        return self if rows.all() else replace(self, weights=self.weights * kept)

    def _index(self, index: slice | tuple[slice, slice] | Array) -> "Batch":
        parts: dict[str, Any] = {name: None if part is None else part[index] for name, part in vars(self).items()}
        return replace(self, **parts)


def join(batches: Sequence[Batch], rows: Array) -> Batch:
    """Return one batch of the rows of `batches`, which have equally many positions, reordered by `rows` (B,)."""
    if len(batches) == 1:
        return batches[0]
    names = [name for name, part in vars(batches[0]).items() if part is not None]
    return Batch(**{name: np.concatenate([getattr(batch, name) for batch in batches])[rows] for name in names})


def model_inputs(batch: Batch) -> dict[str, Array]:
    """Return the arrays of a batch that a model reads, by argument name."""
    parts = {"ids": batch.inputs, "source": batch.source}
    parts |= {"segments": batch.segments, "source_present": batch.source_present}
    parts |= {"present": batch.present, "types": batch.types, "causal": batch.causal}
    return {name: part for name, part in parts.items() if part is not None}


def loss_inputs(batch: Batch, every_position: bool = False) -> dict[str, Array]:
    """Return `targets` and `weights` (N,) of a batch, and `rows` (N,), their numbers among its B x P positions.

    Positions of weight 0 are left out: masked-token training predicts at 15 % of the positions, and padding is no
    target. Without such positions there are no `rows`. `every_position` keeps all, so that all batches have one shape.

    `rows` are padded with weight 0 to a multiple of ROW_MULTIPLE. With a new size in every batch, freed memory would
    seldom fit the next step, and the process would grow.
    """
    parts = {"targets": batch.targets.ravel(), "weights": batch.weights.ravel()}
    if every_position or batch.weights.all():
        return parts
    rows = parts["weights"].nonzero()[0]
    chosen = {name: part[rows] for name, part in parts.items()} | {"rows": rows}
    return {name: np.pad(part, (0, -len(rows) % ROW_MULTIPLE)) for name, part in chosen.items()}
