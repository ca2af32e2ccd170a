"""Performer: linear attention whose random features approximate softmax (Choromanski et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.initialization import Initializer
from lm.mixers.linear import LinearAttention
from lm.mixers.performer_costs import EXPANSION

SMALLEST = 1e-4
"""Added to every feature, so that no sum of weights is 0."""


class Performer(LinearAttention):
    """`LinearAttention` with f(x) = exp(W x - |x|^2 / 2), x = q / D^(1/4) or k / D^(1/4) (FAVOR+, lemma 1).

    The mean of f(q) f(k) over random W is exp(q k / sqrt(D)), the weight of softmax. The EXPANSION D rows of W are
    orthogonal in blocks of D, have the lengths of normal vectors, and do not change in training. A factor on f(q)
    cancels, so f(q) is scaled to a largest feature of 1. Keys are not, because their factor would depend on later keys.

    Because SMALLEST is added after the scaling, the factor does not cancel exactly. The backward pass still treats the
    factor as a constant. The error of gradients is about 1e-6 with weights of std 0.05, and can be 3 % with weights of
    std 0.3.
    """

    component = "performer"
    directions: Tensor

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config, residual_writes, value_embedding, gain)
        self.mapped = EXPANSION * self.features
        self.register_buffer("directions", torch.empty(self.mapped, self.features))

    def feature_map(self, x: Tensor, queries: bool) -> Tensor:
        x = (x * self.features**-0.25).contiguous()
        logs = x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2.0
        if queries:
            logs = logs - logs.detach().amax(-1, keepdim=True)
        return logs.exp() + SMALLEST

    def reset_parameters(self, initializer: Initializer) -> None:
        shape = (EXPANSION, self.features, self.features)
        blocks = [torch.empty(shape).normal_(generator=initializer.generator) for _ in range(2)]
        turned, factors = torch.linalg.qr(blocks[0])
        turned = turned * factors.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # uniform only with these signs
        self.directions.copy_((turned * blocks[1].norm(dim=-1, keepdim=True)).flatten(0, 1))

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return super().flops(length, visible, outputs) + 12 * self.heads * self.mapped * self.features * length


MIXER = Performer
