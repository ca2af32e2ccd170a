"""One pretoken's merges: the tables that tell which pairs and which whole tokens there are, and two ways to merge.

`pairs` is a hash table, uint64 (capacity, 2): left id << 32 | right id, and rank << 32 | merged id; NOTHING
marks an empty key and, as a value, a pair that does not merge. `byte_pairs`, uint64 (65536,), is what `pairs` has
for two single bytes, by their values. `tokens` finds a whole token by its bytes in `blob`, where token t is
blob[blob_offsets[t]:blob_offsets[t + 1]]: uint64, the upper half of the hash and id + 1, 0 where empty.
"""

from __future__ import annotations

import numba
import numpy as np

from tokenizer.kernel_tools import HASH_1, HASH_2, HASH_3, load_8, mix

NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
LOW_HALF = np.uint64(0xFFFFFFFF)
SCAN_LIMIT = 40  # longer pretokens are merged through a heap
SCRATCH = 4096  # pretokens longer than this are left to the caller


@numba.njit(inline="always")
def _find_pair(pairs, mask, left, right):
    key = np.uint64(left) << np.uint64(32) | np.uint64(right)
    slot = mix(key, HASH_3) >> np.uint64(20) & mask
    while pairs[slot, 0] != key:
        if pairs[slot, 0] == NOTHING:
            return NOTHING
        slot = slot + np.uint64(1) & mask
    return pairs[slot, 1]


@numba.njit(nogil=True, cache=True)
def fill_byte_pairs(byte_ids, pairs, byte_pairs):
    """Look every two bytes up in `pairs` once."""
    mask = np.uint64(len(pairs) - 1)
    for left in range(256):
        for right in range(256):
            byte_pairs[left << 8 | right] = _find_pair(pairs, mask, byte_ids[left], byte_ids[right])


@numba.njit(nogil=True, cache=True)
def insert_pairs(pairs, merges, ranks):
    """Fill the empty table; merges: int32 (n, 3), left, right and merged id. The first that repeats a pair, or -1."""
    mask = np.uint64(len(pairs) - 1)
    for i in range(len(merges)):
        key = np.uint64(merges[i, 0]) << np.uint64(32) | np.uint64(merges[i, 1])
        slot = mix(key, HASH_3) >> np.uint64(20) & mask
        while pairs[slot, 0] != NOTHING:
            if pairs[slot, 0] == key:
                return i
            slot = slot + np.uint64(1) & mask
        pairs[slot, 0] = key
        pairs[slot, 1] = np.uint64(ranks[i]) << np.uint64(32) | np.uint64(merges[i, 2])
    return -1


@numba.njit(nogil=True, cache=True)
def _hash_bytes(data, start, end):
    h = np.uint64(end - start) * HASH_3
    k = start
    while k + 8 <= end:
        h = (h ^ load_8(data, k)) * HASH_2
        h ^= h >> np.uint64(31)
        k += 8
    while k < end:
        h = (h ^ np.uint64(data[k])) * HASH_2
        k += 1
    return (h ^ h >> np.uint64(31)) * HASH_1


@numba.njit(nogil=True, cache=True)
def find_token(data, start, end, tokens, blob, blob_offsets):
    """The id of the token with these bytes, or -1."""
    mask = np.uint64(len(tokens) - 1)
    h = _hash_bytes(data, start, end)
    slot = h >> np.uint64(20) & mask
    while True:
        found = tokens[slot]
        if found == 0:
            return -1
        if (found ^ h) >> np.uint64(32) == 0:
            token = np.int64(found & LOW_HALF) - 1
            at = blob_offsets[token]
            length = end - start
            if blob_offsets[token + 1] - at == length:
                k = 0
                while k < length and blob[at + k] == data[start + k]:
                    k += 1
                if k == length:
                    return token
        slot = slot + np.uint64(1) & mask


@numba.njit(nogil=True, cache=True)
def insert_tokens(tokens, blob, blob_offsets):
    """Fill the empty table, leaving out empty tokens; the id of the first that repeats an earlier one, or -1."""
    mask = np.uint64(len(tokens) - 1)
    for token in range(len(blob_offsets) - 1):
        start = blob_offsets[token]
        end = blob_offsets[token + 1]
        if start == end:
            continue
        if find_token(blob, start, end, tokens, blob, blob_offsets) >= 0:
            return token
        h = _hash_bytes(blob, start, end)
        slot = h >> np.uint64(20) & mask
        while tokens[slot]:
            slot = slot + np.uint64(1) & mask
        tokens[slot] = h & ~LOW_HALF | np.uint64(token + 1)
    return -1


@numba.njit(nogil=True, cache=True)
def pairs_by_bytes(tokens, blob, blob_offsets, first, last, pairs, used):
    """List every pair of tokens that together are one of the tokens first..last, into int32 (n, 3) from `used` on.

    Columns: left, right, whole. Returns (tokens done, rows used); stops early when `pairs` could overflow.
    """
    for token in range(first, last):
        start = blob_offsets[token]
        end = blob_offsets[token + 1]
        if used + (end - start) > len(pairs):
            return token, used
        for middle in range(start + 1, end):
            left = find_token(blob, start, middle, tokens, blob, blob_offsets)
            if left >= 0:
                right = find_token(blob, middle, end, tokens, blob, blob_offsets)
                if right >= 0:
                    pairs[used, 0] = left
                    pairs[used, 1] = right
                    pairs[used, 2] = token
                    used += 1
    return last, used


