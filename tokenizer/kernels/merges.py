"""Merging of pretokens in two ways: several short ones interleaved, or a long one through a heap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.hash_tables import LOW_HALF, NOTHING, find_pair, insert_pair, pair_bucket, pair_key
from tokenizer.kernels.tools import (
    ALL,
    ONE,
    equal_of_8,
    inlined,
    internal,
    kernel,
    leading_zeros,
    least_of_8,
    prefetch,
    trailing_zeros,
)

SCAN_LIMIT = 64  # longer pretokens are merged through a heap
SCRATCH = 4096  # bytes; the caller handles longer pretokens

LANES = 12  # pretokens whose merges are interleaved
NO_RANK = np.uint32(0xFFFFFFFF)  # rank of a pair that does not merge
PLACES = SCAN_LIMIT + 8  # of a lane in the arrays of LANES_RECORD; byte i is at place i + 1

LANE = np.dtype(
    [
        ("item", np.int64),  # index of the pretoken, -1 for none
        ("padded", np.uint64),  # its bytes, rounded up to whole vectors
        ("left", np.uint64),  # bit mask of its remaining places
        ("at", np.uint64),  # place of the last merge, and the key of its new pair
        ("after_key", np.uint64),
        ("before", np.uint64),  # place before it, and the key of its new pair
        ("before_key", np.uint64),
    ]
)
# Scratch memory of `merge_short`: PLACES per lane, one per byte.
LANES_RECORD = np.dtype(
    [
        ("ids", np.int32, LANES * PLACES),
        ("merged", np.int32, LANES * PLACES),  # merged id of the pair that starts at the place
        ("ranks", np.uint32, LANES * PLACES),  # rank of that pair; the leftmost minimum merges next
        ("state", LANE, LANES),
    ]
)


class Heap(NamedTuple):
    """Scratch memory for a pretoken of up to n bytes: a linked list of remaining ids and a heap of pairs."""

    ids: np.ndarray  # int32 (n,)
    nexts: np.ndarray  # int32 (n,)
    previous: np.ndarray  # int32 (n,)
    values: np.ndarray  # uint64 (n,): rank << 32 | merged id of the pair that starts here, else NOTHING
    # uint64 (2 n,): rank << 32 | place, so the minimum is the leftmost of the lowest rank; `values` shows stale entries
    entries: np.ndarray


def make_heap(n: int) -> Heap:
    """Return uninitialized scratch memory for a pretoken of up to n bytes."""
    ids, nexts, previous = np.empty((3, n), dtype=np.int32)
    return Heap(ids, nexts, previous, np.empty(n, dtype=np.uint64), np.empty(2 * n, dtype=np.uint64))


# `Heap` as a record, which is one kernel argument.
HEAP_RECORD = np.dtype(
    [
        *((name, np.int32, SCRATCH) for name in ("ids", "nexts", "previous")),
        ("values", np.uint64, SCRATCH),
        ("entries", np.uint64, 2 * SCRATCH),
    ]
)
SCRATCH_RECORD = np.dtype([("lanes", LANES_RECORD), ("heap", HEAP_RECORD)])
MERGE_TOKENS_RECORD = np.dtype(
    [
        ("item", np.int64, (1, 2)),
        ("span", np.int64, (1, 2)),
        ("found", np.uint32, SCRATCH),
        ("scratch", SCRATCH_RECORD),
    ]
)


@internal
def merge_short(data, items, n, merges, lanes, found, used, spans):
    """Merge n pretokens of at most SCAN_LIMIT bytes each, always the pair of lowest rank, leftmost first.

    items: int64 (n, 2), start in data and length. The ids of item k are written to found[spans[k, 0]:][:spans[k, 1]],
    from `used` on. Return the end of all ids. Pair look-ups wait for memory, so LANES pretokens take turns: each
    prefetches its next two rows of `pairs` one turn before it reads them. Places never move; the set bits of `left` are
    the remaining ones.
    """
    ids = lanes.ids
    merged = lanes.merged
    ranks = lanes.ranks
    state = lanes.state
    pairs = merges.pairs
    for lane in range(LANES):
        state[lane].item = -1
    begun = 0
    busy = n > 0
    while busy:
        # First all lanes read their prefetched pairs or start a pretoken; then all search their next merge. In between,
        # the scalar stores complete, so the vector loads of the search do not stall.
        for lane in range(LANES):
            first = np.uint64(lane * PLACES + 1)
            if state[lane].item >= 0:
                # Without a neighbour the key matches no pair, and the place before the first is never read.
                place = state[lane].before
                value = find_pair(pairs, state[lane].before_key)
                ranks[first + place] = value >> np.uint64(32)
                merged[first + place] = np.int32(value & LOW_HALF)
                place = state[lane].at
                value = find_pair(pairs, state[lane].after_key)
                ranks[first + place] = value >> np.uint64(32)
                merged[first + place] = np.int32(value & LOW_HALF)
            elif begun < n:
                start = np.uint64(items[begun, 0])
                length = np.uint64(items[begun, 1])
                padded = length + np.uint64(7) & ~np.uint64(7)  # the search for the minimum reads whole vectors
                final = start + length - ONE
                byte = np.uint64(data[start])
                for i in range(padded):
                    next_byte = np.uint64(data[min(start + i + ONE, final)])
                    value = merges.of_bytes[byte << np.uint64(8) | next_byte]
                    ids[first + i] = merges.byte_ids[byte]
                    merged[first + i] = np.int32(value & LOW_HALF)
                    ranks[first + i] = (value | np.uint64(i + ONE >= length) * ALL) >> np.uint64(32)
                    byte = next_byte
                state[lane].item = begun
                state[lane].padded = padded
                state[lane].left = ALL >> np.uint64(SCAN_LIMIT) - length
                begun += 1
        busy = False
        for lane in range(LANES):
            if state[lane].item < 0:
                continue
            busy = True
            first = np.uint64(lane * PLACES + 1)
            left = state[lane].left
            least = least_of_8(ranks, first)
            for i in range(np.uint64(8), state[lane].padded, np.uint64(8)):
                least = min(least, least_of_8(ranks, first + i))
            if least == NO_RANK:
                item = state[lane].item
                spans[item, 0] = used
                while left:
                    found[used] = ids[first + trailing_zeros(left)]
                    left &= left - ONE
                    used += 1
                spans[item, 1] = used - spans[item, 0]
                state[lane].item = -1
                continue
            at = np.uint64(0)
            places = equal_of_8(ranks, first, least)
            while places == 0:
                at += np.uint64(8)
                places = equal_of_8(ranks, first + at, least)
            at += trailing_zeros(places)
            here = ONE << at
            above = left & ~(here | here - ONE)
            below = left & (here - ONE)
            gone = above & (~above + ONE)
            above ^= gone
            joined = merged[first + at]
            ids[first + at] = joined
            ranks[first + trailing_zeros(gone)] = NO_RANK
            before = np.uint64(63) - leading_zeros(below)
            after = trailing_zeros(above) & np.uint64(63)
            after_key = pair_key(joined, ids[first + after]) | np.uint64(above == 0) * ALL
            before_key = pair_key(ids[first + before], joined) | np.uint64(below == 0) * ALL
            prefetch(pairs, pair_bucket(pairs, after_key))
            prefetch(pairs, pair_bucket(pairs, before_key))
            state[lane].left = left ^ gone
            state[lane].at = at
            state[lane].before = before
            state[lane].after_key = after_key
            state[lane].before_key = before_key
    return used


@kernel
def heap_begin(data, start, first, last, n, merges, heap, size):
    """Lay out bytes first..last of a long pretoken of n bytes for `heap_merge`.

    size: size of the heap after the bytes before `first`. Return the new size.
    """
    for i in range(first, last):
        heap.ids[i] = merges.byte_ids[data[start + i]]
        heap.nexts[i] = i + 1
        heap.previous[i] = i - 1
        value = NOTHING
        if i < n - 1:
            value = merges.of_bytes[np.int64(data[start + i]) << 8 | np.int64(data[start + i + 1])]
        heap.values[i] = value
        if value != NOTHING:
            size = heap_push(heap.entries, size, value & ~LOW_HALF | np.uint64(i))
    return size


@inlined
def heap_push(entries, size, entry):
    """Add an entry. Return the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if entries[parent] <= entry:
            break
        entries[i] = entries[parent]
        i = parent
    entries[i] = entry
    return size + 1


