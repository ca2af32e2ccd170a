"""Caches of decoding: the state of the mixers, such as keys and values, and the keys and values of a source.

Models do not know these caches. They take a function for each block that mixes its positions. The functions made here
also update the cache.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lm.masks import Mask
from lm.positions import Rows, key_offsets

if TYPE_CHECKING:
    from lm.blocks import Block
    from lm.mixers.attention import Attend, Attention, CrossAttend, KeysValues
    from lm.mixers.mixer import Mix
    from lm.model import Stack


class MixerState(ABC):
    """The state of a stack's mixers after the positions that they have read, such as keys and values.

    Sequences of different lengths end together: the first `padding` (B,) int64 positions of each are padding, which
    changes no state.
    """

    rotates: ClassVar[bool] = False
    """Whether the functions of `mixes` rotate queries and keys, so that the model leaves them without rotation."""

    @abstractmethod
    def __init__(
        self,
        stack: Stack,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        padding: Tensor | None = None,
        blocks: Sequence[Block] | None = None,
    ) -> None:
        """Make the empty state of `batch` sequences of at most `capacity` tokens, in the `dtype` of activations.

        `blocks`: blocks of the stack whose mixers it is the state of; None: all.
        """
        self.stack = stack
        self.blocks = stack.blocks if blocks is None else blocks
        self.capacity = capacity
        self.clear(padding)

    def clear(self, padding: Tensor | None = None) -> None:
        """Forget all positions. The sequences that are read next have this padding."""
        self.length = 0
        self.padding = padding
        self.present = None if padding is None else present_columns(padding, self.capacity)

    @abstractmethod
    def mixes(self, tokens: int) -> Sequence[Mix]:
        """Return a function for each block that mixes the next `tokens` positions and adds them to the state."""

    def advance(self, tokens: int) -> None:
        """Count `tokens` more positions as read, after every block has added them."""
        self.length += tokens

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on, or all positions if the state cannot be cut."""
        if length < self.length:
            self.clear(self.padding)

    def positions(self, tokens: int) -> Rows:
        """Return the positions of the next `tokens` in their sequences; padding has position 0."""
        if self.padding is None:
            return slice(self.length, self.length + tokens)
        return column_positions(self.padding, self.length, self.length + tokens)

    def select(self, rows: Tensor) -> None:
        """Keep the sequences `rows` (N,) int64, N at most B, in that order. A sequence may occur several times."""
        if self.padding is not None and self.present is not None:
            self.padding, self.present = self.padding[rows], self.present[rows]


