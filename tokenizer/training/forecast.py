"""The least memory that merging takes: exact after counting, estimated from a sample during counting."""

from __future__ import annotations

import threading

import numpy as np

from tokenizer.kinds.registry import kind_named
from tokenizer.training.count_table import Counted

SAMPLED = 256  # one distinct pretoken in this many is sampled
LEAST_SAMPLE = 1000  # sampled pretokens from which an estimate is trusted
LONGEST_SAMPLED = 64  # bytes: one huge pretoken must not count SAMPLED times
POSITION_BYTES = 28  # of the arrays of `wordpiece_training` by position and by node
MARGIN = 1.15  # for the sampling error and an unfilled pool


def merge_bytes(pretokens: int, size: int, characters: int | None = None) -> int:
    """Return the bytes that merging takes at its start, for `pretokens` distinct pretokens of `size` bytes in total.

    characters: their number in these pretokens if characters are merged, None if bytes are.

    A pretoken takes an offset and a count of 8 bytes each. Each of its bytes takes one byte. If bytes are merged, each
    also takes a node of three indices, and one and a half places in the pool of positions. If characters are merged,
    each takes POSITION_BYTES. Records of pairs come on top during merging.
    """
    index = 4 if max(pretokens, size + 2) < 2**31 else 8
    return 16 * pretokens + size + ((9 * index * size) // 2 if characters is None else POSITION_BYTES * characters)


def begins_character(data: np.ndarray) -> np.ndarray:
    """Return which bytes of UTF-8 are the first of a character, bool (n,)."""
    begins: np.ndarray = (data & 0xC0) != 0x80
    return begins


class MergeForecast:
    """Estimate that stops counting once merging the spilled pretokens cannot fit in memory.

    The hash of a pretoken decides whether it is sampled, so it is in the sample of every run or of none. The sample
    holds it once, with its total count.
    """

    def __init__(self, memory: int, min_count: int = 1, characters: bool = False):
        """memory: limit for merging in bytes. min_count: pretokens that occur less often will be left out.

        characters: whether characters are merged, not bytes.
        """
        self._memory, self._min_count, self._characters = memory, min_count, characters
        self._counts: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def add(self, counted: Counted) -> None:
        """Sample pretokens before they are spilled. Raises ValueError once merging cannot fit in memory."""
        with self._lock:
            for row in np.flatnonzero(_sample(counted)).tolist():
                pretoken = counted.pretoken(row)
                self._counts[pretoken] = self._counts.get(pretoken, 0) + int(counted.counts[row])
            kept = [pretoken for pretoken, count in self._counts.items() if count >= self._min_count]
        data = np.frombuffer(b"".join(kept), dtype=np.uint8)
        characters = int(np.count_nonzero(begins_character(data))) if self._characters else None
        needed = SAMPLED * merge_bytes(len(kept), len(data), characters)
        if len(kept) >= LEAST_SAMPLE and needed > MARGIN * self._memory:
            raise ValueError(
                f"merging takes at least about {needed:,} bytes, more than the memory of {self._memory:,}, for the "
                "pretokens counted so far alone: allow more, or add `save_counts` to count everything and learn which "
                "`min_count` fits (or use count_pretokens and counts.at_least)"
            )


def forecast_for(kind: str, memory: int | None, min_count: int = 1) -> MergeForecast | None:
    """Return the forecast for training this kind; None without a limit, and for a kind that only counts."""
    if memory is None or kind_named(kind).phase is None:
        return None
    return MergeForecast(memory, min_count, kind_named(kind).merges_characters)


def _sample(counted: Counted) -> np.ndarray:
    """Return which pretokens are in the sample, bool (n,), by a hash of their length and their last eight bytes."""
    starts, ends = counted.offsets[:-1], counted.offsets[1:]
    lengths = ends - starts
    hashes: np.ndarray = lengths.astype(np.uint64)
    for back in range(1, 9):
        hashes *= np.uint64(0x100000001B3)
        hashes ^= counted.data[np.maximum(ends - back, starts)]
    hashes *= np.uint64(0x9E3779B97F4A7C15)
    sampled: np.ndarray = ((hashes >> np.uint64(40)) % np.uint64(SAMPLED) == 0) & (lengths <= LONGEST_SAMPLED)
    return sampled
