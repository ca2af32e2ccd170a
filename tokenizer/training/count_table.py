"""A growing hash table of pretoken counts with an optional memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np

from tokenizer.document_blocks import as_readonly
from tokenizer.splitting.pretokenize import CHUNK

# Rows that one kernel call moves or exports: tens of milliseconds, between which Ctrl-C is handled.
ROWS_PER_CALL = 1 << 20
LONG_BYTES_PER_CALL = 64 << 20


class Counted(NamedTuple):
    """Distinct pretokens and their counts. data: uint8, the concatenated pretokens; offsets: int64 (n + 1,); counts:
    int64 (n,)."""

    data: np.ndarray
    offsets: np.ndarray
    counts: np.ndarray

    @classmethod
    def empty(cls, n: int, size: int) -> Counted:
        """Return uninitialized arrays for n pretokens of `size` bytes in total."""
        return cls(np.empty(size, dtype=np.uint8), np.zeros(n + 1, dtype=np.int64), np.empty(n, dtype=np.int64))

    @classmethod
    def of(cls, counter: dict[bytes, int]) -> Counted:
        """Return the counts of a dictionary as arrays."""
        offsets = np.cumsum([0, *map(len, counter)], dtype=np.int64)
        data = np.frombuffer(bytearray().join(counter), dtype=np.uint8)
        return cls(data, offsets, np.fromiter(counter.values(), np.int64, len(counter)))

    def pretoken(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


class CountTable:
    """One thread's hash table; `kernels.counts` describes its layout.

    limit: the table does not grow beyond this many bytes, except for a single larger pretoken.
    """

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self.short = np.zeros((1 << 14, 4), dtype=np.uint64)
        self.long_slots = np.zeros(1 << 12, dtype=np.uint64)
        self.long_entries = np.zeros((1 << 11, 3), dtype=np.int64)
        self.arena = np.zeros(1 << 16, dtype=np.uint8)
        self.state = np.zeros(3, dtype=np.int64)

    def __len__(self) -> int:
        return int(self.state[0] + self.state[1])

    @property
    def nbytes(self) -> int:
        return self.short.nbytes + self.long_slots.nbytes + self.long_entries.nbytes + self.arena.nbytes

    def add(
        self,
        data: np.ndarray,
        start: int,
        ends: np.ndarray,
        weights: np.ndarray | None = None,
        first: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Count the adjacent pretokens data[start:ends[0]], data[ends[0]:ends[1]], ..., from index `first` on.

        weights: counts to add, int64 (n,), by default 1 each. Returns the index of the first pretoken not counted,
        which is less than n only if the table has reached its limit.
        """
        from tokenizer.kernels import counts as kernel

        data, ends = as_readonly(data), as_readonly(ends)
        weights = as_readonly(np.empty(0, dtype=np.int64) if weights is None else weights)
        last = len(ends)
        while first < last:
            stop = min(first + CHUNK * 16, last)
            before = int(ends[first - 1]) if first else start
            first = kernel.count(
                data,
                before,
                ends,
                first,
                stop,
                weights,
                self.short,
                self.long_slots,
                self.long_entries,
                self.arena,
                self.state,
            )
            check()
            if first < stop:
                length = int(ends[first]) - (int(ends[first - 1]) if first else start)
                if not self._grow(kernel, length, check):
                    break
        return first

    def _grow(self, kernel: ModuleType, length: int, check: Callable[[], None]) -> bool:
        """Make room for a pretoken of `length` bytes. Return False if the limit forbids it."""
        if length < 16:
            if not self._may_take(2 * self.short.nbytes):
                return False
            larger = np.zeros((2 * len(self.short), 4), dtype=np.uint64)
            for rows in _slices(len(self.short), ROWS_PER_CALL):
                kernel.move_short(self.short[rows], larger)
                check()
            self.short = larger
            return True
        entries = int(self.state[kernel.LONG_ENTRIES])
        if entries >= len(self.long_entries):
            if not self._may_take(2 * (self.long_entries.nbytes + self.long_slots.nbytes)):
                return False
            more = np.zeros((2 * len(self.long_entries), 3), dtype=np.int64)
            more[:entries] = self.long_entries
            slots = np.zeros(2 * len(self.long_slots), dtype=np.uint64)
            for rows in _slices(len(self.long_slots), ROWS_PER_CALL):
                kernel.move_long(self.long_slots[rows], self.long_entries, self.arena, slots)
                check()
            self.long_entries, self.long_slots = more, slots
        used = int(self.state[kernel.ARENA_USED])
        if used + length > len(self.arena):
            if not self._may_take(2 * len(self.arena) + length):
                return False
            arena = np.zeros(2 * len(self.arena) + length, dtype=np.uint8)
            arena[:used] = self.arena[:used]
            self.arena = arena
        return True

    def _may_take(self, more: int) -> bool:
        """Return whether allocating `more` bytes, old arrays included, stays within the limit."""
        return self.limit is None or not len(self) or self.nbytes + more <= self.limit

    def clear(self) -> None:
        """Remove all counts, but keep the capacity."""
        self.short = np.zeros(self.short.shape, dtype=np.uint64)  # the system allocates zeroed pages on first use
        self.long_slots[:] = 0
        self.state[:] = 0

    def parts(self, rows: int = ROWS_PER_CALL) -> Iterator[Counted]:
        """Yield all pretokens, unordered, in parts of at most `rows`; a very large pretoken is a part by itself."""
        for part in self._parts(rows):
            counted = Counted.empty(part.pretokens, part.size)
            self._export(part, counted)
            yield counted

    def export(self) -> Counted:
        """Return all pretokens, unordered."""
        listed = list(self._parts(ROWS_PER_CALL))
        whole = Counted.empty(len(self), sum(part.size for part in listed))
        row = at = 0
        for part in listed:
            last, end = row + part.pretokens, at + part.size
            # Written in place: a separate part would copy a very long pretoken.
            self._export(part, Counted(whole.data[at:end], whole.offsets[row : last + 1], whole.counts[row:last]))
            whole.offsets[row + 1 : last + 1] += at
            row, at = last, end
        return whole

    def _parts(self, rows: int) -> Iterator[_Part]:
        from tokenizer.kernels import counts as kernel

        for slots in _slices(len(self.short), 2 * rows):  # at most half of the rows are in use
            short = self.short[slots]
            taken = int(np.count_nonzero(short[:, 1]))
            yield _Part(short, self.long_entries[:0], taken, int(kernel.short_bytes(short)))
        first, entries = 0, int(self.state[kernel.LONG_ENTRIES])
        ends = self.long_entries[:entries, 0] + self.long_entries[:entries, 1]
        while first < entries:
            start = int(self.long_entries[first, 0])
            last = int(np.searchsorted(ends, start + rows * LONG_BYTES_PER_CALL // ROWS_PER_CALL, side="right"))
            last = max(first + 1, min(last, first + rows))
            yield _Part(self.short[:0], self.long_entries[first:last], last - first, int(ends[last - 1]) - start)
            first = last

    def _export(self, part: _Part, to: Counted) -> None:
        from tokenizer.kernels import counts as kernel

        state = np.zeros(3, dtype=np.int64)
        state[kernel.LONG_ENTRIES] = len(part.long)
        kernel.export(part.short, part.long, self.arena, state, *to)


class _Part(NamedTuple):
    """Rows of `short` or of `long_entries`, their number of pretokens, and the bytes of these."""

    short: np.ndarray
    long: np.ndarray
    pretokens: int
    size: int


def _slices(n: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, n)) for first in range(0, n, size))
