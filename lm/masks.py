"""Who sees whom: one description of a mask, from which each backend takes what it can use.

Axes: B sequences, H heads, T queries, S keys. The T queries are the last T of the S positions, so a whole sequence
is T = S, and one more token after S - 1 cached ones is T = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Which keys each query sees; every field takes some away, and without any all are seen.

    In cross-attention queries and keys count different positions: there only `present` and `bias` mean something.
    """

    causal: bool = False
    """A query sees no later position."""
    window: int = 0
    """A query sees keys at a distance of less than this; 0: at any."""
    segments: Tensor | None = None
    """(B, S) integers: positions of different segments (documents) do not see each other."""
    present: Tensor | None = None
    """(B, S) bool: keys that are there; the others are padding."""
    bias: Tensor | None = None
    """(1 or B, H, T, S), finite, added to the scores: T5's relative bias."""

    def span(self, queries: int, keys: int, rows: slice = ALL) -> slice:
        """The keys that causality and window leave to any query of `rows`: all others are hidden from all of them.

        Raises ValueError where positions matter and there are more queries than keys.
        """
        if not (self.causal or self.window or self.segments is not None):
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
        """bool (1 or B, 1, 1 or rows, columns), True where the query sees the key; None where everything is seen.

        `rows` of the T queries and `columns` of the S keys cut a part out of the (T, S) table without making it.
        """
        seen = self._by_position(queries, keys, device, rows, columns)
        if self.segments is not None:
            own = self.segments[:, keys - queries :][:, rows]
            same = (own[:, :, None] == self.segments[:, None, columns]).unsqueeze(1)
            seen = same if seen is None else seen & same
        if self.present is not None:
            there = self.present[:, None, None, columns]
            seen = there if seen is None else seen & there
        return seen

    def additive(
        self,
        queries: int,
        keys: int,
        dtype: torch.dtype,
        device: torch.device,
        rows: slice = ALL,
        columns: slice = ALL,
    ) -> Tensor | None:
        """What is added to the scores: `bias`, and minus infinity where a query does not see a key.

        (1 or B, 1 or H, 1 or rows, columns) of `dtype`; None where nothing is to be added. A query that sees no key
        has a row of minus infinities.
        """
        return self._added(self.visible(queries, keys, device, rows, columns), dtype, device, rows, columns)

    def for_softmax(
        self,
        queries: int,
        keys: int,
        dtype: torch.dtype,
        device: torch.device,
        rows: slice = ALL,
        columns: slice = ALL,
    ) -> tuple[Tensor | None, Tensor | None]:
        """`additive` with rows of zeros where a query sees no key, and bool (1 or B, 1, 1 or rows, 1): which these are.

        A softmax over minus infinities alone is 0 / 0; so the caller zeroes what comes out at these queries.
        """
        seen = self.visible(queries, keys, device, rows, columns)
        blind = self.blind(seen)
        if blind is not None:
            seen = seen | blind
        return self._added(seen, dtype, device, rows, columns), blind

    def blind(self, seen: Tensor | None) -> Tensor | None:
        """bool (1 or B, 1, 1 or rows, 1): the queries of `visible` that see no key; None where there cannot be any.

        Without padding there is none: a position sees itself.
        """
        if self.present is None or seen is None:
            return None
        return ~seen.any(dim=-1, keepdim=True)

    def plain_causal(self, queries: int, keys: int) -> bool:
        """Whether this is the whole lower triangle and nothing else, which fused kernels have a fast path for."""
        alone = self.segments is None and self.present is None and self.bias is None
        return self.causal and queries == keys and alone and not 0 < self.window < keys

    def crop(self, queries: int, keys: int) -> tuple[Mask, slice]:
        """The keys that any query may see, and the mask that is left over them: one query in a window needs few."""
        span = self.span(queries, keys)
        if span.start == 0:  # queries are the last positions, so that nothing is cut off at the end
            return self, span
        cropped = Mask(
            causal=self.causal,
            window=self.window,
            segments=None if self.segments is None else self.segments[:, span],
            present=None if self.present is None else self.present[:, span],
            bias=None if self.bias is None else self.bias[..., span],
        )
        return cropped, span

    def _added(
        self, seen: Tensor | None, dtype: torch.dtype, device: torch.device, rows: slice, columns: slice
    ) -> Tensor | None:
        bias = None if self.bias is None else self.bias[:, :, rows, columns].to(dtype)
        if seen is None:
            return bias
        return torch.where(seen, torch.zeros((), dtype=dtype, device=device) if bias is None else bias, -math.inf)

    def _by_position(self, queries: int, keys: int, device: torch.device, rows: slice, columns: slice) -> Tensor | None:
        """bool (1, 1, rows, columns) from causality and window alone, or None where they hide nothing."""
        self.span(queries, keys)
        start, stop = _bounds(rows, queries)
        first, last = _bounds(columns, keys)
        past = keys - queries
        future_hidden = self.causal and past + start < last - 1
        past_hidden = 0 < self.window <= past + stop - 1 - first
        ahead_hidden = 0 < self.window <= last - 1 - past - start and not self.causal
        if not (future_hidden or past_hidden or ahead_hidden):
            return None
        distance = torch.arange(past + start, past + stop, device=device)[:, None] - torch.arange(
            first, last, device=device
        )
        seen = distance >= 0 if self.causal else None
        if self.window:
            near = distance < self.window if self.causal else distance.abs() < self.window
            seen = near if seen is None else seen & near
        return seen[None, None]


def _bounds(part: slice, length: int) -> tuple[int, int]:
    """Where `part` of `length` positions starts and stops. `indices` would make a number of a symbolic length, and a
    model with a dynamic length could not be traced."""
    if part == ALL:
        return 0, length
    start, stop, _ = part.indices(length)
    return start, stop
