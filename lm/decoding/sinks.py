"""Attention sinks: endless generation with a cache of a fixed size (Xiao et al. 2024, arXiv:2309.17453).

Softmax gives the first tokens of a text much weight, whatever they say. A cache that forgets them ruins the
predictions; one that keeps them and the newest tokens does not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lm.decoding.cache import MixerState, attend_all, padding_bias, storage_dtype, with_relative_keys
from lm.masks import Mask
from lm.position_checks import check_sinks
from lm.positions import Rotary, Rows, rotate

if TYPE_CHECKING:
    from lm.mixers.attention import Attend
    from lm.model import Stack


class SinkCache(MixerState):
    """Keys and values of the first `sinks` tokens and of the newest tokens, `capacity` in all.

    Positions count the tokens in the cache: the first has 0, whatever was forgotten after it. So keys are kept without
    rotation, and rotated when a query reads them. The newest token of a full cache overwrites the oldest one that is
    not a sink. Each sequence begins in column 0; columns that are not filled yet are hidden.
    """

    rotates = True

    def __init__(
        self,
        stack: Stack,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        padding: Tensor | None = None,
        sinks: int = 0,
    ) -> None:
        """Make the empty cache. Raises ValueError for a model whose keys cannot change their positions."""
        config = stack.config
        check_sinks(config, sinks, capacity)
        self.sinks = sinks
        shape = (batch, config.key_value_heads, capacity, config.head_features)
        stored = storage_dtype(dtype, device)
        self.keys = [torch.zeros(shape, dtype=stored, device=device) for _ in stack.blocks]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        super().__init__(stack, batch, capacity, dtype=dtype, device=device, padding=padding)

    def mixes(self, tokens: int) -> list[Attend]:
        """Return the attention of each block to the cache and the next `tokens`, which it writes to the cache.

        Several tokens are the first ones of the sequences, and fit in the cache.
        """
        if self.length == 0:
            return self._first_mixes(tokens)
        assert tokens == 1, "after the first read, tokens are read one by one"
        dtype, device = self.keys[0].dtype, self.keys[0].device
        seen = torch.tensor([self.length], device=device) if self.padding is None else self.length - self.padding
        column, position, positions = self._next(seen)
        added = None
        if bool((seen < self.capacity).any()):
            added = padding_bias(positions <= position.unsqueeze(-1), dtype)
        bias = self.stack.bias(position, self.capacity, dtype)  # (1, H, B, C), by position
        if bias is not None:
            bias = bias.permute(2, 1, 0, 3)
            bias = bias.gather(-1, positions[:, None, None].expand(-1, bias.shape[1], -1, -1))
            added = bias if added is None else bias + added
        rotaries = self._rotary(position.unsqueeze(-1), dtype), self._rotary(positions, dtype)
        config, offsets = self.stack.config, None
        if config.positions == "relative-keys":
            offsets = (positions - position.unsqueeze(-1))[:, None, None]
        scale = None if config.scaled_attention else 1.0
        given = (column, rotaries, added, offsets, scale)
        return [partial(self._attend, block, *given) for block in range(len(self.keys))]

    def positions(self, tokens: int) -> Rows:
        """Return the positions of the next `tokens`, which are those of their sequences until the cache is full."""
        start = min(self.length, self.capacity - tokens)
        return slice(start, start + tokens) if self.padding is None else super().positions(tokens)

    def select(self, rows: Tensor) -> None:
        for tensors in (self.keys, self.values):
            tensors[:] = [tensor[rows] for tensor in tensors]
        super().select(rows)

    def _first_mixes(self, tokens: int) -> list[Attend]:
        assert tokens <= self.capacity, "a prompt is cut to the context"
        present = None if self.present is None else self.present[:, :tokens]
        bias = self.stack.bias(slice(0, tokens), tokens, self.keys[0].dtype)
        mask, positions = Mask(causal=True, present=present, bias=bias), self.positions(tokens)
        attends = [block.mixer.parallel_form(mask) for block in self.stack.blocks]
        return [partial(self._attend_first, block, attend, positions) for block, attend in enumerate(attends)]

    def _attend_first(self, block: int, attend: Attend, positions: Rows, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tokens = k.shape[-2]
        for kept, new in ((self.keys[block], k), (self.values[block], v)):
            begun = new
            if self.padding is not None:  # every sequence begins in column 0
                columns = (torch.arange(tokens, device=k.device) + self.padding.unsqueeze(-1)) % tokens
                begun = new.gather(2, columns[:, None, :, None].expand_as(new))
            kept[:, :, :tokens] = begun
        rotary = self._rotary(positions, q.dtype)
        return attend(_rotated(q, rotary), _rotated(k, rotary), v)

    def _attend(
        self,
        block: int,
        column: Tensor,
        rotaries: tuple[Rotary, Rotary],
        added: Tensor | None,
        offsets: Tensor | None,
        scale: float | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        keys, values = self.keys[block], self.values[block]
        rows = torch.arange(len(keys), device=keys.device)
        keys[rows, :, column], values[rows, :, column] = k[:, :, 0].to(keys.dtype), v[:, :, 0].to(values.dtype)
        query = _rotated(q.to(keys.dtype), rotaries[0])
        added = with_relative_keys(self.blocks[block], query, offsets, added)
        return attend_all(query, _rotated(keys, rotaries[1]), values, added, scale).to(q.dtype)

    def _next(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the next token of sequences with `seen` (B,) tokens goes, int64.

        Its column (B,), its position (B,), and then the position of each column (B, capacity). A column that is not
        filled yet has a later position than the token.
        """
        newest = self.capacity - self.sinks
        column = torch.where(seen < self.capacity, seen, self.sinks + (seen - self.sinks) % newest)
        columns = torch.arange(self.capacity, device=seen.device)
        turned = self.sinks + (columns - column.unsqueeze(-1) - 1) % newest
        full = (seen >= self.capacity).unsqueeze(-1) & (columns >= self.sinks)
        return column, seen.clamp(max=self.capacity - 1), torch.where(full, turned, columns)

    def _rotary(self, positions: Rows, dtype: torch.dtype) -> Rotary:
        rotary: Rotary = None if self.stack.rotary is None else self.stack.rotary(positions, dtype)
        return rotary


def _rotated(x: Tensor, rotary: Rotary) -> Tensor:
    return x if rotary is None else rotate(x, *rotary)