@inlined
def heap_pop(entries, size):
    """Remove the least entry, entries[0]. Return the new size."""
    size -= 1
    moved = entries[size]
    i = 0
    child = 1
    while child + 1 < size:
        child += np.int64(entries[child + 1] < entries[child])  # without a branch that is hard to predict
        if entries[child] >= moved:
            break
        entries[i] = entries[child]
        i = child
        child = 2 * i + 1
    if child + 1 == size and entries[child] < moved:
        entries[i] = entries[child]
        i = child
    entries[i] = moved
    return size


@inlined
def merge_at(at, n, pairs, heap, size):
    """Merge the pair that starts at a place of a pretoken of n bytes. Return the new size of the heap."""
    ids = heap.ids
    nexts = heap.nexts
    previous = heap.previous
    values = heap.values
    gone = nexts[at]
    after = nexts[gone]
    before = previous[at]
    ids[at] = np.int32(values[at] & LOW_HALF)
    nexts[at] = after
    values[gone] = NOTHING
    values[at] = NOTHING
    if after < n:
        previous[after] = at
        values[at] = find_pair(pairs, pair_key(ids[at], ids[after]))
        if values[at] != NOTHING:
            size = heap_push(heap.entries, size, values[at] & ~LOW_HALF | np.uint64(at))
    if before >= 0:
        values[before] = find_pair(pairs, pair_key(ids[before], ids[at]))
        if values[before] != NOTHING:
            size = heap_push(heap.entries, size, values[before] & ~LOW_HALF | np.uint64(before))
    return size


