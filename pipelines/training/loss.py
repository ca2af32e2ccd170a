"""Compute the loss of a batch, and find the largest micro-batch that fits in memory."""

from collections.abc import Callable

import torch
from torch import Tensor

from lm.model import LanguageModel
from pipelines.training.batch import Batch, loss_inputs, model_inputs, to_device

LossFunction = Callable[[Batch], Tensor]
"""The sum of the loss over the targets of a batch in nats, a scalar."""

# Larger micro-batches are no faster.
MOST_POSITIONS = 65_536
# Numbers in float32 per parameter beside weights and gradients: two moments of the optimizer, and a temporary.
OPTIMIZER_NUMBERS = 3


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
    """
    # One copy for the model and the loss: a later copy would wait for the model.
    tensors = to_device(model_inputs(batch) | loss_inputs(batch, every_position), device)
    targets, weights = tensors.pop("targets"), tensors.pop("weights")
    if compiled and "rows" in tensors:  # its size differs between batches; one compilation serves all
        torch._dynamo.maybe_mark_dynamic(tensors["rows"], 0)
    hidden = forward(**tensors).flatten(0, -2)
    return model.loss(hidden, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)


def leave_a_tenth(device: torch.device) -> None:
    """Raise torch.OutOfMemoryError if the peak of a GPU since the last reset leaves less than a tenth of its memory.

    Libraries allocate workspaces of their own, and blocks of other sizes cannot always be reused.
    """
    if device.type == "cuda":
        peak, now = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        torch.cuda.empty_cache()
        torch.empty(peak + peak // 9 - now, dtype=torch.uint8, device=device)


def largest_micro_batch(
    loss: LossFunction,
    batch: Batch,
    model: torch.nn.Module,
    leave_room: Callable[[torch.device], None] = leave_a_tenth,
) -> int:
    """Return the rows of the largest micro-batch that fits the memory of the model's device.

    `batch` is cut into the fewest even parts that fit, forward and backward, together with the optimizer. `leave_room`
    raises torch.OutOfMemoryError if too little memory is left. A part has at most MOST_POSITIONS positions. A single
    row is not tried: if it does not fit, training fails with a clear error.
    """
    rows = len(batch.inputs)
    positions = sum(part.size for part in (batch.inputs, batch.source) if part is not None)

    def fits(parts: int) -> bool:
        size = even(rows, parts)
        return size == 1 or _fits(loss, next(iter(batch.split(size))), model, leave_room)

    parts = min(rows, -(-rows // max(1, MOST_POSITIONS * rows // positions)))
    too_few = parts - 1
    while not fits(parts):
        too_few, parts = parts, 2 * parts
    while parts - too_few > 1:
        middle = (too_few + parts) // 2
        too_few, parts = (too_few, middle) if fits(middle) else (middle, parts)
    return even(rows, parts)


def even(rows: int, parts: int) -> int:
    """Return the rows of each of `parts` even parts; the last may have fewer."""
    return -(-rows // parts)


def _fits(loss: LossFunction, batch: Batch, model: torch.nn.Module, leave_room: Callable[[torch.device], None]) -> bool:
    parameters = list(model.parameters())
    device = parameters[0].device
    try:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        reserved = [torch.empty_like(parameter) for parameter in parameters for _ in range(OPTIMIZER_NUMBERS)]
        torch.autograd.backward(loss(batch))
        del reserved
        leave_room(device)
    except torch.OutOfMemoryError:
        return False
    finally:
        for parameter in parameters:
            parameter.grad = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True
