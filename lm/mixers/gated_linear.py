"""Gated linear attention: the input decides how much of the past each head forgets (Yang et al. 2024)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.initialization import Initializer
from lm.layers import Linear
from lm.mixers.decayed import DecayedAttention
from lm.mixers.recurrent import widen


class GatedLinearAttention(DecayedAttention):
    """`DecayedAttention` with a_t = sigmoid(w_h x_t + b_h), one number for each head h.

    Yang et al. use one number for each feature of the keys. The biases start at the decays of retention.
    """

    component = "gated-linear"

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config, residual_writes, value_embedding, gain)
        self.decay = Linear(config.width, config.heads, bias=False)
        self.decay_bias = nn.Parameter(torch.empty(config.heads))

    def decay_logits(self, x: Tensor) -> tuple[Tensor, ...]:
        return ((widen(self.decay(x)) + self.decay_bias).transpose(1, 2),)

    def log_decay(self, values: Tensor, *logits: Tensor) -> Tensor:
        return -F.softplus(-logits[0])

    def reset_parameters(self, initializer: Initializer) -> None:
        power = 5.0 + torch.arange(self.heads, device=self.decay_bias.device)
        self.decay_bias.copy_(torch.log1p(-torch.exp2(-power)) + power * math.log(2.0))  # the inverse of the sigmoid

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return super().flops(length, visible, outputs) + self.decay.flops(length)


MIXER = GatedLinearAttention
