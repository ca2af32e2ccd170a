"""The micro-batch that a GPU has memory for, found by trying."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pipelines.training.loader import Batch

# For each parameter in float32, beside weights and gradients: two moments of the optimizer, and what it computes with.
NUMBERS_TO_COME = 3


def largest_micro_batch(nats: Callable[[Batch], Tensor], batch: Batch, model: nn.Module) -> int:
    """The rows of a micro-batch when `batch` is cut into as few even ones as go through `nats` and backward in the
    memory of the model's device, while room is kept for the optimizer. One row is not tried: where it does not fit,
    training says so."""
    rows = len(batch.inputs)

    def fits(parts: int) -> bool:
        size = even(rows, parts)
        return size == 1 or _fits(nats, next(iter(batch.split(size))), model)

    too_few, parts = 0, 1
    while not fits(parts):
        too_few, parts = parts, 2 * parts
    while parts - too_few > 1:
        middle = (too_few + parts) // 2
        too_few, parts = (too_few, middle) if fits(middle) else (middle, parts)
    return even(rows, parts)


def even(rows: int, parts: int) -> int:
    """The rows of each of so many parts of a batch, of which the last may have fewer."""
    return -(-rows // parts)


def _fits(nats: Callable[[Batch], Tensor], batch: Batch, model: nn.Module) -> bool:
    parameters = list(model.parameters())
    try:
        room = [torch.empty_like(parameter) for parameter in parameters for _ in range(NUMBERS_TO_COME)]
        nats(batch).backward()
        del room
    except torch.OutOfMemoryError:
        return False
    finally:
        for parameter in parameters:
            parameter.grad = None
        if parameters[0].device.type == "cuda":
            torch.cuda.empty_cache()
    return True
