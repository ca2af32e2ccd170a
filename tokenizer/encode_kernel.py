"""From pretokens to ids: two caches of recent pretokens in front, merging by rank behind.

`byte_pairs`, uint64 (65536,), is what `pairs` has for two single bytes, by their values. `pairs` is a hash table, uint64 (capacity, 2): left id << 32 | right id, and rank << 32 | merged id; NOTHING
marks an empty key and, as a value, a pair that does not merge. `tokens` finds a whole token by its bytes:
uint64, the upper half of the hash and id + 1, 0 where empty.

The caches are bounded and belong to one thread. `small`, uint64 (capacity, 4): pretokens of up to 15 bytes and
4 ids, packed as in `count_kernel`, ids in the last two words. `large`, uint64 (capacity, 16): up to 63 bytes, zero
padded, their number in the top byte of word 7, up to 15 ids and their number in the 16 halves of words
8 to 15. A key has two places side by side; a new one pushes the newer of the two to the older's place.
"""

from __future__ import annotations

import numba
import numpy as np

from tokenizer.kernel_tools import HASH_1, HASH_2, HASH_3, load_8, mix

NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
LOW_HALF = np.uint64(0xFFFFFFFF)
SCAN_LIMIT = 40  # longer pretokens are merged through a heap
SCRATCH = 4096  # pretokens longer than this are left to the caller
SMALL, LARGE, NEITHER = np.uint64(0), np.uint64(1), np.uint64(2)
OUT, DOCUMENT = range(2)  # in `state`: ids written, documents begun


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
    """Fill the empty table; the id of the first token whose bytes an earlier one has, or -1. Empty ones are left out."""
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
    """Merge a short pretoken, always the pair of lowest rank below `limit`, leftmost first. Returns the ids' number."""
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
def heap_begin(data, start, end, byte_ids, byte_pairs, pairs, ids, nexts, previous, values, heap):
    """Lay out a long pretoken for `heap_merge`; `heap` has two places a byte. Returns the heap's size."""
    mask = np.uint64(len(pairs) - 1)
    n = end - start
    size = 0
    for i in range(n):
        ids[i] = byte_ids[data[start + i]]
        nexts[i] = i + 1
        previous[i] = i - 1
    values[n - 1] = NOTHING
    for i in range(n - 1):
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
            size = heap_begin(blob, start, end, byte_ids, byte_pairs, pairs, ids, nexts, previous, values, heap)
            heap_merge(n, pairs, limit, ids, nexts, previous, values, heap, size, np.int64(1) << 62)
            n = heap_ids(n, ids, nexts, ids, 0)
        parts[token, 0] = n
        parts[token, 1] = ids[0]
        if n > 1:
            parts[token, 2] = ids[1]


@numba.njit(nogil=True, cache=True)
def _merge_pretoken(
    data, start, end, byte_ids, byte_pairs, pairs, tokens, blob, blob_offsets, scratch, values, heap, out, at
):
    """Write the ids of one pretoken of at most SCRATCH bytes to `out` from `at` on; where they end."""
    token = find_token(data, start, end, tokens, blob, blob_offsets)
    if token >= 0:
        out[at] = token
        return at + 1
    no_limit = LOW_HALF
    ids = scratch[0]
    n = end - start
    if n <= SCAN_LIMIT:
        n = merge_scan(data, start, end, byte_ids, byte_pairs, pairs, no_limit, ids, values)
        for i in range(n):
            out[at + i] = ids[i]
        return at + n
    nexts = scratch[1]
    previous = scratch[2]
    size = heap_begin(data, start, end, byte_ids, byte_pairs, pairs, ids, nexts, previous, values, heap)
    heap_merge(n, pairs, no_limit, ids, nexts, previous, values, heap, size, np.int64(1) << 62)
    return heap_ids(n, ids, nexts, out, at)


