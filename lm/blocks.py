"""Attention, MLP and the block: the parts of all three architectures.

Axes: B sequences, T positions, S key positions, H query heads, G key-value heads, D features a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import GATED, ModelConfig
from lm.initialization import Initializer
from lm.layers import ACTIVATIONS, Component, LayerNorm, Linear, RMSNorm, build_norm
from lm.positions import Rotary, rotate

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q (B, H, T, D), k and v (B, G, T, D) to (B, H, T, D): a backend with its mask, or one layer of a KV cache."""
KeysValues = tuple[Tensor, Tensor]
"""Keys and values (B, G, S, D) of an encoder's output, for the cross-attention of one block."""
CrossAttend = Callable[[Tensor], Tensor]
"""q (B, H, T, D) to (B, H, T, D): a backend with the keys, values and mask of one block's cross-attention."""


class Attention(Component):
    """Multi-head attention (Vaswani et al. 2017, 3.2.2).

    Heads can share keys and values (Ainslie et al. 2023), and queries and keys can be normalised (Henry et al. 2020).
    The caller passes the attention function, which holds mask or cache.
    """

    component = "attention"

    def __init__(self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False) -> None:
        """Make the projections. `residual_writes`: see `Initializer.matrix`; `value_embedding`: whether to add one."""
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.key_value_heads
        query_width, kv_width = self.heads * config.head_features, self.kv_heads * config.head_features
        gain = 1.0 if config.scaled_attention else config.head_features**-0.5
        self.query = Linear(config.width, query_width, config.bias, gain=gain)
        self.key = Linear(config.width, kv_width, config.bias)
        self.value = Linear(config.width, kv_width, config.bias)
        self.output = Linear(query_width, config.width, config.bias, residual_writes)
        self.query_norm = RMSNorm(config.head_features, config.norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(config.head_features, config.norm_eps) if config.qk_norm else nn.Identity()
        self.value_scale = nn.Parameter(torch.empty(1)) if value_embedding else None

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        attend: Attend,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Self-attention of x (B, T, width) by `attend`: (B, T, width) in the dtype of x.

        `rotary` rotates queries and keys; `value_embedding` (B, T, G x D) is scaled and added to the values. With
        `rows` (N,) int64, indices of the B x T positions, returns only these rows: (N, width).
        """
        q, k, v = self.queries_keys_values(x)
        if value_embedding is not None:
            assert self.value_scale is not None
            v = v + self.value_scale.to(v.dtype) * _split_heads(value_embedding, self.kv_heads)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return self.output(only(_merge_heads(attend(q, k, v)), rows))

    def cross(self, x: Tensor, cross_attend: CrossAttend, rows: Tensor | None = None) -> Tensor:
        """Cross-attention of x (B, T, width): (B, T, width) in its dtype; `rows` as in `forward`."""
        return self.output(only(_merge_heads(cross_attend(self.queries(x))), rows))

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, T, D), keys and values (B, G, T, D) of x (B, T, width), before the rotation."""
        if x.device.type == "cpu":
            q, k = _split_heads(self.query(x), self.heads), _split_heads(self.key(x), self.kv_heads)
            return self.query_norm(q), self.key_norm(k), _split_heads(self.value(x), self.kv_heads)
        return self.joint_queries_keys_values(x)

    def joint_queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same as `queries_keys_values` from one matrix product, which uses a GPU better than three.

        Each step casts the weights anyway, so concatenating the copies costs little. Parameters and checkpoints stay
        separate.
        """
        layers = (self.query, self.key, self.value)
        weight = torch.cat([layer.weight.to(x.dtype) for layer in layers])
        biases = [layer.bias.to(x.dtype) for layer in layers if layer.bias is not None]
        return self.split(F.linear(x, weight, torch.cat(biases) if biases else None))

    def split(self, joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, T, D), keys and values (B, G, T, D), normalised if configured.

        `joint` is (B, T, (H + 2 G) D).
        """
        parts = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = _split_heads(joint, sum(parts)).split(parts, dim=1)
        return self.query_norm(q), self.key_norm(k), v

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, width) to (B, H, T, D)."""
        q: Tensor = self.query_norm(_split_heads(self.query(x), self.heads))
        return q

    def keys_values(self, x: Tensor) -> KeysValues:
        """(B, S, width) to keys and values (B, G, S, D)."""
        return self.key_norm(_split_heads(self.key(x), self.kv_heads)), _split_heads(self.value(x), self.kv_heads)

    def reset_parameters(self, initializer: Initializer) -> None:
        if self.value_scale is not None:
            self.value_scale.fill_(0.5)

    def flops(self, queries: float, keys: float, visible: float, outputs: float) -> float:
        """Return the training FLOPs of `queries` positions over `keys` key positions, of which each sees `visible`.

        `outputs`: positions that the output matrix is applied to.
        """
        projections = self.query.flops(queries) + self.key.flops(keys) + self.value.flops(keys)
        scores = 12 * self.query.weight.shape[0] * queries * visible
        return projections + scores + self.output.flops(outputs)


class MLP(Component):
    """Two matrices around an activation; swiglu and geglu gate the first with a third (Shazeer 2020)."""

    component = "mlp"

    def __init__(self, config: ModelConfig, residual_writes: int = 1) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = Linear(config.width, config.hidden_width, config.bias)
        self.gate = Linear(config.width, config.hidden_width, config.bias) if config.activation in GATED else None
        self.down = Linear(config.hidden_width, config.width, config.bias, residual_writes)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) to (..., width), in the dtype of x."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of `rows` positions."""
        gate = 0 if self.gate is None else self.gate.flops(rows)
        return self.up.flops(rows) + gate + self.down.flops(rows)


