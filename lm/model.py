"""Stacks of blocks, and the language model: decoder, encoder or encoder-decoder.

Axes: B sequences, T positions, S source positions, H heads, D features a head, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lm.attention.backends import fused_kernels
from lm.attention.patterns import attention_pattern
from lm.blocks import Block
from lm.config import ModelConfig
from lm.heads import MaskedTokenHead, NextTokenHead
from lm.initialization import Initializer
from lm.layer_groups import distinct_layers
from lm.layers import Component, Embedding, build_norm
from lm.masks import Mask
from lm.mixers.attention import Attention, CrossAttend, KeysValues
from lm.mixers.mixer import Mix, check_mixers
from lm.position_checks import IN_SCORES, UNBOUNDED
from lm.positions import PositionalEmbedding, Rows, rotary_tables, score_bias
from lm.shared_weights import save_once, share_weights


class Stack(Component):
    """Positions, blocks and, in pre-norm models, the final norm: embedded tokens to hidden states."""

    own_component = "embedding"  # the scales of skips from the embedding

    def __init__(self, config: ModelConfig, layers: int, *, causal: bool, cross: bool) -> None:
        """`cross`: whether every block also attends to an encoder's output."""
        super().__init__()
        check_mixers(config)
        self.config = config
        self.causal = causal
        self.recompute = False
        """Whether training keeps only the inputs of blocks, and runs each block again in the backward pass."""
        self.positional = PositionalEmbedding(config)
        self.rotary = rotary_tables(config)
        self.relative = score_bias(config, causal)
        self.pattern = attention_pattern(config)
        self.embedding_norm = build_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        kv_width = config.key_value_heads * config.head_features
        tables = range(config.value_embeddings)
        self.value_embeddings = nn.ModuleList(Embedding(config.vocab_size, kv_width) for _ in tables)
        blocks = nn.ModuleList(
            Block(
                config,
                index=i,
                causal=causal,
                cross=cross,
                residual_writes=layers * (1 + config.mlp + cross),
                skip=config.stochastic_depth * (i + 1) / layers,
                value_embedding=min(i, layers - 1 - i) in tables,
                normalized=config.embedding_norm and i == 0,
            )
            for i in range(layers)
        )
        self.blocks = cast("Sequence[Block]", blocks)  # a ModuleList does not know its type
        if config.embedding_skips:
            self.residual_scales = nn.Parameter(torch.empty(layers))
            self.embedding_scales = nn.Parameter(torch.empty(layers))
        self.final_norm = build_norm(config) if config.norm_places.final else nn.Identity()
        share_weights(self)
        save_once(self)

    def forward(
        self,
        x: Tensor,
        ids: Tensor,
        *,
        dtype: torch.dtype,
        mask: Mask,
        positions: Rows | None = None,
        mixes: Sequence[Mix] | None = None,
        cross_attends: Sequence[CrossAttend] | None = None,
        rows: Tensor | None = None,
        rotated: bool = True,
    ) -> Tensor:
        """Embedded tokens x (B, T, width) of `ids` (B, T) to hidden states (B, T, width) of `dtype`.

        `mixes`, one a block, replace mixing under `mask`, as a `MixerState` does. `positions` default to 0 to T - 1.
        `cross_attends`, one a block, attend to an encoder's output. With `rows` (N,) int64, indices of the B x T
        positions, returns only these rows: (N, width). `rotated`: whether rotary positions rotate queries and keys
        before the mix.
        """
        plain = positions is None and mixes is None and self._plain(x.shape[1], mask)
        positions = slice(0, x.shape[1]) if positions is None else positions
        self._check_length(positions)
        x = self.dropout(self.embedding_norm(self.positional(x, positions)).to(dtype))
        rotary = self.rotary(positions, dtype) if self.rotary is not None and rotated else None
        if mixes is None:
            bias = self.bias(slice(0, x.shape[1]), x.shape[1], dtype)
            mask = mask if bias is None else replace(mask, bias=bias)
            mixes = [block.mixer.parallel_form(mask) for block in self.blocks]
        embedded = x
        last = len(self.blocks) - 1
        with fused_kernels(x.device, plain, x.shape[1]):
            for i, (block, mix) in enumerate(zip(self.blocks, mixes, strict=True)):
                if self.config.embedding_skips:
                    x = self.residual_scales[i].to(dtype) * x + self.embedding_scales[i].to(dtype) * embedded
                cross_attend = None if cross_attends is None else cross_attends[i]
                value_embedding = self._value_embedding(i, ids, dtype)
                inputs = (rotary, mix, cross_attend, value_embedding, rows if i == last else None)
                x = self._recompute(block, plain, x, *inputs) if self.recompute else block(x, *inputs)
        hidden: Tensor = self.final_norm(x)
        return hidden

    def _recompute(self, block: Block, plain: bool, x: Tensor, *inputs: Any) -> Tensor:
        """Return the block's output; its activations are computed again in the backward pass (Chen et al. 2016)."""

        def run(x: Tensor, *inputs: Any) -> Tensor:
            with fused_kernels(x.device, plain, x.shape[1]):  # the backward pass must choose the same kernels
                output: Tensor = block(x, *inputs)
                return output

        output: Tensor = checkpoint(run, x, *inputs, use_reentrant=False, preserve_rng_state=block.random)
        return output

    @property
    def distinct_blocks(self) -> list[Block]:
        """The first block of each group that shares weights: all blocks if none shares."""
        return [self.blocks[layer] for layer in distinct_layers(self.config, len(self.blocks))]

    def bias(self, queries: slice | Tensor, keys: int, dtype: torch.dtype) -> Tensor | None:
        """Return the bias (1, H, T, S) on scores, if any: queries are at a slice or (T,) int64, keys at 0 to S - 1."""
        return None if self.relative is None else self.relative(queries, keys).to(dtype)

    @property
    def cross_attentions(self) -> list[Attention]:
        """The cross-attention of each block; empty without an encoder."""
        return [block.cross_attention for block in self.blocks if block.cross_attention is not None]

    def cross_keys_values(self, hidden: Tensor) -> list[KeysValues]:
        """Return keys and values of an encoder's hidden states (B, S, width) for each block's cross-attention."""
        return [cross.keys_values(hidden) for cross in self.cross_attentions]

    def cross_attends(self, hidden: Tensor, mask: Mask) -> list[CrossAttend]:
        """Return each block's cross-attention to an encoder's hidden states (B, S, width) under `mask`."""
        return [cross.cross_attend(hidden, mask) for cross in self.cross_attentions]

    def reset_parameters(self, initializer: Initializer) -> None:
        if self.config.embedding_skips:
            self.residual_scales.fill_(1.0)
            self.embedding_scales.zero_()

    def flops(self, length: float, outputs: float, source_length: float = 0) -> float:
        """Return the training FLOPs of one sequence of `length` tokens.

        Attention counts in full, masked or not, up to the window: 2 window - 1 positions if not causal. `outputs`:
        positions that leave the last block; `source_length`: positions that cross-attention reads.
        """
        window = self.config.window or length
        visible = min(length, window if self.causal else 2 * window - 1)
        total, trains, last = 0.0, False, len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            trains = trains or any(parameter.requires_grad for parameter in block.parameters())
            flops = block.flops(length, visible, source_length, outputs if i == last else length)
            total += flops if trains else flops / 3  # no backward pass reaches frozen blocks below all that trains
        return total

    def _plain(self, length: int, mask: Mask) -> bool:
        """Return whether all batches of this kind have one shape and no mask but causality.

        Blocks fill the context; prompts, pairs and texts to classify have all lengths.
        """
        biased = self.config.positions in IN_SCORES
        if self.config.architecture == "encoder-decoder" or biased or not isinstance(length, int):
            return False  # an exporter's symbolic length would be taken for the context length
        unmasked = mask.segments is None and mask.present is None and mask.pattern is None and mask.causal_rows is None
        unmasked = unmasked and not 0 < mask.window < length
        return unmasked and length == self.config.context_length

    def _value_embedding(self, block: int, ids: Tensor, dtype: torch.dtype) -> Tensor | None:
        table = min(block, len(self.blocks) - 1 - block)
        if table >= len(self.value_embeddings):
            return None
        values: Tensor = self.value_embeddings[table](ids)
        return values.to(dtype)

    def _check_length(self, positions: Rows) -> None:
        if self.config.positions in UNBOUNDED or isinstance(positions, Tensor):  # whoever makes a tensor checks it
            return
        if positions.stop > self.config.context_length:
            raise ValueError(
                f"{positions.stop} positions given to a model of model.context_length={self.config.context_length}: "
                "give fewer tokens, or build the model with a longer context"
            )