@numba.njit(nogil=True, cache=True)
def _encode_cached(
    data, offsets, start, ends, first, last, byte_ids, small, large, out, id_offsets, state, packed
):
    """Encode pretokens for as long as the caches know them; the index of the first that they do not.

    `packed` (uint64, (4,)) then has what `_remember` needs: the packed pretoken, its slot, and which cache.
    Nothing but this loop runs per pretoken: calls that take arrays would cost more than all its work.
    """
    small_mask = np.uint64(len(small) - 2)
    large_mask = np.uint64(len(large) - 2)
    at = state[OUT]
    document = state[DOCUMENT]
    documents = len(offsets) - 1
    next_document_end = offsets[document + 1] if document < documents else np.int64(-1)
    safe = len(data) - 64
    i = first
    while i < last:
        end = ends[i]
        length = end - start
        if length < 16:
            if start <= safe:
                low = load_8(data, start)
                high = load_8(data, start + 8)
                if length <= 8:
                    low &= NOTHING >> np.uint64(64 - 8 * length)
                    high = np.uint64(0)
                else:
                    high &= NOTHING >> np.uint64(128 - 8 * length)
            else:
                low = np.uint64(0)
                high = np.uint64(0)
                for k in range(length):
                    if k < 8:
                        low |= np.uint64(data[start + k]) << np.uint64(8 * k)
                    else:
                        high |= np.uint64(data[start + k]) << np.uint64(8 * (k - 8))
            high |= np.uint64(length) << np.uint64(56)
            slot = mix(low, high) >> np.uint64(20) & small_mask
            if small[slot, 0] != low or small[slot, 1] != high:
                slot += np.uint64(1)
                if small[slot, 0] != low or small[slot, 1] != high:
                    packed[0] = low
                    packed[1] = high
                    packed[2] = slot - np.uint64(1)
                    packed[3] = SMALL
                    break
            # Room for four ids is there; those past the pretoken's own are overwritten.
            word = small[slot, 2]
            out[at] = np.uint32(word & LOW_HALF)
            at += 1
            if word >> np.uint64(32) != LOW_HALF:
                out[at] = np.uint32(word >> np.uint64(32))
                at += 1
                word = small[slot, 3]
                if word & LOW_HALF != LOW_HALF:
                    out[at] = np.uint32(word & LOW_HALF)
                    at += 1
                    if word >> np.uint64(32) != LOW_HALF:
                        out[at] = np.uint32(word >> np.uint64(32))
                        at += 1
        elif length < 64 and start <= safe:
            words = (length + 7) >> 3
            final = NOTHING >> np.uint64(64 * words - 8 * length)
            h = np.uint64(length)
            for k in range(words - 1):
                h = (h ^ load_8(data, start + 8 * k)) * HASH_2
                h ^= h >> np.uint64(29)
            last_word = load_8(data, start + 8 * (words - 1)) & final
            slot = mix(h, last_word) >> np.uint64(20) & large_mask
            if words == 8:
                last_word |= np.uint64(length) << np.uint64(56)
            hit = False
            for way in range(2):
                row = slot + np.uint64(way)
                if large[row, 7] >> np.uint64(56) == np.uint64(length) and large[row, words - 1] == last_word:
                    k = 0
                    while k < words - 1 and large[row, k] == load_8(data, start + 8 * k):
                        k += 1
                    if k == words - 1:
                        hit = True
                        n = np.int64(large[row, 15] >> np.uint64(32))
                        for k in range(n):
                            half = large[row, 8 + (k >> 1)] >> np.uint64(32 * (k & 1))
                            out[at + k] = np.uint32(half & LOW_HALF)
                        at += n
                        break
            if not hit:
                packed[0] = last_word
                packed[2] = slot
                packed[3] = LARGE
                break
        else:
            packed[3] = NEITHER
            break
        start = end
        i += 1
        while end == next_document_end:
            document += 1
            id_offsets[document] = at
            next_document_end = offsets[document + 1] if document < documents else np.int64(-1)
    state[OUT] = at
    state[DOCUMENT] = document
    return i


@numba.njit(nogil=True, cache=True)
def _remember(data, start, length, small, large, out, at, n, packed):
    """Put a pretoken and its `n` ids, which begin at out[at], into the cache that `packed` names, if it fits."""
    slot = packed[2]
    if packed[3] == SMALL and n <= 4:
        small[slot + np.uint64(1)] = small[slot]
        small[slot, 0] = packed[0]
        small[slot, 1] = packed[1]
        small[slot, 2] = np.uint64(out[at]) | (np.uint64(out[at + 1]) if n > 1 else LOW_HALF) << np.uint64(32)
        word = np.uint64(out[at + 2]) if n > 2 else LOW_HALF
        small[slot, 3] = word | (np.uint64(out[at + 3]) if n > 3 else LOW_HALF) << np.uint64(32)
    elif packed[3] == LARGE and n <= 15:
        large[slot + np.uint64(1)] = large[slot]
        words = (length + 7) >> 3
        for k in range(words - 1):
            large[slot, k] = load_8(data, start + 8 * k)
        large[slot, 7] = np.uint64(length) << np.uint64(56)
        large[slot, words - 1] = packed[0]
        for k in range(8, 16):
            large[slot, k] = np.uint64(0)
        for k in range(n):
            large[slot, 8 + (k >> 1)] |= np.uint64(out[at + k]) << np.uint64(32 * (k & 1))
        large[slot, 15] |= np.uint64(n) << np.uint64(32)


@numba.njit(nogil=True, cache=True)
def encode(
    data,
    offsets,
    start,
    ends,
    first,
    last,
    byte_ids,
    byte_pairs,
    pairs,
    tokens,
    blob,
    blob_offsets,
    small,
    large,
    scratch,
    values,
    heap,
    out,
    id_offsets,
    state,
    packed,
):
    """Encode the pretokens ends[first:last], the first of which starts at data[start].

    Whole pretokens are looked up in `tokens` before they are merged. Ids go to `out` (uint32, room for one a
    byte) from state[OUT] on; id_offsets[d] is where those of document d begin. Returns the index of the first
    pretoken not encoded because it is longer than SCRATCH, else `last`.
    """
    i = first
    while True:
        i = _encode_cached(
            data, offsets, start, ends, i, last, byte_ids, small, large, out, id_offsets, state, packed
        )
        if i == last:
            return last
        if i > first:
            start = ends[i - 1]
            first = i
        end = ends[i]
        if end - start > SCRATCH:
            return i
        at = state[OUT]
        done = _merge_pretoken(
            data, start, end, byte_ids, byte_pairs, pairs, tokens, blob, blob_offsets, scratch, values, heap, out, at
        )
        _remember(data, start, end - start, small, large, out, at, done - at, packed)
        state[OUT] = done
        i += 1
        first = i
        start = end
        while state[DOCUMENT] < len(offsets) - 1 and offsets[state[DOCUMENT] + 1] == end:
            state[DOCUMENT] += 1
            id_offsets[state[DOCUMENT]] = done
