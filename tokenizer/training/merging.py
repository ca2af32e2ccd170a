"""Byte-pair encoding, exactly: from pretoken counts to the merge list.

Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016), on bytes: merge the pair
with the largest count; among equals the one with the smallest left id, then right id, or with the greatest bytes of
the left token, then of the right one (`kernels.byte_ties`). A pair's count is the sum over pretokens of their count
times its occurrences, overlapping ones included. Replacement goes from left to right without overlap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np

from tokenizer import first_use
from tokenizer.kernels import merge_loop as merge_kernel
from tokenizer.kernels import pairs as kernel
from tokenizer.training.counting import PretokenCounts
from tokenizer.training.forecast import begins_character, merge_bytes

WORK_PER_CALL = 1_000_000  # replacements: about 0.1 s, between which progress is reported and Ctrl-C handled
POSITIONS_PER_CALL = 1 << 23


def check_memory(counts: PretokenCounts, memory: int | None, characters: bool = False) -> None:
    """Raise ValueError if merging cannot start within `memory` bytes. The error names a minimum count that fits.

    characters: whether characters are merged, not bytes.
    """
    if memory is None:
        return
    begins = begins_character(counts.data) if characters else None
    needed = merge_bytes(len(counts), len(counts.data), None if begins is None else int(np.count_nonzero(begins)))
    if needed <= memory:
        return
    lengths = np.diff(counts.offsets)
    widths = None if begins is None else np.add.reduceat(begins, counts.offsets[:-1], dtype=np.int64)

    def taken(least: int) -> int:
        kept = counts.counts >= least
        left = None if widths is None else int(widths[kept].sum())
        return merge_bytes(int(kept.sum()), int(lengths[kept].sum()), left)

    limits = (np.unique(counts.counts) + 1).tolist()  # the last one leaves nothing
    least = limits[bisect_left(limits, True, key=lambda limit: taken(limit) <= memory)]
    fitting = taken(least)
    raise ValueError(
        f"merging {len(counts):,} distinct pretokens takes at least about {needed:,} bytes, more than "
        f"the memory of {memory:,}: allow more, or leave out those that occur less than {least} times "
        f"(`min_count={least}`, counts.at_least({least})), which takes {fitting:,} but is not exact"
    )


def learn_merges(
    counts: PretokenCounts,
    wanted: int,
    *,
    byte_order: bytes,
    tie_break: str = "ids",
    min_count: int,
    max_token_length: int | None,
    memory: int | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> np.ndarray:
    """Return up to `wanted` merges, int32 (n, 2): a symbol below 256 indexes `byte_order`, 256 + k is merge k.

    tie_break: "ids" or "bytes".
    memory: limit in bytes for the counts and the arrays of merging. Raises ValueError before they exceed it.
    """
    spare = None if memory is None else memory - counts.data.nbytes - counts.offsets.nbytes
    max_length = max_token_length if max_token_length is not None else 2**62
    first_use.begin("merging")
    training = _lay_out(counts, wanted, byte_order, tie_break)
    merges = np.empty((wanted, 2), dtype=np.int32)
    training = _lower_floor(training, min_count, spare)
    first_use.wait("merging")
    while True:
        outcome = merge_kernel.merge(training, merges, min_count, max_length, WORK_PER_CALL)
        made = int(training.state[kernel.MERGES])
        if progress is not None:
            progress("merge", made, wanted)
        if outcome == merge_kernel.FINISHED:
            return merges[:made]
        if outcome == merge_kernel.GROW:
            training = _grown(training, spare)
        elif outcome == merge_kernel.TIDY:
            training = _tidy(training, spare)
        elif outcome == merge_kernel.REFILL:
            training = _lower_floor(training, min_count, spare)


def empty_training(counts: PretokenCounts, wanted: int) -> kernel.Training:
    """Return the arrays for these counts, not filled yet."""
    positions = len(counts.data)
    index = np.int32 if positions < 2**31 - 2 and len(counts) < 2**31 else np.int64
    nodes = np.empty(kernel.NODE * (positions + 2), dtype=index)
    nodes[kernel.WORD] = nodes[-kernel.NODE + kernel.WORD] = kernel.NONE
    capacity = 65536 + 2 * (256 + wanted)
    return kernel.Training(
        nodes=nodes,
        counts=counts.counts,
        pool=np.empty(positions + positions // 2 + 64, dtype=index),
        records=np.empty(kernel.RECORD * capacity, dtype=np.int64),
        free=np.empty(capacity, dtype=np.int32),
        on_heap=np.empty(capacity, dtype=np.uint8),
        heap=np.empty((capacity, 3), dtype=np.int64),
        lengths=np.ones(256 + wanted, dtype=np.int64),
        labels=np.arange(256 + wanted, dtype=np.int64),
        by_bytes=np.empty(0, dtype=np.int32),
        with_left=np.full(256 + wanted, kernel.NONE, dtype=np.int32),
        with_right=np.full(256 + wanted, kernel.NONE, dtype=np.int32),
        made=np.empty(2 * (256 + wanted) + 2, dtype=np.int32),
        events=np.empty((1 << 16, 2), dtype=index),
        state=np.zeros(6, dtype=np.int64),
    )


def _lay_out(counts: PretokenCounts, wanted: int, byte_order: bytes, tie_break: str) -> kernel.Training:
    training = empty_training(counts, wanted)
    positions = len(counts.data)
    symbol_of_byte = np.empty(256, dtype=np.int64)
    symbol_of_byte[np.frombuffer(byte_order, dtype=np.uint8)] = np.arange(256)
    if tie_break == "bytes":
        training = training._replace(by_bytes=np.empty(256 + wanted, dtype=np.int32))
        training.by_bytes[:256] = symbol_of_byte[::-1]
        training.labels[symbol_of_byte] = np.arange(256)[::-1]
    for first, last in _steps(0, len(counts), POSITIONS_PER_CALL // 8):
        kernel.lay_out(counts.data, counts.offsets, symbol_of_byte, first, last, training.nodes)
    record_of_pair = np.full(65536, kernel.NONE, dtype=np.int64)
    shared = (training.counts, training.records, training.free, training.on_heap, training.state)
    for first, last in _steps(1, positions, POSITIONS_PER_CALL):
        kernel.count_first_pairs(training.nodes, *shared, first, last, record_of_pair)
    kernel.place_first_pairs(training.records, training.state)
    for first, last in _steps(1, positions, POSITIONS_PER_CALL):
        kernel.list_first_pairs(training.nodes, training.pool, training.records, first, last)
    return training


def _steps(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + size, last)) for start in range(first, last, size))


def _check_growth(training: kernel.Training, more: int, spare: int | None) -> None:
    """Raise ValueError if the arrays and `more` bytes exceed `spare`. Doubling an array needs its size again."""
    check_spare(sum(array.nbytes for array in training) + more, spare, int(training.state[kernel.MERGES]))


def check_spare(needed: int, spare: int | None, merges: int) -> None:
    """Raise ValueError if the next merge needs more bytes than `spare`."""
    if spare is not None and needed > spare:
        raise ValueError(
            f"after {merges:,} merges the next one takes {needed - spare:,} bytes more than the memory allows: "
            "allow more, or choose a smaller vocabulary or a larger minimum count (`min_count`, counts.at_least)"
        )


def _larger(array: np.ndarray, used: int) -> np.ndarray:
    """Return an array of twice the length that begins with the first `used` rows; the rest takes no memory yet."""
    larger = np.empty((2 * len(array), *array.shape[1:]), dtype=array.dtype)
    larger[:used] = array[:used]
    return larger


def _grown(training: kernel.Training, spare: int | None) -> kernel.Training:
    """Make room for one more merge. The positions of the pair at the top of the heap bound its number of new pairs."""
    top = int(training.heap[0, 2])
    length = int(training.records[kernel.RECORD * top + kernel.LENGTH])
    most_new_pairs = min(2 * (256 + int(training.state[kernel.MERGES])) + 2, 2 * length)
    if 2 * length > len(training.events):  # holds nothing between merges
        _check_growth(training, 4 * length * training.events[:1].nbytes - training.events.nbytes, spare)
        training = training._replace(events=np.empty((4 * length, 2), dtype=training.events.dtype))
    used = int(training.state[kernel.RECORDS])
    if used + most_new_pairs > len(training.on_heap):
        _check_growth(training, training.records.nbytes + training.free.nbytes + training.on_heap.nbytes, spare)
        training = training._replace(
            records=_larger(training.records, kernel.RECORD * used),
            free=_larger(training.free, int(training.state[kernel.FREE])),
            on_heap=_larger(training.on_heap, used),
        )
    used = int(training.state[kernel.HEAP])
    if used + most_new_pairs > len(training.heap):
        _check_growth(training, training.heap.nbytes, spare)
        training = training._replace(heap=_larger(training.heap, used))
    return training


def _tidy(training: kernel.Training, spare: int | None) -> kernel.Training:
    """Compact the pool and make room: at least half of it, and twice the positions of the pair with most."""
    used = int(training.state[kernel.RECORDS])
    starts = training.records[kernel.START : kernel.RECORD * used : kernel.RECORD]
    by_start, done, filled = np.argsort(starts), 0, 0
    while done < len(by_start):
        done, filled = kernel.tidy(training.nodes, training.pool, training.records, by_start, done, filled)
    training.state[kernel.POOL] = filled
    most = int(training.records[kernel.LENGTH : kernel.RECORD * used : kernel.RECORD].max(initial=0))
    while filled + max(filled, 2 * most) > len(training.pool):
        _check_growth(training, training.pool.nbytes, spare)
        training = training._replace(pool=_larger(training.pool, filled))
    return training


def _lower_floor(training: kernel.Training, min_count: int, spare: int | None) -> kernel.Training:
    """Put the next pairs on the heap: all with at least a quarter of the largest count."""
    used = int(training.state[kernel.RECORDS])
    largest = training.records[kernel.COUNT : kernel.RECORD * used : kernel.RECORD].max(initial=0)
    floor = max(min_count, int(largest) // 4)
    while kernel.refill(training.records, training.labels, training.on_heap, training.heap, training.state, floor):
        _check_growth(training, training.heap.nbytes, spare)
        training = training._replace(heap=_larger(training.heap, int(training.state[kernel.HEAP])))
    return training
