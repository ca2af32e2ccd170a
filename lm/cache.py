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

from lm.blocks import Attend, Memory, Recall
from lm.masks import Mask
from lm.model import Stack
from lm.positions import Rows


class KVCache:
    """Keys and values of the positions that a stack has read, for each block a pair of (B, G, capacity, D).

    Sequences of different lengths end together: the first `padding` (B,) int64 columns of each are none of its own.
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
        shape = (batch, config.key_value_heads, capacity, config.head_width)
        stored = storage_dtype(dtype, device)
        self.stack = stack
        self.capacity = capacity
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
        """Attention of the next `tokens`, one function a block: it remembers their keys and values, and sees all that
        are there."""
        stop = self.length + tokens
        present = None if self.present is None else self.present[:, :stop]
        bias = self.stack.bias(slice(self.length, stop), stop, self.keys[0].dtype)
        config = self.stack.config
        if tokens > 1:
            mask = Mask(causal=True, window=config.window, present=present, bias=bias)
            return [partial(self._attend, block, mask) for block in range(len(self.keys))]
        first = max(0, stop - config.window) if config.window else 0
        added = None if present is None else hidden_columns(present[:, first:], self.keys[0].dtype)
        if bias is not None:
            added = bias[..., first:] if added is None else bias[..., first:] + added
        scale = None if config.scaled_attention else 1.0
        return [partial(self._attend_last, block, first, added, scale) for block in range(len(self.keys))]

    def select(self, rows: Tensor) -> None:
        """Go on with those sequences, (N,) int64 with N at most B: a beam may go on twice, another not at all."""
        for tensors in (self.keys, self.values):
            for block, tensor in enumerate(tensors):
                chosen = tensor[rows, :, : self.length]  # a copy: rows may swap places
                tensors[block] = tensor[: len(rows)]
                tensors[block][:, :, : self.length] = chosen
        if self.padding is not None:
            self.padding, self.present = self.padding[rows], self.present[rows]

    def _attend(self, block: int, mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._remember(block, k, v)
        if self.length:
            stop = self.length + k.shape[-2]
            k, v = (tensors[block][:, :, :stop].to(q.dtype) for tensors in (self.keys, self.values))
        return self.stack.backend()(q, k, v, mask)

    def _attend_last(
        self, block: int, first: int, added: Tensor | None, scale: float | None, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """One query needs no mask for the future, so that all masks and bounds are made once for all blocks."""
        self._remember(block, k, v)
        seen = slice(first, self.length + 1)
        return attend_all(q, self.keys[block][:, :, seen], self.values[block][:, :, seen], added, scale)

    def _remember(self, block: int, k: Tensor, v: Tensor) -> None:
        stop = self.length + k.shape[-2]
        self.keys[block][:, :, self.length : stop] = k
        self.values[block][:, :, self.length : stop] = v


class SourceMemory:
    """Keys and values of an encoder's source (B, S), made once, that every block's cross-attention looks up.

    Several sequences may go on from one source: those of source b are then rows b N to b N + N - 1, and share it.
    """

    def __init__(self, stack: Stack, hidden: Tensor, present: Tensor | None = None) -> None:
        """hidden (B, S, width) from the encoder; `present` (B, S) bool is False at padding."""
        stored = storage_dtype(hidden.dtype, hidden.device)
        self.scale = None if stack.config.scaled_attention else 1.0
        self.memories: Sequence[Memory] = [
            (keys.to(stored).contiguous(), values.to(stored).contiguous()) for keys, values in stack.remember(hidden)
        ]
        self.added = None if present is None else hidden_columns(present, stored)

    def recalls(self) -> list[Recall]:
        """One function a block: q (B x N, H, T, D) to what it finds in the source."""
        return [partial(self._recall, memory) for memory in self.memories]

    def select(self, sources: Tensor) -> None:
        """Go on with those sources, int64."""
        self.memories = [(keys[sources], values[sources]) for keys, values in self.memories]
        self.added = None if self.added is None else self.added[sources]

    def _recall(self, memory: Memory, q: Tensor) -> Tensor:
        rows, heads, tokens, width = q.shape
        sources = len(memory[0])
        # Queries of all sequences of a source are queries like any: each key is read once for all of them.
        together = q.view(sources, -1, heads, tokens, width).transpose(1, 2)
        found = attend_all(together.reshape(sources, heads, -1, width), *memory, self.added, self.scale)
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