class Block(Component):
    """Self-attention, cross-attention in a decoder with an encoder, and MLP, each added to the residual stream.

    With `config.residual` parallel, the MLP reads the stream before attention (Wang and Komatsuzaki 2021).
    """

    def __init__(
        self, config: ModelConfig, *, cross: bool, skip: float, value_embedding: bool, residual_writes: int = 1
    ) -> None:
        """`skip`: the probability that a sequence skips a sub-layer in training."""
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.parallel = config.residual == "parallel"
        self.attention_norm = build_norm(config)
        self.attention = Attention(config, residual_writes, value_embedding)
        self.cross_norm = build_norm(config) if cross else None
        self.cross_attention = Attention(config, residual_writes) if cross else None
        self.mlp_norm = build_norm(config) if config.mlp else None
        self.mlp = MLP(config, residual_writes) if config.mlp else None
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
        """Residual stream x (B, T, width) to the stream after the block, in the dtype of x.

        `rotary`, `attend` and `value_embedding` as in `Attention.forward`; `cross_attend` as in `Attention.cross`. With
        `rows` (N,) int64, indices of the B x T positions, returns (N, width): all positions are attended to, and later
        sub-layers run on `rows` only.
        """
        if rows is not None and self.skip and self.training:  # stochastic depth needs whole sequences
            # Not self(...): FSDP would gather the block once more, out of step with the other ranks.
            return only(self.forward(x, rotary, attend, cross_attend, value_embedding), rows)
        self_rows = rows if self.cross_attention is None else None
        update = self.attention(self._normed(x, self.attention_norm), rotary, attend, value_embedding, self_rows)
        before = only(x, self_rows)
        x = self._added(before, update, self.attention_norm)
        if self.cross_attention is not None:
            assert self.cross_norm is not None and cross_attend is not None
            update = self.cross_attention.cross(self._normed(x, self.cross_norm), cross_attend, rows)
            x = self._added(only(x, rows), update, self.cross_norm)
        if self.mlp is not None:
            assert self.mlp_norm is not None
            read = before if self.parallel else x
            x = self._added(x, self.mlp(self._normed(read, self.mlp_norm)), self.mlp_norm)
        return x

    def _normed(self, x: Tensor, norm: LayerNorm | RMSNorm) -> Tensor:
        """Return the input of a sub-layer."""
        return norm(x) if self.pre_norm else x

    def _added(self, x: Tensor, update: Tensor, norm: LayerNorm | RMSNorm) -> Tensor:
        """Return the residual stream after a sub-layer's update."""
        x = x + self._drop(update)
        return x if self.pre_norm else norm(x)

    def _drop(self, update: Tensor) -> Tensor:
        """Apply dropout and stochastic depth (Huang et al. 2016).

        Stochastic depth zeroes the whole update of some sequences and enlarges the others, so that the mean stays.
        """
        update = self.dropout(update)
        if self.skip == 0.0 or not self.training:
            return update
        survives = torch.rand(len(update), 1, 1, device=update.device) >= self.skip
        return update * (survives / (1.0 - self.skip)).to(update.dtype)

    def flops(self, length: float, visible: float, source_length: float, outputs: float) -> float:
        """Return the training FLOPs of one sequence of `length` positions, of which each sees `visible`.

        Cross-attention reads `source_length` positions. Only `outputs` positions leave the block.
        """
        if self.cross_attention is None:
            flops = self.attention.flops(length, length, visible, outputs)
        else:
            flops = self.attention.flops(length, length, visible, length)
            flops += self.cross_attention.flops(length, source_length, source_length, outputs)
        return flops + (0 if self.mlp is None else self.mlp.flops(outputs))


def only(x: Tensor, rows: Tensor | None) -> Tensor:
    """Return x (B, T, width) at `rows` (N,) int64, indices of its B x T positions: (N, width). None keeps all of x."""
    return x if rows is None else x.flatten(0, 1)[rows]


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads x D) to (B, heads, T, D)."""
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, D) to (B, T, heads x D)."""
    return x.transpose(1, 2).flatten(-2)