class KVCache(MixerState):
    """Keys and values of the positions that a stack has read, for each block a pair of (B, G, columns, D).

    Position t is in column t % columns. With `ring` and an attention window, there is one column for each position of
    the window, so a new position overwrites one outside the window. Otherwise there are `capacity` columns.
    """

    def __init__(
        self,
        stack: Stack,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        padding: Tensor | None = None,
        blocks: Sequence[Block] | None = None,
        ring: bool = True,
    ) -> None:
        config = stack.config
        self.columns = min(capacity, config.window or capacity) if ring else capacity
        shape = (batch, config.key_value_heads, self.columns, config.head_features)
        stored = storage_dtype(dtype, device)
        super().__init__(stack, batch, capacity, dtype=dtype, device=device, padding=padding, blocks=blocks)
        self.keys = [torch.empty(shape, dtype=stored, device=device) for _ in self.blocks]
        self.values = [torch.empty_like(keys) for keys in self.keys]

    def crop(self, length: int) -> None:
        """Forget all positions from `length` on, or all positions if the window has overwritten earlier ones."""
        self.length = min(self.length, length) if self.length <= self.columns else 0

    def mixes(self, tokens: int) -> list[Attend]:
        """Return the attention of each block over the cache and the next `tokens`, which it writes to the cache."""
        blocks, config, dtype = range(len(self.keys)), self.stack.config, self.keys[0].dtype
        stop = self.length + tokens
        # A single token overwrites the oldest column before it attends; several attend to all columns, then overwrite.
        first = max(0, stop - (config.window or stop) if tokens == 1 else self.length - self.columns)
        present = None if self.present is None else self.present[:, first:stop]
        bias = self.stack.bias(slice(self.length, stop), stop, dtype)
        bias = None if bias is None else bias[..., first:]
        pattern, shift = self.stack.pattern, self._mask_shift(first)
        if tokens > 1:
            mask = Mask(causal=True, window=config.window, present=present, bias=bias, pattern=pattern, shift=shift)
            past, new = self._columns(first, self.length), self._columns(max(self.length, stop - self.columns), stop)
            attends = [block.mixer.parallel_form(mask) for block in self.blocks]
            return [partial(self._attend, block, attends[block], past, new) for block in blocks]
        if pattern is not None:
            sparse = Mask(pattern=pattern, shift=shift).visible(1, stop - first, self.keys[0].device)
            assert sparse is not None
            present = sparse[:, 0, 0] if present is None else sparse[:, 0, 0] & present
        added = None if present is None else padding_bias(present, dtype)
        if bias is not None:
            added = bias if added is None else bias + added
        visible = slice(first, stop) if stop <= self.columns else slice(0, self.columns)
        if added is not None and stop > self.columns:
            added = added.roll(first % self.columns, dims=-1)  # positions to the order of the columns
        scale = None if config.scaled_attention else 1.0
        new = self._columns(self.length, stop)
        offsets = None
        if config.positions == "relative-keys":
            offsets = key_offsets(slice(self.length, stop), stop, self.keys[0].device)[:, first:]
            offsets = offsets.roll(first % self.columns, dims=-1) if stop > self.columns else offsets
        return [partial(self._attend_last, block, visible, new, added, offsets, scale) for block in blocks]

    def select(self, rows: Tensor) -> None:
        for tensors in (self.keys, self.values):
            for block, tensor in enumerate(tensors):
                selected = tensor[rows, :, : self.length]  # a copy: rows may swap places
                tensors[block] = tensor[: len(rows)]
                tensors[block][:, :, : self.length] = selected
        super().select(rows)

    def _attend(
        self, block: int, attend: Attend, past: slice | Tensor, new: slice | Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        keys, values = k, v
        if self.length:
            keys = torch.cat((self.keys[block][:, :, past].to(q.dtype), k), dim=-2)
            values = torch.cat((self.values[block][:, :, past].to(q.dtype), v), dim=-2)
        mixed = attend(q, keys, values)
        self._write(block, new, k[:, :, -self.columns :], v[:, :, -self.columns :])
        return mixed

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
        """A single query needs no causal mask, so one mask serves all blocks. `offsets` are for relative keys."""
        self._write(block, new, k, v)
        keys, values = self.keys[block][:, :, visible], self.values[block][:, :, visible]
        added = with_relative_keys(self.blocks[block], q.to(keys.dtype), offsets, added)
        return attend_all(q, keys, values, added, scale)

    def _write(self, block: int, columns: slice | Tensor, k: Tensor, v: Tensor) -> None:
        self.keys[block][:, :, columns] = k.to(self.keys[block].dtype)
        self.values[block][:, :, columns] = v.to(self.values[block].dtype)

    def _mask_shift(self, first: int) -> Tensor | None:
        """Return `Mask.shift` for keys from column `first` of the sequences on; only a pattern needs it."""
        if self.stack.pattern is None:
            return None
        return self.keys[0].new_zeros(1).long() - first if self.padding is None else self.padding - first

    def _columns(self, start: int, stop: int) -> slice | Tensor:
        """Return the columns of positions `start` to `stop`, of which there are at most `self.columns`."""
        first = start % self.columns
        if first + stop - start <= self.columns:
            return slice(first, first + stop - start)
        return torch.arange(start, stop, device=self.keys[0].device) % self.columns


class CrossAttentionCache:
    """Keys and values of encoded sources (B, S), computed once, for the cross-attention of every block.

    Several sequences may share a source: with N a source, rows b N to b N + N - 1 attend to source b.
    """

    def __init__(self, stack: Stack, hidden: Tensor, present: Tensor | None = None) -> None:
        """hidden (B, S, width) from the encoder; `present` (B, S) bool is False at padding."""
        stored = storage_dtype(hidden.dtype, hidden.device)
        self.attentions = stack.cross_attentions
        self.keys_values: list[KeysValues] = [
            (keys.to(stored).contiguous(), values.to(stored).contiguous())
            for keys, values in stack.cross_keys_values(hidden)
        ]
        self.added = None if present is None else padding_bias(present, stored)

    def cross_attends(self) -> list[CrossAttend]:
        """Return the cross-attention of each block: q (B x N, H, T, D) to (B x N, H, T, D)."""
        pairs = zip(self.attentions, self.keys_values, strict=True)
        return [partial(self._cross_attend, attention, keys_values) for attention, keys_values in pairs]

    def select(self, sources: Tensor) -> None:
        """Keep the sources with these indices, int64, in that order."""
        self.keys_values = [(keys[sources], values[sources]) for keys, values in self.keys_values]
        self.added = None if self.added is None else self.added[sources]

    def _cross_attend(self, attention: Attention, keys_values: KeysValues, q: Tensor) -> Tensor:
        rows, heads, tokens, width = q.shape
        sources = len(keys_values[0])
        # The queries of all sequences of a source form one product, which reads each key once.
        grouped = q.view(sources, -1, heads, tokens, width).transpose(1, 2).reshape(sources, heads, -1, width)
        mixed = attention.attend_source(grouped, *keys_values, self.added)
        return mixed.view(sources, heads, -1, tokens, width).transpose(1, 2).reshape(rows, heads, tokens, width)


def with_relative_keys(block: Block, q: Tensor, offsets: Tensor | None, added: Tensor | None) -> Tensor | None:
    """Return `added` with the scores of relative keys for queries q (B, H, 1, D), if there are `offsets`."""
    if offsets is None:
        return added
    scores = cast("Attention", block.mixer).relative_scores(q, offsets)
    return scores if added is None else scores + added


def attend_all(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | None) -> Tensor:
    """Return attention (B, H, T, D) of q (B, H, T, D) to k and v (B, G, S, D) if all queries see the same keys.

    `added` to the scores is (1 or B, 1, 1, S), or with T = 1 (1 or B, H, 1, S). The query heads of a group are rows of
    one product. The result has the dtype of q.
    """
    batch, heads, queries, width = q.shape
    groups = k.shape[1]
    rows = q.to(k.dtype).reshape(batch, groups, -1, width)
    if added is not None and added.shape[1] > 1:
        added = added.reshape(len(added), groups, heads // groups, -1)
    mixed = F.scaled_dot_product_attention(rows, k, v, attn_mask=added, scale=scale)
    return mixed.reshape(batch, heads, queries, width).to(q.dtype)


def storage_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of cached keys and values. On the CPU, products of one query are slower in bfloat16 than in
    float32, despite half the bytes."""
    return torch.float32 if device.type == "cpu" and dtype == torch.bfloat16 else dtype


def present_columns(padding: Tensor, columns: int) -> Tensor:
    """Return bool (B, columns), False in the `padding` (B,) leftmost columns of each row."""
    return torch.arange(columns, device=padding.device) >= padding.unsqueeze(-1)


def column_positions(padding: Tensor, start: int, stop: int) -> Tensor:
    """Return the position of columns `start` to `stop` in each sequence, (B, stop - start) int64; padding has 0."""
    columns = torch.arange(start, stop, device=padding.device)
    return (columns - padding.unsqueeze(-1)).clamp(min=0)


def padding_bias(present: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the term on scores (B, 1, 1, S) that hides padding: minus infinity where `present` (B, S) is False."""
    zeros = torch.zeros(present.shape, dtype=dtype, device=present.device)
    return zeros.masked_fill(~present, -math.inf)[:, None, None]
