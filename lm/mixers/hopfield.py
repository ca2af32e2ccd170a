"""Modern Hopfield networks: attention that moves its queries towards the keys before it reads values."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.decoding.cache import KVCache, attend_all
from lm.initialization import Initializer
from lm.masks import Mask
from lm.mixers.attention import Attend, Attention
from lm.mixers.hopfield_costs import UPDATES


class HopfieldCache(KVCache):
    """Keys and values, which every update of a query reads."""

    def _attend_last(
        self,
        block: int,
        visible: slice,
        new: slice | Tensor,
        added: Tensor | None,
        offsets: Tensor | None,
        scale: float | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        self._write(block, new, k, v)
        mixer = cast("Hopfield", self.blocks[block].mixer)
        keys, values = self.keys[block][:, :, visible], self.values[block][:, :, visible]
        return mixer.retrieve(q, keys, values, attend=partial(attend_all, added=added, scale=scale))


class Hopfield(Attention):
    """y = W_o softmax(beta q K^T) V after UPDATES - 1 times q <- softmax(beta q K^T) K (Ramsauer et al. 2021, 3).

    The inverse temperature beta is learned, one for each head, and starts at 1 / sqrt(D). One update is attention.
    """

    component = "hopfield"
    fields = ("head_width", "kv_heads", "qk_norm", "window", "document_mask", "attention")
    bidirectional = False
    has_pattern = False
    state = HopfieldCache

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config, residual_writes, value_embedding, gain)
        self.inverse_temperature = nn.Parameter(torch.empty(config.heads))

    def retrieve(self, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """Update the queries q (B, H, T, D) by the keys k (B, G, S, D), and read the values v (B, G, S, D)."""
        factor = self.inverse_temperature * q.shape[-1] ** 0.5  # `attend` divides by the root of D
        factor = factor.to(q.dtype)[:, None, None]
        for _ in range(UPDATES - 1):
            q = attend(q * factor, k, k)
        return attend(q * factor, k, v)

    def reset_parameters(self, initializer: Initializer) -> None:
        self.inverse_temperature.fill_(self.config.head_features**-0.5)

    def parallel_form(self, mask: Mask) -> partial[Tensor]:
        return partial(self.retrieve, attend=super().parallel_form(mask))

    def flops(self, length: float, visible: float, outputs: float, keys: float | None = None) -> float:
        updates = 12 * (UPDATES - 1) * self.query.weight.shape[0] * length * visible
        return super().flops(length, visible, outputs, keys) + updates


MIXER = Hopfield
