"""Batches: arrays of token ids, targets and weights, one rank's rows, a model's tensors, and the loss."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm.metrics.predictions import token_nll
from lm.model import LanguageModel

ALIGNMENT = 16  # bytes, at least one element of any dtype
LOGIT_ROWS = 512  # rows whose logits are in memory at once, outside training
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
        return self if rows.all() else replace(self, weights=self.weights * rows[:, None])

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


def hidden_states(model: LanguageModel, batch: Batch, scored: Array) -> Tensor:
    """Return the hidden states (N, width) of a batch at the positions where `scored` (B, P) bool is True."""
    hidden: Tensor = model(
        **to_device(model_inputs(batch) | {"rows": np.flatnonzero(scored)}, model.embedding.weight.device)
    )
    return hidden


def logits_in_parts(model: LanguageModel, hidden: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield float32 logits (M, V) of hidden states (N, width) with their places: at most LOGIT_ROWS rows at a time."""
    for start in range(0, len(hidden), LOGIT_ROWS):
        part = slice(start, start + LOGIT_ROWS)
        yield part, model.logits(hidden[part]).float()


def target_nats(model: LanguageModel, batch: Batch, scored: Array) -> Tensor:
    """Return -ln p of the targets of a batch where `scored` (B, P) bool is True: float64 (N,)."""
    hidden = hidden_states(model, batch, scored)
    targets = torch.from_numpy(batch.targets[scored]).to(hidden.device)
    return torch.cat([token_nll(logits, targets[part]) for part, logits in logits_in_parts(model, hidden)])


def to_device(parts: Mapping[str, Array], device: torch.device) -> dict[str, Tensor]:
    """Return arrays as tensors on `device`.

    A GPU gets them in one asynchronous copy from pinned memory; a copy from pageable memory would wait for its queue.
    """
    if device.type == "cpu":
        return {name: torch.from_numpy(part) for name, part in parts.items()}
    return unpack(pack(parts, pin=device.type == "cuda").to(device, non_blocking=True), parts)


def pack(parts: Mapping[str, Array], *, pin: bool) -> Tensor:
    """Return the bytes of arrays in one uint8 tensor, each array at a multiple of ALIGNMENT."""
    buffer = torch.empty(sum(map(_aligned_bytes, parts.values())), dtype=torch.uint8, pin_memory=pin)
    for name, view in unpack(buffer, parts).items():
        view.copy_(torch.from_numpy(parts[name]))
    return buffer


def unpack(buffer: Tensor, parts: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return views into the tensor that `pack` made of arrays with the dtypes and shapes of `parts`."""
    views, start = {}, 0
    for name, part in parts.items():
        dtype = torch.from_numpy(part).dtype
        views[name] = buffer[start : start + part.nbytes].view(dtype).view(part.shape)
        start += _aligned_bytes(part)
    return views


def _aligned_bytes(part: Array) -> int:
    return -(-part.nbytes // ALIGNMENT) * ALIGNMENT


LossFunction = Callable[[Batch], Tensor]
"""The sum of the loss over the targets of a batch in nats, a scalar."""


def summed_loss(
    model: LanguageModel,
    forward: Callable[..., Tensor],
    batch: Batch,
    *,
    device: torch.device,
    every_position: bool = False,
    compiled: bool = False,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Return the sum of the loss over the targets of a batch: nats, a float32 scalar.

    `forward` computes the hidden states of `model`; it may be wrapped for several processes, or `compiled`.
    `every_position`: see `loss_inputs`.

    Validation and sweeps need only this sum. `target_nats`, with which evaluation scores every token in float64, takes
    1.22 times as long (gpt-tiny, 8,192 entries, one thread), and sharded weights and graphs need `forward`.
    """
    # One copy for the model and the loss: a later copy would wait for the model.
    tensors = to_device(model_inputs(batch) | loss_inputs(batch, every_position), device)
    targets, weights = tensors.pop("targets"), tensors.pop("weights")
    if compiled and "rows" in tensors:  # its size differs between batches; one compilation serves all
        torch._dynamo.maybe_mark_dynamic(tensors["rows"], 0)
    hidden = forward(**tensors).flatten(0, -2)
    return model.loss(hidden, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)
