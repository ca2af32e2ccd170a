"""One attention, one MLP, one block: what all three architectures are assembled from.

Axes: B sequences, T positions, S positions attended to, H query heads, G key-value heads, D components a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lm.activations import ACTIVATIONS
from lm.config import GATED, ModelConfig
from lm.layers import Linear, RMSNorm, build_norm
from lm.positions import Rotary, rotate

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q (B, H, T, D), k and v (B, G, T, D) to (B, H, T, D): a backend with its mask, or a KV cache's layer."""
KeysValues = tuple[Tensor, Tensor]
"""Keys and values (B, G, S, D) of what an encoder read, for the cross-attention of one block."""
CrossAttend = Callable[[Tensor], Tensor]
"""q (B, H, T, D) to (B, H, T, D): a backend with keys, values and mask of one block's cross-attention."""


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, 3.2.2), with grouped heads (Ainslie et al. 2023) and norms on
    queries and keys (Henry et al. 2020) where configured. What attends to what is the caller's business."""

    def __init__(self, config: ModelConfig, value_embedding: bool = False) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.key_value_heads
        kv_width = self.kv_heads * config.head_width
        self.query = Linear(config.width, config.width, config.bias)
        self.key = Linear(config.width, kv_width, config.bias)
        self.value = Linear(config.width, kv_width, config.bias)
        self.output = Linear(config.width, config.width, config.bias)
        self.query_norm = RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else nn.Identity()
        self.value_scale = nn.Parameter(torch.empty(1)) if value_embedding else None

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        attend: Attend,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, width) attends to itself, through `attend`, to (B, T, width) in its dtype.

        `rotary` turns queries and keys where positions are rotary; `value_embedding` (B, T, G x D) is added to the
        values, scaled. With `rows` (N,) int64 only what those of the B x T positions find: (N, width).
        """
        q, k, v = self.queries_keys_values(x)
        if value_embedding is not None:
            v = v + self.value_scale.to(v.dtype) * _heads(value_embedding, self.kv_heads)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return self.output(only(_merged(attend(q, k, v)), rows))

    def cross(self, x: Tensor, cross_attend: CrossAttend, rows: Tensor | None = None) -> Tensor:
        """x (B, T, width) attends to a source, through `cross_attend`, to (B, T, width); `rows` as above."""
        return self.output(only(_merged(cross_attend(self.queries(x))), rows))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, width) to queries (B, H, T, D), keys and values (B, G, T, D), not yet turned."""
        return self.queries(x), *self.keys_values(x)

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, width) to (B, H, T, D)."""
        return self.query_norm(_heads(self.query(x), self.heads))

    def keys_values(self, x: Tensor) -> KeysValues:
        """(B, S, width) to keys and values (B, G, S, D)."""
        return self.key_norm(_heads(self.key(x), self.kv_heads)), _heads(self.value(x), self.kv_heads)


class MLP(nn.Module):
    """Two matrices around a nonlinearity; swiglu and geglu gate the first with a third (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = Linear(config.width, config.hidden_width, config.bias)
        self.gate = Linear(config.width, config.hidden_width, config.bias) if config.activation in GATED else None
        self.down = Linear(config.hidden_width, config.width, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) to (..., width), in the dtype of x."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention, cross-attention where there is an encoder, and the MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig, *, cross: bool, skip: float, value_embedding: bool) -> None:
        """`skip`: the probability that a sequence skips a sub-layer in training."""
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.attention_norm = build_norm(config)
        self.attention = Attention(config, value_embedding)
        self.cross_norm = build_norm(config) if cross else None
        self.cross_attention = Attention(config) if cross else None
        self.mlp_norm = build_norm(config) if config.mlp else None
        self.mlp = MLP(config) if config.mlp else None
        self.dropout = nn.Dropout(config.dropout)
        self.skip = skip

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        attend: Attend,
        cross_attend: CrossAttend | None = None,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, width), the residual stream, to what it is after the block, in the dtype of x.

        `rotary`, `attend` and `value_embedding` as in `Attention.forward`; `cross_attend` as in
        `Attention.cross`. With `rows` (N,) int64 only at those of the B x T positions, (N, width): all are attended to,
        and what follows attention is spared the others.
        """
        if rows is not None and self.skip and self.training:  # whole sequences skip
            # Not by self(...): to FSDP it would be one more block, of which other processes know nothing.
            return only(self.forward(x, rotary, attend, cross_attend, value_embedding), rows)
        last = rows if self.cross_attention is None else None
        attention = partial(self.attention, rotary=rotary, attend=attend, value_embedding=value_embedding, rows=last)
        x = self._residual(x, self.attention_norm, attention, last)
        if self.cross_attention is not None:
            cross_attention = partial(self.cross_attention.cross, cross_attend=cross_attend, rows=rows)
            x = self._residual(x, self.cross_norm, cross_attention, rows)
        return x if self.mlp is None else self._residual(x, self.mlp_norm, self.mlp)

    def _residual(
        self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor], rows: Tensor | None = None
    ) -> Tensor:
        """`rows`: those that the sub-layer gives."""
        if self.pre_norm:
            return only(x, rows) + self._dropped(sublayer(norm(x)))
        return norm(only(x, rows) + self._dropped(sublayer(x)))

    def _dropped(self, update: Tensor) -> Tensor:
        """Dropout, and stochastic depth: whole updates of some sequences left out (Huang et al. 2016), the others
        enlarged so that the mean stays."""
        update = self.dropout(update)
        if self.skip == 0.0 or not self.training:
            return update
        kept = torch.rand(len(update), 1, 1, device=update.device) >= self.skip
        return update * (kept / (1.0 - self.skip)).to(update.dtype)


def only(x: Tensor, rows: Tensor | None) -> Tensor:
    """x (B, T, width) at `rows` (N,) int64 of its B x T positions, (N, width); all of it where None."""
    return x if rows is None else x.flatten(0, 1)[rows]


def _heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads x D) to (B, heads, T, D)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _merged(x: Tensor) -> Tensor:
    """(B, heads, T, D) to (B, T, heads x D)."""
    return x.transpose(1, 2).flatten(-2)
