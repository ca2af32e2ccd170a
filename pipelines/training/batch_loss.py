"""The tensors of a batch, and the loss of a model on it."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from lm.metrics.predictions import token_nll
from lm.model import LanguageModel
from lm.task_model import TrainedModel
from pipelines.training.batch import Array, Batch, loss_inputs, model_inputs

ALIGNMENT = 16  # bytes, at least one element of any dtype
LOGIT_ROWS = 512  # rows whose logits are in memory at once, outside training


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


def to_device(parts: Mapping[str, Array], device: torch.device, compiled: bool = False) -> dict[str, Tensor]:
    """Return arrays as tensors on `device`, for a model that may be `compiled`.

    A GPU gets them in one asynchronous copy from pinned memory; a copy from pageable memory would wait for its queue.
    """
    if device.type == "cpu":
        tensors = {name: torch.from_numpy(part) for name, part in parts.items()}
    else:
        tensors = unpack(pack(parts, pin=device.type == "cuda").to(device, non_blocking=True), parts)
    if compiled and "rows" in tensors:  # its size differs between batches; one compilation serves all
        torch._dynamo.maybe_mark_dynamic(tensors["rows"], 0)
    return tensors


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
    model: TrainedModel,
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
    tensors = to_device(model_inputs(batch) | loss_inputs(batch, every_position), device, compiled)
    targets, weights = tensors.pop("targets"), tensors.pop("weights")
    hidden = forward(**tensors).flatten(0, -2)
    return model.loss(hidden, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)
