"""Two decoders with different vocabularies, compared by the distribution of the next byte.

At a position where both have read the same bytes, each model's distribution of the next token gives a distribution of
the next byte (`lm.byte_distributions`). D(teacher || student) of these distributions needs no common vocabulary. Other
methods with the same alignment compare the probabilities of whole chunks (ALM, Minixhofer et al. 2025, arXiv
2503.20083), or compute the next byte at every byte position (Phan et al. 2024, arXiv 2410.09303).

The end of a token gives a model information about the next byte: after the token "t", a vocabulary with the token
"th" excludes an "h". So the divergence of two perfect models with different vocabularies can be above 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lm.byte_distributions import first_byte_log_probabilities
from lm.metrics.predictions import divergences
from lm.model import LanguageModel
from lm.task_model import TrainedModel
from pipelines.training.batch import Array, Batch, loss_inputs, model_inputs
from pipelines.training.batch_loss import LOGIT_ROWS, hidden_states, to_device
from pipelines.training.logit_losses import in_parts


class ByteTeacher(NamedTuple):
    """A teacher with another vocabulary than the student's."""

    model: LanguageModel
    groups: Tensor
    """(V of the teacher, SYMBOLS): see `byte_groups`"""
    student_groups: Tensor
    """(V of the student, SYMBOLS)"""
    byte_lengths: Array
    """(V of the teacher,): bytes of each token, 0 for special tokens"""

    def to(self, device: torch.device) -> "ByteTeacher":
        """Return the teacher on `device`."""
        groups = self.groups.to(device), self.student_groups.to(device)
        return ByteTeacher(self.model.to(device), *groups, self.byte_lengths)


def teacher_batch(batch: Batch) -> Batch:
    """Return the texts of a batch as the teacher reads them. The weights are 1 at its targets and 0 at padding."""
    assert batch.other is not None
    inputs, targets = (np.maximum(part, 0) for part in (batch.other[:, :-1], batch.other[:, 1:]))
    return Batch(inputs, targets, (batch.other[:, 1:] >= 0).astype(np.float32))


def shared_positions(batch: Batch) -> tuple[Array, Array]:
    """Return masks (B, P) and (B, S) of the positions at which student and teacher have read the same bytes.

    Both masks have the same number of True, in the same order. Only targets with a weight count.
    """
    assert batch.places is not None and batch.other is not None
    own = (batch.places >= 0) & (batch.weights > 0)
    theirs = np.zeros((len(batch.other), batch.other.shape[1] - 1), bool)
    rows, _ = np.nonzero(own)
    theirs[rows, batch.places[own]] = True
    return own, theirs


@torch.inference_mode()
def byte_divergences(student: LanguageModel, teacher: ByteTeacher, batch: Batch) -> Array:
    """Return D(teacher || student) of the next byte in bits at each shared position: float64 (M,)."""
    own, theirs = shared_positions(batch)
    if not own.any():
        return np.zeros(0)
    hidden, wanted = hidden_states(student, batch, own), hidden_states(teacher.model, teacher_batch(batch), theirs)
    parts = []
    for start in range(0, len(hidden), LOGIT_ROWS):
        here = slice(start, start + LOGIT_ROWS)
        log_p = first_byte_log_probabilities(teacher.model.logits(wanted[here]).float(), teacher.groups)
        log_q = first_byte_log_probabilities(student.logits(hidden[here]).float(), teacher.student_groups)
        parts.append(divergences(log_p, log_q)[0])
    bits: Array = torch.cat(parts).cpu().numpy()
    return bits


def summed_byte_distillation_loss(
    model: TrainedModel,
    forward: Callable[..., Tensor],
    batch: Batch,
    *,
    teacher: ByteTeacher,
    alpha: float,
    temperature: float,
    device: torch.device,
    every_position: bool = False,
    compiled: bool = False,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Return the loss beside a teacher in nats, summed over the targets of a batch; see `summed_loss`.

    The cross-entropy of a token is that of its first byte plus that of the token given this byte. At shared positions
    the first term is multiplied by 1 - a, and a T^2 D(teacher || student) of the next byte is added. Here p and q are
    the distributions of bytes to the power 1 / T, normalized. For a student whose tokens are bytes, this is the loss of
    `summed_distillation_loss` at shared positions, and the cross-entropy at the others.

    Whether a position is shared depends on the bytes after it, which the student does not know. The divergence alone
    would teach it the distribution of the next byte at boundaries of the teacher's vocabulary. With the cross-entropy
    at the other positions, and T = 1, the student of a perfect teacher learns the true distribution.
    """
    assert isinstance(model, LanguageModel)
    parts = model_inputs(batch) | loss_inputs(batch, every_position)
    own, theirs = shared_positions(batch)
    read = own.ravel()[parts["rows"]] if "rows" in parts else own.ravel()
    shared = np.flatnonzero(read & (parts["weights"] > 0))
    tensors = to_device(parts | {"shared": shared}, device, compiled)
    targets, weights, chosen = (tensors.pop(name) for name in ("targets", "weights", "shared"))
    hidden = forward(**tensors).flatten(0, -2)
    loss = model.loss(hidden, targets, weights, label_smoothing=label_smoothing, z_loss=z_loss)
    if alpha == 0 or not len(shared):
        return loss
    teacher = teacher.to(device)
    with torch.no_grad():
        wanted = hidden_states(teacher.model, teacher_batch(batch), theirs)

    def difference(hidden: Tensor, wanted: Tensor, targets: Tensor) -> Tensor:
        log_p = first_byte_log_probabilities(teacher.model.logits(wanted).float(), teacher.groups)
        log_q = first_byte_log_probabilities(model.logits(hidden).float(), teacher.student_groups)
        text = log_q.gather(-1, teacher.student_groups[targets].argmax(dim=-1, keepdim=True)).squeeze(-1)
        soft_p, soft_q = ((part / temperature).log_softmax(dim=-1) for part in (log_p, log_q))
        return temperature**2 * (soft_p.exp() * (soft_p - soft_q)).sum(dim=-1) + text

    return loss + alpha * (in_parts(difference, hidden[chosen], wanted, targets[chosen]) @ weights[chosen])
