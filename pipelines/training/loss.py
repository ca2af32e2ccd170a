"""The loss of a batch, and the largest micro-batch that fits a GPU's memory."""

from collections.abc import Callable

import torch
from torch import Tensor

from lm.model import LanguageModel
from pipelines.training.batch import Batch, loss_inputs, model_inputs, to_device

LossFunction = Callable[[Batch], Tensor]
"""The sum of the loss over the targets of a batch in nats, a scalar."""

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

    `forward` computes the hidden states of `model`, perhaps wrapped for several processes or `compiled`.
    `every_position`: see `loss_inputs`.
    """
    # One copy for the model and the loss: a later copy would wait for the model.
    tensors = to_device(model_inputs(batch) | loss_inputs(batch, every_position), device)
    targets, weights = tensors.pop("targets"), tensors.pop("weights")
    if compiled and "rows" in tensors:  # its size differs between batches; one compilation serves all
        torch._dynamo.maybe_mark_dynamic(tensors["rows"], 0)
    hidden = forward(**tensors).flatten(0, -2)
    return model.loss(hidden, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)


def largest_micro_batch(loss: LossFunction, batch: Batch, model: torch.nn.Module) -> int:
    """Return the rows of the largest micro-batch that fits the memory of the model's device.

    `batch` is cut into as few even parts as fit, forward and backward, with room for the optimizer. A single row is not
    tried: if it does not fit, training fails with a clear error.
    """
    rows = len(batch.inputs)

    def fits(parts: int) -> bool:
        size = even(rows, parts)
        return size == 1 or _fits(loss, next(iter(batch.split(size))), model)

    too_few, parts = 0, 1
    while not fits(parts):
        too_few, parts = parts, 2 * parts
    while parts - too_few > 1:
        middle = (too_few + parts) // 2
        too_few, parts = (too_few, middle) if fits(middle) else (middle, parts)
    return even(rows, parts)


def even(rows: int, parts: int) -> int:
    """Return the rows of each of `parts` even parts; the last may have fewer."""
    return -(-rows // parts)


def _fits(loss: LossFunction, batch: Batch, model: torch.nn.Module) -> bool:
    parameters = list(model.parameters())
    try:
        reserved = [torch.empty_like(parameter) for parameter in parameters for _ in range(OPTIMIZER_NUMBERS)]
        torch.autograd.backward(loss(batch))
        del reserved
    except torch.OutOfMemoryError:
        return False
    finally:
        for parameter in parameters:
            parameter.grad = None
        if parameters[0].device.type == "cuda":
            torch.cuda.empty_cache()
    return True
