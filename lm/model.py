"""The transformer: one attention, one MLP, one block, a trunk of blocks, and a small head.

Axes: B sequences, T positions, H heads, D components a head, V vocabulary entries. Everything else that a
model needs lives beside this file: attention backends, losses, initialisation, the KV cache, metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.attention import BACKENDS
from lm.config import ModelConfig
from lm.initialization import initialize
from lm.layers import Embedding, Linear, build_norm
from lm.losses import linear_cross_entropy
from lm.positions import rotary_tables, rotate, sinusoidal_table

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q, k, v), each (B, H, T, D), to (B, H, T, D): a backend with its mask, or a KV cache's layer."""

Rotary = tuple[Tensor, Tensor] | None
"""Cosine and sine (T, D) of the positions read, where positions are rotary."""


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, 3.2.2). What attends to what is `attend`'s business."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = Linear(config.width, config.width, config.bias)
        self.key = Linear(config.width, config.width, config.bias)
        self.value = Linear(config.width, config.width, config.bias)
        self.output = Linear(config.width, config.width, config.bias)

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, D)
            for projection in (self.query, self.key, self.value)
        )
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        mixed = attend(q, k, v)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two matrices around a nonlinearity; swiglu gates the first with a third (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.up = Linear(config.width, config.hidden_width, config.bias)
        if self.activation == "swiglu":
            self.gate = Linear(config.width, config.hidden_width, config.bias)
        self.down = Linear(config.hidden_width, config.width, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.activation == "swiglu":
            return self.down(F.silu(self.gate(x)) * self.up(x))
        approximate = "tanh" if self.activation == "gelu_tanh" else "none"
        return self.down(F.gelu(self.up(x), approximate=approximate))


class Block(nn.Module):
    """Attention, then the MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.attention_norm = build_norm(config)
        self.attention = Attention(config)
        self.mlp_norm = build_norm(config)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rotary: Rotary, attend: Attend) -> Tensor:
        if self.pre_norm:
            x = x + self.dropout(self.attention(self.attention_norm(x), rotary, attend))
            return x + self.dropout(self.mlp(self.mlp_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, rotary, attend)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))


class PositionalEmbedding(nn.Module):
    """What is added to the token embedding: learned rows, fixed sinusoids, or nothing."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.positions
        if self.kind == "learned":
            self.learned = Embedding(config.context_length, config.width)
        elif self.kind == "sinusoidal":
            self.scale = math.sqrt(config.width)  # else the unit-sized sinusoids drown the embedding
            table = sinusoidal_table(config.context_length, config.width)
            self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: slice) -> Tensor:
        if self.kind == "learned":
            return x + self.learned.weight[positions]
        if self.kind == "sinusoidal":
            return x * self.scale + self.table[positions]
        return x


class Trunk(nn.Module):
    """Embedding, blocks, and (pre-norm) the final norm: token ids to hidden states."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.width)
        self.positional = PositionalEmbedding(config)
        self.embedding_norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = build_norm(config) if config.norm_position == "pre" else nn.Identity()
        if config.positions == "rotary":
            cosine, sine = rotary_tables(config.context_length, config.head_width, config.rotary_base)
            self.register_buffer("cosine", cosine, persistent=False)
            self.register_buffer("sine", sine, persistent=False)

    def forward(
        self, ids: Tensor, dtype: torch.dtype, start: int = 0, attends: Sequence[Attend] | None = None
    ) -> Tensor:
        stop = start + ids.shape[-1]
        if stop > self.config.context_length:
            raise ValueError(
                f"{stop} positions given to a model of model.context_length={self.config.context_length}: "
                "give fewer tokens, or build the model with a longer context"
            )
        positions = slice(start, stop)
        attends = attends or [self.default_attend()] * len(self.blocks)
        x = self.embedding_norm(self.positional(self.embedding(ids), positions))
        x = self.dropout(x.to(dtype))
        rotary = self.rotary(positions, dtype)
        for block, attend in zip(self.blocks, attends, strict=True):
            x = block(x, rotary, attend)
        return self.final_norm(x)

    def rotary(self, positions: slice, dtype: torch.dtype) -> Rotary:
        if self.config.positions != "rotary":
            return None
        return self.cosine[positions].to(dtype), self.sine[positions].to(dtype)

    def default_attend(self) -> Attend:
        dropout = self.config.dropout if self.training else 0.0
        return partial(BACKENDS[self.config.attention], causal=self.config.causal, dropout=dropout)


class NextTokenHead(nn.Module):
    """Hidden states go to the output matrix as they are; it is the embedding where tied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = None if config.tied_head else nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.bias = None

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


class MaskedTokenHead(nn.Module):
    """BERT's transform before the output matrix: dense, exact GELU, norm; and a bias for each entry."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width, config.bias)
        self.norm = build_norm(config)
        self.weight = None if config.tied_head else nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(hidden)))


class LanguageModel(nn.Module):
    """A trunk and its head. `model(ids)` gives hidden states; `logits` and `loss` take (some of) them.

    The caller may set `compute_dtype` (float32, bfloat16; float64 after `model.double()`). Weights are
    allocated but not filled: `build_model` does both.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise ValueError("model.vocab_size is 0: set it to the size of the tokenizer's vocabulary")
        self.config = config
        self.compute_dtype = torch.float32
        self.trunk = Trunk(config)
        self.head = NextTokenHead(config) if config.architecture == "decoder" else MaskedTokenHead(config)

    def forward(self, ids: Tensor, start: int = 0, attends: Sequence[Attend] | None = None) -> Tensor:
        """ids (B, T) int64 to hidden states (B, T, width) of `compute_dtype`.

        `start` is the position of the first id, and `attends` replaces the attention of each block: with
        them a KV cache reads on where it stopped. Raises ValueError past the context length.
        """
        return self.trunk(ids, self.compute_dtype, start, attends)

    def output_weight(self) -> Tensor:
        """The output matrix (V, width), float32."""
        return self.trunk.embedding.weight if self.head.weight is None else self.head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., width) to unnormalised log-probabilities (..., V), in the dtype of hidden."""
        bias = None if self.head.bias is None else self.head.bias.to(hidden.dtype)
        return F.linear(self.head(hidden), self.output_weight().to(hidden.dtype), bias)

    def loss(self, rows: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum over rows of weight times -ln p(target): nats, a float32 scalar.

        rows (N, width) hidden states, targets (N,) int64, weights (N,) float32, 1 where left out.
        """
        return linear_cross_entropy(self.head(rows), self.output_weight(), targets, self.head.bias, weights)


def build_model(config: ModelConfig, seed: int) -> LanguageModel:
    """A float32 model on the CPU whose weights are a function of (config, seed) alone."""
    model = LanguageModel(config)
    initialize(model, torch.Generator().manual_seed(seed))
    return model
