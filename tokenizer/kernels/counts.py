"""A hash table from pretokens to 64-bit counts, in two parts.

Pretokens of up to 15 bytes are in `short`, uint64 (capacity, 4). The first two words hold the bytes, zero padded, with
their number in the top byte of the second word, so no key is zero. The third word is the count. A row is half a cache
line, and a probe needs no other memory. The bytes of longer pretokens are in an arena. `long_slots`, uint64, holds the
upper half of the hash and an entry's index + 1, or 0 if empty. `long_entries`, int64 (n, 3), holds the start in the
arena, the length and the count.
"""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.tools import SHORT, hash_bytes, inlined, kernel, mix, pack, pack_slowly

SHORT_ENTRIES, LONG_ENTRIES, ARENA_USED = range(3)  # in `state`, int64 (3,)


@inlined
def _count_long(data, start, end, weight, long_slots, long_entries, arena, state):
    """Count the pretoken data[start:end] of 16 bytes or more. Return False if the table must grow first."""
    mask = np.uint64(len(long_slots) - 1)
    limit = min(len(long_slots) // 2, len(long_entries))
    length = end - start
    h = hash_bytes(data, start, end)
    tag = h >> np.uint64(32) << np.uint64(32)
    slot = h >> np.uint64(20) & mask
    while True:
        found = long_slots[slot]
        if found == 0:
            used = state[ARENA_USED]
            if state[LONG_ENTRIES] >= limit or used + length > len(arena):
                return False
            entry = state[LONG_ENTRIES]
            state[LONG_ENTRIES] += 1
            state[ARENA_USED] = used + length
            for k in range(length):  # a slice assignment takes seconds to compile
                arena[used + k] = data[start + k]
            long_slots[slot] = tag | np.uint64(entry + 1)
            long_entries[entry, 0] = used
            long_entries[entry, 1] = length
            long_entries[entry, 2] = weight
            return True
        if found & np.uint64(0xFFFFFFFF00000000) == tag:
            entry = np.int64(found & np.uint64(0xFFFFFFFF)) - 1
            if long_entries[entry, 1] == length:
                at = long_entries[entry, 0]
                k = 0
                while k < length and arena[at + k] == data[start + k]:
                    k += 1
                if k == length:
                    long_entries[entry, 2] += weight
                    return True
        slot = slot + np.uint64(1) & mask


@kernel
def count(data, start, ends, first, last, weights, short, long_slots, long_entries, arena, state):
    """Count the pretokens ends[first:last], the first of which starts at data[start].

    Pretoken i counts weights[i] times, or once if `weights` is empty. Return the index of the first pretoken not
    counted because the table must grow, or `last`.
    """
    short_mask = np.uint64(len(short) - 1)
    short_limit = len(short) // 2
    weighted = len(weights) > 0
    weight = np.uint64(1)
    safe = len(data) - 16
    for i in range(first, last):
        end = ends[i]
        length = end - start
        if weighted:
            weight = np.uint64(weights[i])
        if length < SHORT:
            low, high = pack(data, start, length) if start <= safe else pack_slowly(data, start, length)
            slot = mix(low, high) >> np.uint64(20) & short_mask
            while True:
                if short[slot, 0] == low and short[slot, 1] == high:
                    short[slot, 2] += weight
                    break
                if short[slot, 1] == 0:
                    if state[SHORT_ENTRIES] >= short_limit:
                        return i
                    state[SHORT_ENTRIES] += 1
                    short[slot, 0] = low
                    short[slot, 1] = high
                    short[slot, 2] = weight
                    break
                slot = slot + np.uint64(1) & short_mask
        else:
            if not _count_long(data, start, end, np.int64(weight), long_slots, long_entries, arena, state):
                return i
        start = end
    return last


@kernel
def move_short(short, larger):
    """Put every row of `short` into the empty table `larger`."""
    mask = np.uint64(len(larger) - 1)
    for i in range(len(short)):
        if short[i, 1]:
            slot = mix(short[i, 0], short[i, 1]) >> np.uint64(20) & mask
            while larger[slot, 1]:
                slot = slot + np.uint64(1) & mask
            for k in range(3):
                larger[slot, k] = short[i, k]


@kernel
def move_long(long_slots, long_entries, arena, larger):
    """Put every entry of `long_slots` into the empty table `larger`."""
    mask = np.uint64(len(larger) - 1)
    for i in range(len(long_slots)):
        found = long_slots[i]
        if found:
            entry = np.int64(found & np.uint64(0xFFFFFFFF)) - 1
            k = long_entries[entry, 0]
            end = k + long_entries[entry, 1]
            h = hash_bytes(arena, k, end)
            slot = h >> np.uint64(20) & mask
            while larger[slot]:
                slot = slot + np.uint64(1) & mask
            larger[slot] = found


@kernel
def short_bytes(short):
    """Return the total bytes of the pretokens in `short`."""
    total = 0
    for i in range(len(short)):
        total += np.int64(short[i, 1] >> np.uint64(56))
    return total


@kernel
def export(short, long_entries, arena, state, data, offsets, counts):
    """Write the concatenated pretokens to `data`, with their offsets and counts."""
    n = 0
    at = 0
    for i in range(len(short)):
        length = np.int64(short[i, 1] >> np.uint64(56))
        if length:
            for k in range(length):
                word = short[i, 0] if k < 8 else short[i, 1]
                data[at + k] = np.uint8(word >> np.uint64(8 * (k & 7)) & np.uint64(255))
            counts[n] = np.int64(short[i, 2])
            at += length
            n += 1
            offsets[n] = at
    for entry in range(state[LONG_ENTRIES]):
        source = long_entries[entry, 0]
        length = long_entries[entry, 1]
        for k in range(length):
            data[at + k] = arena[source + k]
        counts[n] = long_entries[entry, 2]
        at += length
        n += 1
        offsets[n] = at