@kernel
def heap_merge(n, merges, heap, size, work):
    """Do up to `work` steps on a pretoken of n bytes. Return the heap's size, 0 if no pair is left.

    Each merge removes one entry and adds at most two, so the heap never exceeds 2 n entries.
    """
    while size > 0 and work > 0:
        work -= 1
        entry = heap.entries[0]
        size = heap_pop(heap.entries, size)
        at = np.int64(entry & LOW_HALF)
        if (heap.values[at] ^ entry) >> np.uint64(32):
            continue  # stale: another pair starts here now
        size = merge_at(at, n, merges.pairs, heap, size)
    return size


@kernel
def heap_ids(n, heap, out, at):
    """Write the remaining ids to out[at:]. Return the end of the ids."""
    i = 0
    while i < n:
        out[at] = heap.ids[i]
        at += 1
        i = heap.nexts[i]
    return at


@kernel
def merge_tokens(tokens, first, last, merges, memory, learn, parts):
    """Merge the bytes of each token. parts: int32 (tokens, 3), the number of remaining ids and the first two.

    With `learn`, two remaining ids become the merge that makes the token, with its id as rank, before the next token
    is merged; the kernel stops at a token with another number of ids. Tokens longer than SCRATCH get 0 ids. Return the
    token where it stopped, or `last`.
    """
    # A slice has no length in its type, so one compiled version serves all lengths.
    items = memory[0].item[:]
    span = memory[0].span[:]
    found = memory[0].found[:]
    scratch = memory[0].scratch
    for token in range(first, last):
        start = tokens.offsets[token]
        end = tokens.offsets[token + 1]
        n = end - start
        parts[token, 0] = 0
        if n == 0 or n > SCRATCH:
            continue
        if n <= SCAN_LIMIT:
            items[0, 0] = start
            items[0, 1] = n
            n = merge_short(tokens.blob, items, 1, merges, scratch.lanes, found, 0, span)
        else:
            size = heap_begin(tokens.blob, start, 0, n, n, merges, scratch.heap, 0)
            heap_merge(n, merges, scratch.heap, size, np.int64(1) << 62)
            n = heap_ids(n, scratch.heap, found, 0)
        parts[token, 0] = n
        parts[token, 1] = found[0]
        if n > 1:
            parts[token, 2] = found[1]
        if learn and end - start > 1:
            if n != 2:
                return token
            value = np.uint64(token) << np.uint64(32) | np.uint64(token)
            insert_pair(merges.pairs, pair_key(found[0], found[1]), value)
            if end - start == 2:
                merges.of_bytes[np.int64(tokens.blob[start]) << 8 | np.int64(tokens.blob[start + 1])] = value
    return last