class LanguageModel(Component):
    """Embedding, one or two stacks, and a head. Calling it gives hidden states for `logits` and `loss`.

    The caller may set `compute_dtype`: float32, bfloat16, float16, or float64 after `model.double()`.
    """

    def __init__(self, config: ModelConfig, seed: int | None = 0) -> None:
        """Make a float32 model on the CPU, whose weights are a function of (config, seed).

        `seed`: None leaves the weights uninitialized, for a caller that loads weights.
        """
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
        head = MaskedTokenHead if config.architecture == "encoder" else NextTokenHead
        self.head: MaskedTokenHead | NextTokenHead = head(config, self.embedding)
        if seed is not None:
            self.initialize(Initializer(config, torch.Generator().manual_seed(seed)))

    @property
    def stack(self) -> Stack:
        """The stack whose hidden states the head reads."""
        stack = self.encoder if self.decoder is None else self.decoder
        assert stack is not None
        return stack

    def forward(
        self,
        ids: Tensor,
        source: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        present: Tensor | None = None,
        source_present: Tensor | None = None,
        types: Tensor | None = None,
        causal: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """ids (B, T) int64 to hidden states (B, T, width) of `compute_dtype`.

        With `rows` (N,) int64, indices of the B x T positions, returns these rows, (N, width), and the last block skips
        what the others do not need. An encoder-decoder also reads `source` (B, S) ids. `segments` (B, T) number the
        documents of a block, which do not attend to each other. `present` and `source_present`, bool, are False at
        padding. `types` (B, T) are token types, 0 by default. `causal` (B, 1) bool, for a decoder, is False at
        sequences that attend to both sides, as in GPT-BERT. Raises ValueError past the context length.
        """
        self._check_source(source)
        cross_attends = None
        if source is not None:
            cross_attends = self.stack.cross_attends(self.encode(source, source_present), Mask(present=source_present))
        x = self.embed(ids, types)
        mask = self.mask(self.stack, segments, present, causal)
        return self.stack(x, ids, dtype=self.compute_dtype, mask=mask, cross_attends=cross_attends, rows=rows)

    def encode(self, source: Tensor, present: Tensor | None = None) -> Tensor:
        """Return an encoder-decoder's encoding of `source` (B, S): (B, S, width) of `compute_dtype`."""
        assert self.encoder is not None
        mask = self.mask(self.encoder, None, present)
        return self.encoder(self.embed(source), source, dtype=self.compute_dtype, mask=mask)

    def embed(self, ids: Tensor, types: Tensor | None = None) -> Tensor:
        """ids (B, T) to embeddings (B, T, width) in the dtype of the weights."""
        x = self.embedding(ids)
        if self.token_types is None:
            return x
        return x + (self.token_types.weight[0] if types is None else self.token_types(types))

    def mask(
        self,
        stack: Stack,
        segments: Tensor | None = None,
        present: Tensor | None = None,
        causal: Tensor | None = None,
    ) -> Mask:
        """Return the mask of a stack's self-attention."""
        return Mask(
            causal=stack.causal and causal is None,
            causal_rows=None if causal is None else causal[:, 0],
            window=self.config.window,
            segments=segments,
            present=present,
            pattern=stack.pattern,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., width) to unnormalised log-probabilities (..., V), in the dtype of hidden."""
        return self.head.logits(hidden)

    def loss(
        self,
        rows: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> Tensor:
        """Return the sum over rows of weight times -ln p(target): nats, a float32 scalar.

        rows (N, width) hidden states, targets (N,) int64, weights (N,) float32, 1 by default; `label_smoothing` and
        `z_loss` as in `lm.losses`.
        """
        return self.head.loss(rows, targets, weights, label_smoothing, z_loss)

    def _check_source(self, source: Tensor | None) -> None:
        if (source is not None) != (self.config.architecture == "encoder-decoder"):
            raise ValueError(
                f"a model of model.architecture={self.config.architecture!r} was called "
                f"{'without' if source is None else 'with'} a source: an encoder-decoder reads one, no other does"
            )
