"""From pretokens to ids: two caches of recent pretokens in front of the merging in `apply_kernel`.

The caches are bounded and belong to one thread. `small`, uint64 (capacity, 4): pretokens of up to 15 bytes and
4 ids, packed as in `count_kernel`, ids in the last two words. `large`, uint64 (capacity, 16): up to 63 bytes, zero
padded, their number in the top byte of word 7, up to 15 ids and their number in the 16 halves of words
8 to 15. A key has two places side by side; a new one pushes the newer of the two to the older's place.
"""

from __future__ import annotations

import numba
import numpy as np

from tokenizer.apply_kernel import (
    LOW_HALF,
    NOTHING,
    SCAN_LIMIT,
    SCRATCH,
    find_token,
    heap_begin,
    heap_ids,
    heap_merge,
    merge_scan,
)
from tokenizer.kernel_tools import HASH_2, load_8, mix

SMALL, LARGE, NEITHER = np.uint64(0), np.uint64(1), np.uint64(2)  # which cache a pretoken belongs in
OUT, DOCUMENT = range(2)  # in `state`: ids written, documents begun


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
    size = heap_begin(data, start, 0, n, n, byte_ids, byte_pairs, ids, nexts, previous, values, heap, 0)
    heap_merge(n, pairs, no_limit, ids, nexts, previous, values, heap, size, np.int64(1) << 62)
    return heap_ids(n, ids, nexts, out, at)


@numba.njit(nogil=True, cache=True)
def _encode_cached(data, offsets, start, ends, first, last, byte_ids, small, large, out, id_offsets, state, packed):
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
        for k in range(4):
            small[slot + np.uint64(1), k] = small[slot, k]
        small[slot, 0] = packed[0]
        small[slot, 1] = packed[1]
        small[slot, 2] = np.uint64(out[at]) | (np.uint64(out[at + 1]) if n > 1 else LOW_HALF) << np.uint64(32)
        word = np.uint64(out[at + 2]) if n > 2 else LOW_HALF
        small[slot, 3] = word | (np.uint64(out[at + 3]) if n > 3 else LOW_HALF) << np.uint64(32)
    elif packed[3] == LARGE and n <= 15:
        for k in range(16):
            large[slot + np.uint64(1), k] = large[slot, k]
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
        i = _encode_cached(data, offsets, start, ends, i, last, byte_ids, small, large, out, id_offsets, state, packed)
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
