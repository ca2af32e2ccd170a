"""Pretokens that missed the caches: look them up as tokens or merge them, close their gaps, and remember their ids."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.caches import COUNT_BITS, LARGE_ROW, SMALL_ROW, find_small_in_large, row_in_large
from tokenizer.kernels.hash_tables import find_long, find_short
from tokenizer.kernels.merges import SCAN_LIMIT, SCRATCH, heap_begin, heap_ids, heap_merge, merge_short
from tokenizer.kernels.tools import ALL, SHORT, internal, load_8, store_8

BATCH = 512  # pretokens that `encode` looks up at once; all of them can miss
WAITING = 128  # misses that are worth merging together
NO_ROW = ALL  # in place of the row of a pretoken that is not cached

# Pretokens that missed the caches, in text order. Each has a gap in `out`.
MISSES = WAITING + BATCH + 1
MISSES_RECORD = np.dtype(
    [
        ("starts", np.int64, MISSES),
        ("lengths", np.int64, MISSES),
        ("low", np.uint64, MISSES),  # as in a batch
        ("high", np.uint64, MISSES),
        ("rows", np.uint64, MISSES),
        ("written", np.int64, MISSES),  # start of the gap in `out`, which has one place per byte
        ("counts", np.int64, MISSES),  # number of ids in `found`
        ("places", np.int64, MISSES),  # start of the ids in `found`
        ("merging", np.int64, MISSES),  # indices of the misses to merge
        ("items", np.int64, (MISSES, 2)),  # start and length of each
        ("spans", np.int64, (MISSES, 2)),  # start and number of its ids in `found`
        ("found", np.uint32, MISSES * SCAN_LIMIT + SCRATCH),
        ("sums", np.float64, SCRATCH + 1),  # and path of a word, as `pieces.best_path` describes
        ("path", np.int64, SCRATCH + 1),
    ]
)


@internal
def find_or_merge(data, misses, used, merges, tokens, large, missed, scratch):
    """Look up the first `misses` as whole tokens, and merge the rest. Write the ids to `found` from `used` on."""
    n = 0
    found = missed.found[:]  # a slice has no length in its type, so one compiled version serves all lengths
    for m in range(misses):
        start = missed.starts[m]
        length = missed.lengths[m]
        count = 0
        if length < SHORT:
            token = find_short(missed.low[m], missed.high[m], tokens)
            if token < 0:
                count = find_small_in_large(missed.low[m], missed.high[m], large, found, used)
        else:
            token = find_long(data, start, start + length, tokens)
        if token >= 0:
            found[used] = token
            count = 1
        if count:
            missed.places[m] = used
            missed.counts[m] = count
            used += count
        else:
            missed.merging[n] = m
            missed.items[n, 0] = start
            missed.items[n, 1] = length
            n += 1
    merge_short(data, missed.items[:], n, merges, scratch.lanes, found, used, missed.spans[:])
    for i in range(n):
        m = missed.merging[i]
        missed.places[m] = missed.spans[i, 0]
        missed.counts[m] = missed.spans[i, 1]


@internal
def find_or_merge_one(data, start, length, merges, tokens, found, heap):
    """Look up or merge a pretoken of more than SCAN_LIMIT bytes. Write its ids to `found` and return their number."""
    token = find_long(data, start, start + length, tokens)
    if token >= 0:
        found[0] = token
        return np.int64(1)
    size = heap_begin(data, start, 0, length, length, merges, heap, 0)
    heap_merge(length, merges, heap, size, np.int64(1) << 62)
    return heap_ids(length, heap, found, 0)


@internal
def close_gaps(misses, end, missed, out, id_offsets, document, documents):
    """Write the ids of the misses into their gaps, and move the ids between the gaps to close them.

    Adjusts the starts of documents document + 1 to `documents` in `id_offsets`. end: end of ids and gaps in `out`.
    Return the end of the ids without gaps.
    """
    at = missed.written[0]
    moved = 0
    for m in range(misses):
        while document < documents and id_offsets[document + 1] <= missed.written[m]:
            document += 1
            id_offsets[document] -= moved
        count = missed.counts[m]
        for i in range(count):
            out[at + i] = missed.found[missed.places[m] + i]
        at += count
        moved += missed.lengths[m] - count
        segment = missed.written[m] + missed.lengths[m]
        segment_end = missed.written[m + 1] if m + 1 < misses else end
        # Two ids at a time; the one beyond the end was moved already, or is unused.
        for i in range(0, segment_end - segment, 2):
            store_8(out, at + i, load_8(out, segment + i))
        at += segment_end - segment
    for d in range(document + 1, documents + 1):
        id_offsets[d] -= moved
    return at


@internal
def remember(data, misses, missed, caches):
    """Insert the misses whose ids fit into the caches."""
    small = caches.small
    large = caches.large
    found = missed.found
    for m in range(misses):
        row = missed.rows[m]
        if row == NO_ROW:
            continue
        low = missed.low[m]
        at = missed.places[m]
        n = missed.counts[m]
        length = missed.lengths[m]
        if length < SHORT and n <= 4:
            high = missed.high[m] | np.uint64(n) << np.uint64(64 - COUNT_BITS)
            if small[row] == low and small[row + np.uint64(1)] == high:
                continue  # an equal miss before this one was just inserted
            for w in range(SMALL_ROW):
                small[row + np.uint64(SMALL_ROW + w)] = small[row + np.uint64(w)]
            small[row] = low
            small[row + np.uint64(1)] = high
            for w in range(2):
                first = np.uint64(found[at + 2 * w]) if n > 2 * w else np.uint64(0)
                second = np.uint64(found[at + 2 * w + 1]) if n > 2 * w + 1 else np.uint64(0)
                small[row + np.uint64(2 + w)] = first | second << np.uint64(32)
        elif n <= 15:
            if length < SHORT:
                row = row_in_large(low, missed.high[m], large)
                if large[row] == low and large[row + np.uint64(1)] == missed.high[m]:
                    continue
            for w in range(LARGE_ROW):
                large[row + np.uint64(LARGE_ROW + w)] = large[row + np.uint64(w)]
                large[row + np.uint64(w)] = 0
            if length < SHORT:
                large[row] = low
                large[row + np.uint64(1)] = missed.high[m]
            else:
                last = ((length + 7) >> 3) - 1
                for w in range(last):
                    large[row + np.uint64(w)] = load_8(data, missed.starts[m] + 8 * w)
                large[row + np.uint64(last)] = low
                large[row + np.uint64(7)] |= np.uint64(length) << np.uint64(56)
            for w in range(n):
                large[row + np.uint64(8 + (w >> 1))] |= np.uint64(found[at + w]) << np.uint64(32 * (w & 1))
            large[row + np.uint64(15)] |= np.uint64(n) << np.uint64(32)
