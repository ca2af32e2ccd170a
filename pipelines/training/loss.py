"""The loss of a batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from lm.model import LanguageModel
from pipelines.training.batch import Batch, loss_inputs, model_inputs, to_device

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
