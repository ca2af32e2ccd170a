"""Attention masks: one description from which each backend takes what it can use.

Axes: B sequences, H heads, T queries, S keys. The T queries are the last T of the S positions: a whole sequence has
T = S, one token after a cache of S - 1 has T = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Which keys each query attends to. By default all; every field but `bias` hides some.

    In cross-attention, queries and keys have unrelated positions: only `present` and `bias` apply.
    """

    causal: bool = False
    """Hide later positions."""
    causal_rows: Tensor | None = None
    """(B,) bool: hide later positions in sequences where it is True."""
    window: int = 0
    """Hide keys at this distance or farther; 0: none."""
    segments: Tensor | None = None
    """(B, S) integers: hide positions of other segments (documents)."""
    present: Tensor | None = None
    """(B, S) bool: hide keys where this is False (padding)."""
    pattern: Callable[[Tensor, Tensor], Tensor] | None = None
    """Maps positions of queries and keys, int64, to bool: hide keys where it is False."""
    shift: Tensor | None = None
    """(1 or B,) int64: columns before position 0 of each sequence, for the pattern; by default 0."""
    bias: Tensor | None = None
    """(1 or B, H, T, S), finite: added to the scores, as T5's relative bias and ALiBi are."""

    def span(self, queries: int, keys: int, rows: slice = ALL) -> slice:
        """Return the smallest range of keys that causality and window leave to the queries `rows`.

        Raises ValueError if the mask depends on positions and there are more queries than keys.
        """
        by_position = self.causal_rows is not None or self.segments is not None or self.pattern is not None
        if not (self.causal or self.window or by_position):
            return slice(0, keys)
        if queries > keys:
            raise ValueError(
                f"{queries} queries over {keys} keys with a mask on positions: the queries are the last of the keys' "
                "positions, so give at least as many keys"
            )
        start, stop = _bounds(rows, queries)
        past = keys - queries
        first = max(0, past + start - self.window + 1) if self.window else 0
        last = past + stop if self.causal else keys
        if self.window:
            last = min(last, past + stop + self.window - 1)
        return slice(first, last)

    def visible(
        self, queries: int, keys: int, device: torch.device, rows: slice = ALL, columns: slice = ALL
    ) -> Tensor | None:
        """Return bool (1 or B, 1, 1 or rows, columns), True where the query attends; None if nothing is hidden.

        `rows` of the T queries and `columns` of the S keys select a part without allocating the (T, S) table.
        """
        visible = self._visible_by_position(queries, keys, device, rows, columns)
        if self.pattern is not None:
            sparse = self._visible_by_pattern(queries, keys, device, rows, columns)
            visible = sparse if visible is None else visible & sparse
        if self.causal_rows is not None:
            past = TRIANGLE.visible(queries, keys, device, rows, columns)
            if past is not None:
                seen = past | ~self.causal_rows[:, None, None, None]
                visible = seen if visible is None else visible & seen
        if self.segments is not None:
            query_segments = self.segments[:, keys - queries :][:, rows]
            same = (query_segments[:, :, None] == self.segments[:, None, columns]).unsqueeze(1)
            visible = same if visible is None else visible & same
        if self.present is not None:
            present = self.present[:, None, None, columns]
            visible = present if visible is None else visible & present
        return visible

    def additive(
        self,
        queries: int,
        keys: int,
        dtype: torch.dtype,
        device: torch.device,
        rows: slice = ALL,
        columns: slice = ALL,
    ) -> Tensor | None:
        """Return the mask as a term of the scores: `bias`, and minus infinity at hidden keys.

        (1 or B, 1 or H, 1 or rows, columns) of `dtype`; None if it is zero everywhere. A fully masked query has a row
        of minus infinities.
        """
        return self._additive(self.visible(queries, keys, device, rows, columns), dtype, device, rows, columns)

    def for_softmax(
        self,
        queries: int,
        keys: int,
        dtype: torch.dtype,
        device: torch.device,
        rows: slice = ALL,
        columns: slice = ALL,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return `additive` with rows of zeros for fully masked queries, and `fully_masked`.

        A softmax over minus infinities is 0 / 0. The caller zeroes the output of fully masked queries instead.
        """
        visible = self.visible(queries, keys, device, rows, columns)
        fully_masked = self.fully_masked(visible)
        if visible is not None and fully_masked is not None:
            visible = visible | fully_masked
        return self._additive(visible, dtype, device, rows, columns), fully_masked

    def fully_masked(self, visible: Tensor | None) -> Tensor | None:
        """Return bool (1 or B, 1, 1 or rows, 1), True for queries without a visible key; None if there are none.

        Only padding can hide every key: otherwise a position attends to itself.
        """
        if self.present is None or visible is None:
            return None
        return ~visible.any(dim=-1, keepdim=True)

    def plain_causal(self, queries: int, keys: int) -> bool:
        """Return whether the mask is the lower triangle and nothing else: fused kernels have a fast path for it."""
        alone = self.segments is None and self.present is None and self.bias is None and self.pattern is None
        return self.causal and queries == keys and alone and not 0 < self.window < keys

    def crop(self, queries: int, keys: int) -> tuple[Mask, slice]:
        """Return the mask without the keys that no query attends to, and the range of keys that stay."""
        span = self.span(queries, keys)
        if span.start == 0 or self.pattern is not None:  # a pattern counts from the first key
            return self, slice(0, keys)  # queries are the last positions, so nothing is cut off at the end
        cropped = Mask(
            causal=self.causal,
            causal_rows=self.causal_rows,
            window=self.window,
            segments=None if self.segments is None else self.segments[:, span],
            present=None if self.present is None else self.present[:, span],
            bias=None if self.bias is None else self.bias[..., span],
        )
        return cropped, span

    def _additive(
        self, visible: Tensor | None, dtype: torch.dtype, device: torch.device, rows: slice, columns: slice
    ) -> Tensor | None:
        bias = None if self.bias is None else self.bias[:, :, rows, columns].to(dtype)
        if visible is None:
            return bias
        return torch.where(visible, torch.zeros((), dtype=dtype, device=device) if bias is None else bias, -math.inf)

    def _visible_by_position(
        self, queries: int, keys: int, device: torch.device, rows: slice, columns: slice
    ) -> Tensor | None:
        """Return bool (1, 1, rows, columns) from causality and window alone, or None if they hide nothing."""
        self.span(queries, keys)
        start, stop = _bounds(rows, queries)
        first, last = _bounds(columns, keys)
        past = keys - queries
        future_hidden = self.causal and past + start < last - 1
        past_hidden = 0 < self.window <= past + stop - 1 - first
        ahead_hidden = 0 < self.window <= last - 1 - past - start and not self.causal
        if not (future_hidden or past_hidden or ahead_hidden):
            return None
        positions = torch.arange(past + start, past + stop, device=device)[:, None]
        distance = positions - torch.arange(first, last, device=device)
        if not self.causal:
            return (distance.abs() < self.window)[None, None]
        visible = distance >= 0
        if self.window:
            visible = visible & (distance < self.window)
        return visible[None, None]

    def _visible_by_pattern(self, queries: int, keys: int, device: torch.device, rows: slice, columns: slice) -> Tensor:
        """Return bool (1 or B, 1, rows, columns) from the pattern alone."""
        assert self.pattern is not None
        (start, stop), (first, last), past = _bounds(rows, queries), _bounds(columns, keys), keys - queries
        query = torch.arange(past + start, past + stop, device=device)[None, :, None]
        key = torch.arange(first, last, device=device)[None, None]
        if self.shift is not None:
            query, key = query - self.shift[:, None, None], key - self.shift[:, None, None]
        return self.pattern(query, key).unsqueeze(1)


TRIANGLE = Mask(causal=True)


def _bounds(part: slice, length: int) -> tuple[int, int]:
    """Return start and stop of `part` of `length` positions.

    `slice.indices` alone would turn a symbolic length into a number, and a dynamic length could not be traced.
    """
    if part.start is None and part.stop is None:  # compilers do not compare slices
        return 0, length
    start, stop, _ = part.indices(length)
    return start, stop
