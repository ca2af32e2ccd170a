"""Direct preference optimization (Rafailov et al. 2023)."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def reward_margins(log_probabilities: Tensor, reference: Tensor, beta: float) -> Tensor:
    """Return beta times how much more the model has raised the chosen answer than the rejected one, in nats: (B,).

    ln p of the chosen and the rejected answer, both (B, 2), by the model and by the reference.
    """
    rewards = beta * (log_probabilities - reference)
    return rewards[:, 0] - rewards[:, 1]


def preference_losses(margins: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return -ln sigmoid(margin) of each pair in nats (equation 7): (B,).

    Label smoothing s takes the rejected answer for the chosen one with probability s / 2.
    """
    swapped = label_smoothing / 2
    return -(1 - swapped) * F.logsigmoid(margins) - swapped * F.logsigmoid(-margins)
