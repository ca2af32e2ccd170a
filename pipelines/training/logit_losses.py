"""Losses that need the logits of targets: preferences between answers, and distillation from a teacher."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lm.model import LanguageModel
from lm.preferences import preference_losses, reward_margins
from lm.task_model import TrainedModel
from pipelines.training.batch import Batch, loss_inputs, model_inputs
from pipelines.training.batch_loss import LOGIT_ROWS, to_device


def in_parts(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Return `function` of tensors with N rows each: (N,), for LOGIT_ROWS rows at a time.

    The backward pass computes each part again, so the logits of one part are in memory at once.
    """
    parts = zip(*(tensor.split(LOGIT_ROWS) for tensor in rows), strict=True)
    return torch.cat([checkpoint(function, *part, use_reentrant=False) for part in parts])


def answer_rows(batch: Batch) -> Batch:
    """Return pairs of answers (B, 2, T) as 2 B rows: chosen, rejected, chosen and so on."""
    flat = {name: part.reshape(-1, part.shape[-1]) for name, part in model_inputs(batch).items()}
    ids = flat.pop("ids")
    targets, weights = (part.reshape(-1, part.shape[-1]) for part in (batch.targets, batch.weights))
    return Batch(inputs=ids, targets=targets, weights=weights, **flat)


def answer_log_probabilities(
    model: LanguageModel, forward: Callable[..., Tensor], batch: Batch, device: torch.device, compiled: bool = False
) -> Tensor:
    """Return ln p of the chosen and the rejected answer of each pair, after the prompt: (B, 2) float32 nats."""
    flat = answer_rows(batch)
    scored = np.flatnonzero(flat.weights)
    own = {"rows": scored, "targets": flat.targets.ravel()[scored], "answer": scored // flat.targets.shape[1]}
    tensors = to_device(model_inputs(flat) | own, device, compiled)
    targets, answer = tensors.pop("targets"), tensors.pop("answer")

    def log_probabilities(hidden: Tensor, targets: Tensor) -> Tensor:
        logits = model.logits(hidden).float()
        return logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(dim=-1)

    found = in_parts(log_probabilities, forward(**tensors), targets)
    return found.new_zeros(len(flat.inputs)).index_add(0, answer, found).view(-1, 2)


def summed_preference_loss(
    model: TrainedModel,
    forward: Callable[..., Tensor],
    batch: Batch,
    *,
    beta: float,
    device: torch.device,
    every_position: bool = False,
    compiled: bool = False,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Return the sum of the losses of pairs of answers in nats, each times the sum of its weights; see `summed_loss`.

    `batch.extra` (B, 2) has ln p of the answers by the reference. There is no z-loss.
    """
    assert isinstance(model, LanguageModel) and batch.extra is not None
    own = to_device({"reference": batch.extra, "weights": batch.weights.sum(axis=(1, 2))}, device)
    found = answer_log_probabilities(model, forward, batch, device, compiled)
    losses = preference_losses(reward_margins(found, own["reference"], beta), label_smoothing)
    return losses @ own["weights"]


def summed_distillation_loss(
    model: TrainedModel,
    forward: Callable[..., Tensor],
    batch: Batch,
    *,
    teacher: LanguageModel,
    alpha: float,
    temperature: float,
    device: torch.device,
    every_position: bool = False,
    compiled: bool = False,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Return the sum over the targets of a batch of the loss beside a teacher, in nats; see `summed_loss`.

    It is (1 - a) times the cross-entropy plus a T^2 D(teacher || model), both distributions softened to
    softmax(logits / T) (Hinton et al. 2015). T^2 keeps the size of the gradient.
    """
    assert isinstance(model, LanguageModel)
    tensors = to_device(model_inputs(batch) | loss_inputs(batch, every_position), device, compiled)
    targets, weights = tensors.pop("targets"), tensors.pop("weights")
    hidden = forward(**tensors).flatten(0, -2)
    if alpha == 0:
        return model.loss(hidden, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)
    with torch.no_grad():
        wanted = teacher.to(device)(**tensors).flatten(0, -2)

    def divergence(hidden: Tensor, wanted: Tensor) -> Tensor:
        log_p = torch.log_softmax(teacher.logits(wanted).float() / temperature, dim=-1)
        log_q = torch.log_softmax(model.logits(hidden).float() / temperature, dim=-1)
        return (log_p.exp() * (log_p - log_q)).sum(dim=-1)

    loss = alpha * temperature**2 * (in_parts(divergence, hidden, wanted) @ weights)
    if alpha == 1:
        return loss
    own = model.loss(hidden, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)
    return (1 - alpha) * own + loss
