"""The micro-batch that a GPU has memory for, found by trying."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pipelines.training.loader import Batch

# For each parameter in float32, beside weights and gradients: two moments of the optimizer, and what it computes with.
NUMBERS_TO_COME = 3


def largest_micro_batch(nats: Callable[[Batch], Tensor], batch: Batch, model: nn.Module) -> int:
    """The most rows of `batch`, halved until they fit, that go through `nats` and backward in the memory of the model's
    device, while room is kept for the optimizer. 1 is not tried: where it does not fit, training says so."""
    rows = len(batch.inputs)
    while rows > 1 and not _fits(nats, next(iter(batch.split(rows))), model):
        rows = -(-rows // 2)
    return rows


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