@numba.njit(nogil=True, cache=True)
def merge_scan(data, start, end, byte_ids, byte_pairs, pairs, limit, ids, values):
    """Merge a short pretoken, always the pair of lowest rank below `limit`, leftmost first; how many ids are left."""
    mask = np.uint64(len(pairs) - 1)
    n = end - start
    for i in range(n):
        ids[i] = byte_ids[data[start + i]]
    for i in range(n - 1):
        values[i] = byte_pairs[np.int64(data[start + i]) << 8 | np.int64(data[start + i + 1])]
    while n > 1:
        best = values[0]
        at = 0
        for i in range(1, n - 1):
            if values[i] < best:
                best = values[i]
                at = i
        if best >> np.uint64(32) >= limit:
            break
        ids[at] = np.int32(best & LOW_HALF)
        n -= 1
        for i in range(at + 1, n):
            ids[i] = ids[i + 1]
            values[i] = values[i + 1]
        if at > 0:
            values[at - 1] = _find_pair(pairs, mask, ids[at - 1], ids[at])
        if at < n - 1:
            values[at] = _find_pair(pairs, mask, ids[at], ids[at + 1])
    return n


@numba.njit(nogil=True, cache=True)
def heap_begin(data, start, first, last, n, byte_ids, byte_pairs, ids, nexts, previous, values, heap, size):
    """Lay out bytes first..last of a long pretoken of n bytes for `heap_merge`; `heap` has two places a byte.

    Returns the heap's size; `size` is what the call for the bytes before returned.
    """
    for i in range(first, last):
        ids[i] = byte_ids[data[start + i]]
        nexts[i] = i + 1
        previous[i] = i - 1
        values[i] = NOTHING
        if i < n - 1:
            values[i] = byte_pairs[np.int64(data[start + i]) << 8 | np.int64(data[start + i + 1])]
        if values[i] != NOTHING:
            size = _heap_push(heap, size, values[i] & ~LOW_HALF | np.uint64(i))
    return size


@numba.njit(inline="always")
def _heap_push(heap, size, entry):
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[i] = heap[parent]
        i = parent
    heap[i] = entry
    return size + 1


@numba.njit(nogil=True, cache=True)
def heap_merge(n, pairs, limit, ids, nexts, previous, values, heap, size, work):
    """Do up to `work` steps on a pretoken of n bytes; the heap's size, 0 when no pair below `limit` is left.

    A heap entry is rank << 32 | position, so the lowest is the leftmost of the lowest rank; stale ones are
    told by the rank that `values` has for the position now. Each merge takes one entry and adds at most two.
    """
    mask = np.uint64(len(pairs) - 1)
    while size > 0 and work > 0:
        work -= 1
        entry = heap[0]
        if entry >> np.uint64(32) >= limit:
            return 0
        size -= 1
        moved = heap[size]
        i = 0
        while True:
            child = 2 * i + 1
            if child >= size:
                break
            if child + 1 < size and heap[child + 1] < heap[child]:
                child += 1
            if heap[child] >= moved:
                break
            heap[i] = heap[child]
            i = child
        heap[i] = moved

        at = np.int64(entry & LOW_HALF)
        value = values[at]
        if (value ^ entry) >> np.uint64(32):
            continue
        gone = nexts[at]
        after = nexts[gone]
        before = previous[at]
        ids[at] = np.int32(value & LOW_HALF)
        nexts[at] = after
        values[gone] = NOTHING
        values[at] = NOTHING
        if after < n:
            previous[after] = at
            values[at] = _find_pair(pairs, mask, ids[at], ids[after])
            if values[at] != NOTHING:
                size = _heap_push(heap, size, values[at] & ~LOW_HALF | np.uint64(at))
        if before >= 0:
            values[before] = _find_pair(pairs, mask, ids[before], ids[at])
            if values[before] != NOTHING:
                size = _heap_push(heap, size, values[before] & ~LOW_HALF | np.uint64(before))
    return size


@numba.njit(nogil=True, cache=True)
def heap_ids(n, ids, nexts, out, at):
    """Write the ids that are left to `out` from `at` on; where it ends."""
    i = 0
    while i < n:
        out[at] = ids[i]
        at += 1
        i = nexts[i]
    return at


@numba.njit(nogil=True, cache=True)
def merge_tokens(blob, blob_offsets, first, last, byte_ids, byte_pairs, pairs, below_own_rank, parts):
    """Merge each token's own bytes; parts: int32 (tokens, 3), how many ids are left and the first two of them.

    With `below_own_rank` only pairs of a rank below the token's id are merged. Tokens longer than SCRATCH are
    said to leave none.
    """
    ids = np.empty(SCRATCH, dtype=np.int32)
    nexts = np.empty(SCRATCH, dtype=np.int32)
    previous = np.empty(SCRATCH, dtype=np.int32)
    values = np.empty(SCRATCH, dtype=np.uint64)
    heap = np.empty(2 * SCRATCH, dtype=np.uint64)
    for token in range(first, last):
        start = blob_offsets[token]
        end = blob_offsets[token + 1]
        n = end - start
        parts[token, 0] = 0
        if n == 0 or n > SCRATCH:
            continue
        limit = np.uint64(token) if below_own_rank else LOW_HALF
        if n <= SCAN_LIMIT:
            n = merge_scan(blob, start, end, byte_ids, byte_pairs, pairs, limit, ids, values)
        else:
            size = heap_begin(blob, start, 0, n, n, byte_ids, byte_pairs, ids, nexts, previous, values, heap, 0)
            heap_merge(n, pairs, limit, ids, nexts, previous, values, heap, size, np.int64(1) << 62)
            n = heap_ids(n, ids, nexts, ids, 0)
        parts[token, 0] = n
        parts[token, 1] = ids[0]
        if n > 1:
            parts[token, 2] = ids[1]
