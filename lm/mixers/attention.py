"""Attention: the sub-layer in which each position reads the values of the positions that its query matches.

Axes: B sequences, T positions, S key positions, H query heads, G key-value heads, D features a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.attention.backends import BACKENDS, masked_scores
from lm.attention.tiles import default_scale
from lm.config import OPTIONAL, ModelConfig
from lm.decoding.cache import KVCache, attend_all
from lm.initialization import Initializer
from lm.layers import Linear, RMSNorm
from lm.masks import Mask
from lm.mixers.mixer import Mixer, mixer_option, select_rows
from lm.position_checks import relative_rows
from lm.positions import Rotary, key_offsets, rotate

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q (B, H, T, D), k and v (B, G, T, D) to (B, H, T, D): a backend with its mask, or one layer of a KV cache."""
KeysValues = tuple[Tensor, Tensor]
"""Keys and values (B, G, S, D) of an encoder's output, for the cross-attention of one block."""
CrossAttend = Callable[[Tensor], Tensor]
"""q (B, H, T, D) to (B, H, T, D): a backend with the keys, values and mask of one block's cross-attention."""


class Attention(Mixer):
    """Multi-head attention (Vaswani et al. 2017, 3.2.2).

    Heads can share keys and values (Ainslie et al. 2023), queries and keys can be normalised (Henry et al. 2020), and
    each distance can have a key (Shaw et al. 2018).
    The caller passes the attention function, which holds the mask or the cache.
    """

    component = "attention"
    fields: ClassVar[tuple[str, ...]] = (*OPTIONAL, "positions")
    scored = True
    bidirectional = True
    state = KVCache
    has_pattern: ClassVar[bool] = True
    """Whether outputs are values weighted by the softmax of `scores`."""
    one_product: bool | None = None
    """Whether one matrix product computes queries, keys and values, from a copy of their weights. None: only on a GPU,
    which one large product uses better than three small ones."""

    def __init__(
        self,
        config: ModelConfig,
        residual_writes: int = 1,
        value_embedding: bool = False,
        gain: float = 1.0,
        cross: bool = False,
    ) -> None:
        """Make the projections.

        `residual_writes` and `gain`, of values and outputs: see `Initializer.matrix`; `value_embedding`: whether to add
        one; `cross`: whether keys come from another sequence, whose positions are unrelated.
        """
        super().__init__(config)
        self.config = config
        self.heads, self.kv_heads = config.heads, config.key_value_heads
        query_width, kv_width = self.heads * config.head_features, self.kv_heads * config.head_features
        unscaled = not config.scaled_attention and config.initialization == "t5"
        query_gain = config.head_features**-0.5 if unscaled else 1.0
        self.query = Linear(config.width, query_width, config.bias, gain=query_gain)
        self.key = Linear(config.width, kv_width, config.bias)
        self.value = Linear(config.width, kv_width, config.bias, gain=gain)
        self.output = Linear(query_width, config.width, config.bias, residual_writes, gain)
        self.query_norm = RMSNorm(config.head_features, config.norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(config.head_features, config.norm_eps) if config.qk_norm else nn.Identity()
        self.value_scale = nn.Parameter(torch.empty(1)) if value_embedding else None
        relative = config.positions == "relative-keys" and "positions" in self.fields and not cross
        self.relative_keys = Linear(config.head_features, relative_rows(config), bias=False) if relative else None

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Attend,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return self-attention of x (B, T, width), computed by `mix`: (B, T, width) in the dtype of x.

        `rotary` rotates queries and keys; `value_embedding` (B, T, G x D) is scaled and added to the values. With
        `rows` (N,) int64, indices of the B x T positions, returns only these rows: (N, width).
        """
        layers = (self.query, self.key, self.value)
        if any(type(layer) is not Linear for layer in layers):  # a layer with an adapter is more than a matrix
            q, k, v = (layer(x) for layer in layers)
            return self.attend(q, k, v, rotary, mix, value_embedding, rows)
        weights = [layer.weight.to(x.dtype) for layer in layers]
        biases = [None if layer.bias is None else layer.bias.to(x.dtype) for layer in layers]
        if self.one_product or (self.one_product is None and x.device.type != "cpu"):
            given = [bias for bias in biases if bias is not None]
            joint = F.linear(x, torch.cat(weights), torch.cat(given) if given else None)
            q, k, v = joint.split([len(weight) for weight in weights], dim=-1)
        else:  # written out, so that the first product is few calls deep
            q = F.linear(x, weights[0], biases[0])
            k = F.linear(x, weights[1], biases[1])
            v = F.linear(x, weights[2], biases[2])
        return self.attend(q, k, v, rotary, mix, value_embedding, rows)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotary: Rotary,
        mix: Attend,
        value_embedding: Tensor | None,
        rows: Tensor | None,
    ) -> Tensor:
        """Return the output of `forward` from its projections: q (B, T, H x D), k and v (B, T, G x D)."""
        q, k = self.query_norm(_split_heads(q, self.heads)), self.key_norm(_split_heads(k, self.kv_heads))
        v = _split_heads(v, self.kv_heads)
        if value_embedding is not None:
            assert self.value_scale is not None
            v = v + self.value_scale.to(v.dtype) * _split_heads(value_embedding, self.kv_heads)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return self.output(select_rows(_merge_heads(mix(q, k, v)), rows))

    def cross(self, x: Tensor, cross_attend: CrossAttend, rows: Tensor | None = None) -> Tensor:
        """Return cross-attention of x (B, T, width): (B, T, width) in its dtype; `rows` as in `forward`."""
        return self.output(select_rows(_merge_heads(cross_attend(self.queries(x))), rows))

    def cross_attend(self, hidden: Tensor, mask: Mask) -> CrossAttend:
        """Return cross-attention to an encoder's hidden states (B, S, width) under `mask`."""
        keys, values = self.keys_values(hidden)
        return partial(self.parallel_form(mask), k=keys, v=values)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries (B, H, T, D) of x (B, T, width)."""
        q: Tensor = self.query_norm(_split_heads(self.query(x), self.heads))
        return q

    def keys_values(self, x: Tensor) -> KeysValues:
        """Return the keys and values (B, G, S, D) of x (B, S, width)."""
        return self.key_norm(_split_heads(self.key(x), self.kv_heads)), _split_heads(self.value(x), self.kv_heads)

    def reset_parameters(self, initializer: Initializer) -> None:
        if self.value_scale is not None:
            self.value_scale.fill_(0.5)

    @property
    def scale(self) -> float | None:
        """The factor of the scores; None: 1 / sqrt(D)."""
        return None if self.config.scaled_attention else 1.0

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """Return the scores (B, H, T, S) of q (B, H, T, D) and k (B, G, S, D): minus infinity at hidden keys."""
        return masked_scores(q, k, self.biased(mask, q, k.shape[-2]), self.scale)

    def parallel_form(self, mask: Mask) -> partial[Tensor]:
        attend = BACKENDS[self.config.attention] if self.relative_keys is None else self._with_relative_keys
        dropout = self.config.dropout if self.training else 0.0
        return partial(attend, mask=mask, scale=self.scale, dropout=dropout)

    def attend_source(self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None) -> Tensor:
        """Return cross-attention (B, H, T, D) of q (B, H, T, D) to cached k and v (B, G, S, D).

        `added` to the scores: None or (B, 1, 1, S). The result has the dtype of q.
        """
        return attend_all(q, k, v, added, self.scale)

    def _with_relative_keys(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **options: Any) -> Tensor:
        return BACKENDS[self.config.attention](q, k, v, self.biased(mask, q, k.shape[-2]), **options)

    def biased(self, mask: Mask, q: Tensor, keys: int) -> Mask:
        """Return the mask with the scores of relative keys, if any. Queries q are the last T of `keys` positions."""
        if self.relative_keys is None:
            return mask
        offsets = key_offsets(slice(keys - q.shape[-2], keys), keys, q.device)
        return replace(mask, bias=self.relative_scores(q, offsets))

    def relative_scores(self, q: Tensor, offsets: Tensor) -> Tensor:
        """Return q . a(clip(offset)) / sqrt(D), which Shaw et al. 2018 add to the scores (equation 4): (B, H, T, S).

        Row r of the relative keys is a(r - k), with k = `config.relative_distance`; all heads share it. `offsets`,
        (T, S) or (B, 1, T, S) int64, are key position - query position. There are no relative values.
        """
        assert self.relative_keys is not None
        farthest = self.config.relative_distance
        by_row = self.relative_keys(q.transpose(1, 2)).transpose(1, 2)  # (B, H, T, R)
        by_row = by_row * (default_scale(q, None) if self.config.scaled_attention else 1.0)
        rows = offsets.clamp(-farthest, by_row.shape[-1] - 1 - farthest) + farthest
        return by_row.gather(-1, rows.expand(*by_row.shape[:-1], rows.shape[-1]))

    def flops(self, length: float, visible: float, outputs: float, keys: float | None = None) -> float:
        """As `Mixer.flops`; cross-attention has `keys` key positions."""
        keys = length if keys is None else keys
        projections = self.query.flops(length) + self.key.flops(keys) + self.value.flops(keys)
        scores = 12 * self.query.weight.shape[0] * length * visible
        relative = 0 if self.relative_keys is None else self.relative_keys.flops(self.heads * length)
        return projections + scores + relative + self.output.flops(outputs)


MIXER = Attention


def require_attention(config: ModelConfig, what: str) -> None:
    """Raise ValueError for other mixers, because `what` needs queries, keys and values in all layers."""
    for mixer in config.mixer_pattern:
        if mixer != "attention":
            found = mixer_option(config, mixer)
            raise ValueError(f"{found}, but {what} needs a model with model.mixer='attention'")


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads x D) to (B, heads, T, D)."""
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, D) to (B, T, heads x D)."""
    return x.transpose(1, 2).flatten(-2)
