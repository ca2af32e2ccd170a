"""Stacks of blocks, and the three ways to assemble them: decoder, encoder, encoder-decoder.

Axes: B sequences, T positions, S positions of a source, H heads, D components a head, V vocabulary entries.
Everything else that a model needs lives beside this file: blocks, heads, attention backends, losses,
initialisation, the KV cache, metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.attention.backends import BACKENDS, Backend
from lm.blocks import Attend, Block, CrossAttend, KeysValues
from lm.config import ModelConfig
from lm.heads import MaskedTokenHead, NextTokenHead
from lm.initialization import initialize
from lm.layers import Embedding, build_norm
from lm.losses import linear_cross_entropy
from lm.masks import Mask
from lm.positions import PositionalEmbedding, RelativeBias, RotaryTables, Rows


class Stack(nn.Module):
    """Positions, blocks, and (pre-norm) the final norm: embedded tokens to hidden states."""

    def __init__(self, config: ModelConfig, layers: int, *, causal: bool, cross: bool) -> None:
        """`cross`: whether every block also attends to the hidden states of an encoder."""
        super().__init__()
        self.config = config
        self.causal = causal
        self.positional = PositionalEmbedding(config)
        self.rotary = RotaryTables(config) if config.positions == "rotary" else None
        self.relative = RelativeBias(config, causal) if config.positions == "relative" else None
        self.embedding_norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        kv_width = config.key_value_heads * config.head_width
        tables = range(config.value_embeddings)
        self.value_embeddings = nn.ModuleList(Embedding(config.vocab_size, kv_width) for _ in tables)
        self.blocks = nn.ModuleList(
            Block(
                config,
                cross=cross,
                skip=config.stochastic_depth * (i + 1) / layers,
                value_embedding=min(i, layers - 1 - i) in tables,
            )
            for i in range(layers)
        )
        if config.embedding_skips:
            self.residual_scales = nn.Parameter(torch.empty(layers))
            self.embedding_scales = nn.Parameter(torch.empty(layers))
        self.final_norm = build_norm(config) if config.norm_position == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        ids: Tensor,
        *,
        dtype: torch.dtype,
        mask: Mask,
        positions: Rows | None = None,
        attends: Sequence[Attend] | None = None,
        cross_attends: Sequence[CrossAttend] | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, width), the embedding of `ids` (B, T), to hidden states of `dtype`: (B, T, width), or with `rows`
        (N,) int64, numbers of B x T positions, only theirs (N, width).

        `mask` says which positions see which; `attends` (one a block) replaces attention under that mask, and with
        other `positions` than 0 to T - 1 a KV cache reads on where it stopped. `cross_attends`: what each block's
        cross-attention does.
        """
        positions = slice(0, x.shape[1]) if positions is None else positions
        self._check_length(positions)
        x = self.dropout(self.embedding_norm(self.positional(x, positions)).to(dtype))
        rotary = None if self.rotary is None else self.rotary(positions, dtype)
        attends = attends or [self._attend(x, mask)] * len(self.blocks)
        cross_attends = cross_attends or [None] * len(self.blocks)
        embedded = x
        last = len(self.blocks) - 1
        for i, (block, attend, cross_attend) in enumerate(zip(self.blocks, attends, cross_attends, strict=True)):
            if self.config.embedding_skips:
                x = self.residual_scales[i].to(dtype) * x + self.embedding_scales[i].to(dtype) * embedded
            value_embedding = self._value_embedding(i, ids, dtype)
            x = block(x, rotary, attend, cross_attend, value_embedding, rows if i == last else None)
        return self.final_norm(x)

    def backend(self) -> Backend:
        """Attention as configured: q, k, v and a mask to (B, H, T, D)."""
        return partial(
            BACKENDS[self.config.attention],
            scale=None if self.config.scaled_attention else 1.0,
            dropout=self.config.dropout if self.training else 0.0,
        )

    def bias(self, queries: slice, keys: int, dtype: torch.dtype) -> Tensor | None:
        """T5's bias (1, H, T, S) on the scores of queries at those positions and keys at 0 to S - 1, if any."""
        return None if self.relative is None else self.relative(queries, keys).to(dtype)

    def cross_keys_values(self, hidden: Tensor) -> list[KeysValues]:
        """Keys and values of an encoder's hidden states (B, S, width) for each block's cross-attention."""
        return [block.cross_attention.keys_values(hidden) for block in self.blocks]

    def cross_attends(self, keys_values: Sequence[KeysValues], mask: Mask) -> list[CrossAttend]:
        """Cross-attention of each block over its keys and values; `mask` hides padding of the source."""
        backend = self.backend()
        return [partial(_cross_attend, backend, pair, mask) for pair in keys_values]

    def _attend(self, x: Tensor, mask: Mask) -> Attend:
        length = x.shape[1]
        bias = self.bias(slice(0, length), length, x.dtype)
        return partial(self.backend(), mask=mask if bias is None else replace(mask, bias=bias))

    def _value_embedding(self, block: int, ids: Tensor, dtype: torch.dtype) -> Tensor | None:
        table = min(block, len(self.blocks) - 1 - block)
        return self.value_embeddings[table](ids).to(dtype) if table < len(self.value_embeddings) else None

    def _check_length(self, positions: Rows) -> None:
        """Relative positions, and no positions, have no last one; a tensor of positions is its maker's business."""
        if self.config.positions in ("relative", "none") or isinstance(positions, Tensor):
            return
        if positions.stop > self.config.context_length:
            raise ValueError(
                f"{positions.stop} positions given to a model of model.context_length={self.config.context_length}: "
                "give fewer tokens, or build the model with a longer context"
            )


