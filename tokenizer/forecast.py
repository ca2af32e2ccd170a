"""How much memory merging will need: exactly once pretokens are counted, and from a sample while they are."""

from __future__ import annotations

import threading

import numpy as np

from tokenizer.count_table import Counted

BYTES_PER_POSITION = 29  # nodes, the pool, and the records of pairs, for each byte of the distinct pretokens
BYTES_PER_PRETOKEN = 16  # its offset and its count
SAMPLED = 256  # one distinct pretoken in this many is sampled
LEAST_SAMPLE = 1000  # sampled pretokens from which an estimate is trusted
LONGEST_SAMPLED = 64  # bytes: one huge pretoken must not count SAMPLED times
MARGIN = 1.25


def merge_bytes(pretokens: int, size: int) -> int:
    """Return the bytes that merging takes for so many distinct pretokens of `size` bytes together."""
    return pretokens * BYTES_PER_PRETOKEN + size * BYTES_PER_POSITION


class MergeForecast:
    """Ends counting early once the pretokens that were spilled need more memory than merging may take.

    A pretoken is in the sample by its hash: in every run, or in none. So the sample holds it once, with its count.
    """

    def __init__(self, memory: int, min_count: int = 1):
        """memory: bytes that merging may take. min_count: pretokens that occur less often will be left out."""
        self._memory, self._min_count = memory, min_count
        self._counts: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def add(self, counted: Counted) -> None:
        """Sample pretokens that are being spilled. Raises ValueError if merging will need far too much memory."""
        with self._lock:
            for row in np.flatnonzero(_sampled(counted)).tolist():
                pretoken = counted.pretoken(row)
                self._counts[pretoken] = self._counts.get(pretoken, 0) + int(counted.counts[row])
            sizes = [len(pretoken) for pretoken, count in self._counts.items() if count >= self._min_count]
        needed = SAMPLED * merge_bytes(len(sizes), sum(sizes))
        if len(sizes) >= LEAST_SAMPLE and needed > MARGIN * self._memory:
            raise ValueError(
                f"merging takes about {needed:,} bytes, more than the memory of {self._memory:,}, for the pretokens "
                "counted so far alone: allow more, or add --save-counts to count everything and learn which "
                "--min-count fits (in Python, count_pretokens and counts.at_least)"
            )


def _sampled(counted: Counted) -> np.ndarray:
    """Return which pretokens are in the sample, bool (n,), by a hash of their length and their last eight bytes."""
    starts, ends = counted.offsets[:-1], counted.offsets[1:]
    lengths = ends - starts
    hashes = lengths.astype(np.uint64)
    for back in range(1, 9):
        hashes *= np.uint64(0x100000001B3)
        hashes ^= counted.data[np.maximum(ends - back, starts)]
    hashes *= np.uint64(0x9E3779B97F4A7C15)
    return ((hashes >> np.uint64(40)) % np.uint64(SAMPLED) == 0) & (lengths <= LONGEST_SAMPLED)
