"""Additive attention: a small network compares each query with each key.

Axes: B sequences, T positions, S key positions, H query heads, G key-value heads, D features a head.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.attention.backends import attention_weights, hide
from lm.attention.tiles import group_size
from lm.config import ModelConfig
from lm.initialization import Initializer
from lm.masks import Mask
from lm.mixers.attention import Attention


class AdditiveAttention(Attention):
    """Cross-attention with the scores v tanh(q + k) of Bahdanau et al. (2015, A.1.2), and a vector v for each head.

    v starts at zero (B.1): all keys have the same weight at first. The paper has one head, whose values are the
    encoder's hidden states; with one head, the value and output matrices here are one matrix in two factors.
    """

    def __init__(self, config: ModelConfig, residual_writes: int = 1, gain: float = 1.0, cross: bool = True) -> None:
        super().__init__(config, residual_writes, gain=gain, cross=cross)
        self.score = nn.Parameter(torch.empty(config.heads * config.head_features))

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        k = k.repeat_interleave(group_size(q, k), dim=1)
        compared = torch.tanh(q.unsqueeze(3) + k.unsqueeze(2))  # (B, H, T, S, D)
        vectors = self.score.to(q.dtype).unflatten(0, (self.heads, -1))
        return hide(torch.einsum("bhtsd,hd->bhts", compared, vectors), mask)

    def parallel_form(self, mask: Mask) -> partial[Tensor]:
        return partial(self._attend, mask, self.config.dropout if self.training else 0.0)

    def attend_source(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None) -> Tensor:
        return self._attend(Mask(bias=added), 0.0, q.to(k.dtype), k, v).to(q.dtype)

    def _attend(self, mask: Mask, dropout: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = F.dropout(attention_weights(self.scores(q, k, mask), mask), dropout)
        return weights @ v.repeat_interleave(group_size(q, v), dim=1)

    def reset_parameters(self, initializer: Initializer) -> None:
        super().reset_parameters(initializer)
        self.score.zero_()
