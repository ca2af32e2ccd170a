"""What generation remembers between tokens: keys and values, of what was read and of an encoder's source.

The model knows nothing of it. Each block's attention is handed in as a function, and here that function also remembers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lm.blocks import Attend, CrossAttend, KeysValues
from lm.masks import Mask
from lm.model import Stack
from lm.positions import Rows


class KVCache:
    """Keys and values of the positions that a stack has read, for each block a pair of (B, G, columns, D).

    Position t is in column t % columns: a window keeps as many columns as it sees, and each new position takes the
    column of one that is out of sight; without one there is a column for each of `capacity` positions. Sequences of
    different lengths end together: the first `padding` (B,) int64 positions of each are none of its own.
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
    ) -> None:
        config = stack.config
        self.stack = stack
        self.capacity = capacity
        self.columns = min(capacity, config.window or capacity)
        shape = (batch, config.key_value_heads, self.columns, config.head_width)
        stored = storage_dtype(dtype, device)
        self.keys = [torch.empty(shape, dtype=stored, device=device) for _ in stack.blocks]
        self.values = [torch.empty_like(keys) for keys in self.keys]
        self.clear(padding)

    def clear(self, padding: Tensor | None = None) -> None:
        """Forget everything read; what is read next is padded like this."""
        self.length = 0
        self.padding = padding
        self.present = None if padding is None else present_columns(padding, self.capacity)

    def advance(self, tokens: int) -> None:
        """Count `tokens` more positions as read, once every block has remembered theirs."""
        self.length += tokens

    def positions(self, tokens: int) -> Rows:
        """Where in their sequences the next `tokens` stand; padding is at 0."""
        if self.padding is None:
            return slice(self.length, self.length + tokens)
        return positions_of(self.padding, self.length, self.length + tokens)

    def attends(self, tokens: int) -> list[Attend]:
        """Attention of the next `tokens`, one function a block: it sees all that is remembered, and remembers their
        keys and values."""
        blocks, config, dtype = range(len(self.keys)), self.stack.config, self.keys[0].dtype
        stop = self.length + tokens
        # one token takes the place of the oldest before it attends, several join what is there
        first = max(0, (stop if tokens == 1 else self.length) - self.columns)
        present = None if self.present is None else self.present[:, first:stop]
        bias = self.stack.bias(slice(self.length, stop), stop, dtype)
        bias = None if bias is None else bias[..., first:]
        if tokens > 1:
            mask = Mask(causal=True, window=config.window, present=present, bias=bias)
            past, kept = self._columns(first, self.length), self._columns(max(self.length, stop - self.columns), stop)
            return [partial(self._attend, block, mask, past, kept) for block in blocks]
        added = None if present is None else hidden_columns(present, dtype)
        if bias is not None:
            added = bias if added is None else bias + added
        if added is not None and first:
            added = added.roll(first % self.columns, dims=-1)  # in the order of the columns
        scale = None if config.scaled_attention else 1.0
        kept = self._columns(self.length, stop)
        return [partial(self._attend_last, block, stop - first, kept, added, scale) for block in blocks]

    def select(self, rows: Tensor) -> None:
        """Go on with those sequences, (N,) int64 with N at most B: a beam may go on twice, another not at all."""
        for tensors in (self.keys, self.values):
            for block, tensor in enumerate(tensors):
                chosen = tensor[rows, :, : self.length]  # a copy: rows may swap places
                tensors[block] = tensor[: len(rows)]
                tensors[block][:, :, : self.length] = chosen
        if self.padding is not None:
            self.padding, self.present = self.padding[rows], self.present[rows]

    def _attend(
        self, block: int, mask: Mask, past: slice | Tensor, kept: slice | Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        seen = k, v
        if self.length:
            before = (tensors[block][:, :, past].to(q.dtype) for tensors in (self.keys, self.values))
            seen = (torch.cat(both, dim=-2) for both in zip(before, (k, v), strict=True))
        mixed = self.stack.backend()(q, *seen, mask)
        self._remember(block, kept, k[:, :, -self.columns :], v[:, :, -self.columns :])
        return mixed

    def _attend_last(
        self,
        block: int,
        seen: int,
        kept: slice | Tensor,
        added: Tensor | None,
        scale: float | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        """One query needs no mask for the future, so that all masks and bounds are made once for all blocks."""
        self._remember(block, kept, k, v)
        return attend_all(q, self.keys[block][:, :, :seen], self.values[block][:, :, :seen], added, scale)

    def _remember(self, block: int, columns: slice | Tensor, k: Tensor, v: Tensor) -> None:
        self.keys[block][:, :, columns] = k.to(self.keys[block].dtype)
        self.values[block][:, :, columns] = v.to(self.values[block].dtype)

    def _columns(self, start: int, stop: int) -> slice | Tensor:
        """Those of the positions from `start` to `stop`, at most as many as there are columns."""
        first = start % self.columns
        if first + stop - start <= self.columns:
            return slice(first, first + stop - start)
        return torch.arange(start, stop, device=self.keys[0].device) % self.columns


class CrossAttentionCache:
    """Keys and values of an encoder's source (B, S), made once, that every block's cross-attention looks up.

    Several sequences may go on from one source: those of source b are then rows b N to b N + N - 1, and share it.
    """

    def __init__(self, stack: Stack, hidden: Tensor, present: Tensor | None = None) -> None:
        """hidden (B, S, width) from the encoder; `present` (B, S) bool is False at padding."""
        stored = storage_dtype(hidden.dtype, hidden.device)
        self.scale = None if stack.config.scaled_attention else 1.0
        self.keys_values: Sequence[KeysValues] = [
            (keys.to(stored).contiguous(), values.to(stored).contiguous())
            for keys, values in stack.cross_keys_values(hidden)
        ]
        self.added = None if present is None else hidden_columns(present, stored)

    def cross_attends(self) -> list[CrossAttend]:
        """One function a block: q (B x N, H, T, D) to what it finds in the source."""
        return [partial(self._cross_attend, pair) for pair in self.keys_values]

    def select(self, sources: Tensor) -> None:
        """Go on with those sources, int64."""
        self.keys_values = [(keys[sources], values[sources]) for keys, values in self.keys_values]
        self.added = None if self.added is None else self.added[sources]

    def _cross_attend(self, keys_values: KeysValues, q: Tensor) -> Tensor:
        rows, heads, tokens, width = q.shape
        sources = len(keys_values[0])
        # Queries of all sequences of a source are queries like any: each key is read once for all of them.
        together = q.view(sources, -1, heads, tokens, width).transpose(1, 2)
        found = attend_all(together.reshape(sources, heads, -1, width), *keys_values, self.added, self.scale)
        found = found.unflatten(2, (-1, tokens)).transpose(1, 2)
        return found.reshape(rows, heads, tokens, width)


def attend_all(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | None) -> Tensor:
    """Attention of q (B, H, T, D) to k, v (B, G, S, D) where all T queries see the same keys; dtype of q.

    `added` to the scores: (1 or B, 1, 1, S), or with T = 1 (1 or B, H, 1, S). The query heads of a group are rows of
    one product.
    """
    batch, heads, queries, width = q.shape
    groups = k.shape[1]
    rows = q.to(k.dtype).reshape(batch, groups, -1, width)
    if added is not None and added.shape[1] > 1:
        added = added.reshape(len(added), groups, heads // groups, -1)
    mixed = F.scaled_dot_product_attention(rows, k, v, attn_mask=added, scale=scale)
    return mixed.reshape(batch, heads, queries, width).to(q.dtype)


def storage_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which keys and values are kept: on the CPU, bfloat16's products with one query are slower than
    those with twice the bytes."""
    return torch.float32 if device.type == "cpu" and dtype == torch.bfloat16 else dtype


def present_columns(padding: Tensor, columns: int) -> Tensor:
    """padding (B,) to bool (B, columns): False in as many columns at the left."""
    return torch.arange(columns, device=padding.device) >= padding.unsqueeze(-1)


def positions_of(padding: Tensor, start: int, stop: int) -> Tensor:
    """(B, stop - start) int64: where in its sequence each of those columns stands; padding is at 0."""
    columns = torch.arange(start, stop, device=padding.device)
    return (columns - padding.unsqueeze(-1)).clamp(min=0)


def hidden_columns(present: Tensor, dtype: torch.dtype) -> Tensor:
    """present (B, S) bool to what is added to scores, (B, 1, 1, S): 0, and minus infinity at padding."""
    return torch.zeros(present.shape, dtype=dtype, device=present.device).masked_fill(~present, -math.inf)[
        :, None, None
    ]