class LanguageModel(nn.Module):
    """An embedding, one or two stacks, and a head. `model(ids)` gives hidden states; `logits` and `loss` take (some
    of) them.

    The caller may set `compute_dtype` (float32, bfloat16, float16; float64 after `model.double()`). Weights are
    allocated but not filled: `build_model` does both.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise ValueError("model.vocab_size is 0: set it to the size of the tokenizer's vocabulary")
        self.config = config
        self.compute_dtype = torch.float32
        both = config.architecture == "encoder-decoder"
        self.embedding = Embedding(config.vocab_size, config.width)
        self.token_types = Embedding(config.token_types, config.width) if config.token_types else None
        self.encoder = self.decoder = None
        if config.architecture != "decoder":
            self.encoder = Stack(config, config.layers, causal=False, cross=False)
        if config.architecture != "encoder":
            self.decoder = Stack(config, config.decoder_layers or config.layers, causal=True, cross=both)
        self.head = MaskedTokenHead(config) if config.architecture == "encoder" else NextTokenHead(config)

    @property
    def stack(self) -> Stack:
        """The stack whose hidden states the head reads."""
        return self.encoder if self.decoder is None else self.decoder

    def forward(
        self,
        ids: Tensor,
        source: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        present: Tensor | None = None,
        source_present: Tensor | None = None,
        types: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """ids (B, T) int64 to hidden states (B, T, width) of `compute_dtype`; with `rows` (N,) int64, numbers of
        B x T positions, only theirs (N, width): of the others the last block computes no more than is attended to.

        An encoder-decoder also reads `source` (B, S) ids. `segments` (B, T) numbers the documents of a block, which
        do not see each other; `present` and `source_present`, bool, are False at padding; `types` (B, T) are the token
        types where the model has them, 0 where left out. Raises ValueError past the context length.
        """
        self._check_source(source)
        cross_attends = None
        if source is not None:
            keys_values = self.decoder.cross_keys_values(self.encode(source, source_present))
            cross_attends = self.decoder.cross_attends(keys_values, Mask(present=source_present))
        x = self.embed(ids, types)
        mask = self.mask(self.stack, segments, present)
        return self.stack(x, ids, dtype=self.compute_dtype, mask=mask, cross_attends=cross_attends, rows=rows)

    def encode(self, source: Tensor, present: Tensor | None = None) -> Tensor:
        """What an encoder-decoder's encoder makes of `source` (B, S): (B, S, width) of `compute_dtype`."""
        mask = self.mask(self.encoder, None, present)
        return self.encoder(self.embed(source), source, dtype=self.compute_dtype, mask=mask)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids (B, T) to the rows of the embeddings (B, T, width) in the dtype of the weights."""
        x = self.embedding(ids)
        if self.token_types is None:
            return x
        return x + (self.token_types.weight[0] if types is None else self.token_types(types))

    def mask(self, stack: Stack, segments: Tensor | None = None, present: Tensor | None = None) -> Mask:
        """What the positions of a stack see."""
        return Mask(causal=stack.causal, window=self.config.window, segments=segments, present=present)

    def output_weight(self) -> Tensor:
        """The output matrix (V, width), float32."""
        return self.embedding.weight if self.head.weight is None else self.head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., width) to unnormalised log-probabilities (..., V), in the dtype of hidden."""
        bias = None if self.head.bias is None else self.head.bias.to(hidden.dtype)
        logits = F.linear(self.head(hidden), self.output_weight().to(hidden.dtype), bias)
        cap = self.config.soft_cap
        return cap * torch.tanh(logits / cap) if cap else logits

    def loss(
        self,
        rows: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> Tensor:
        """Sum over rows of weight times -ln p(target): nats, a float32 scalar.

        rows (N, width) hidden states, targets (N,) int64, weights (N,) float32, 1 where left out;
        `label_smoothing` and `z_loss` as in `lm.losses`.
        """
        return linear_cross_entropy(
            self.head(rows),
            self.output_weight(),
            targets,
            self.head.bias,
            weights,
            soft_cap=self.config.soft_cap,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )

    def _check_source(self, source: Tensor | None) -> None:
        if (source is not None) != (self.config.architecture == "encoder-decoder"):
            raise ValueError(
                f"a model of model.architecture={self.config.architecture!r} was called "
                f"{'without' if source is None else 'with'} a source: an encoder-decoder reads one, no other does"
            )


def _cross_attend(backend: Backend, keys_values: KeysValues, mask: Mask, q: Tensor) -> Tensor:
    return backend(q, *keys_values, mask)


def build_model(config: ModelConfig, seed: int) -> LanguageModel:
    """A float32 model on the CPU whose weights are a function of (config, seed) alone."""
    model = LanguageModel(config)
    initialize(model, torch.Generator().manual_seed(seed))
    return model
