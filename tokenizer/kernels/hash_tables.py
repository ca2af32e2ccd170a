"""Hash tables of merges and of whole tokens, filled once, then shared by all threads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import (
    HASH_1,
    ONE,
    SHORT,
    find_in_bucket,
    hash_bytes,
    inlined,
    internal,
    kernel,
    mix,
    pack_slowly,
)

NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
LOW_HALF = np.uint64(0xFFFFFFFF)


class Merges(NamedTuple):
    """The merges of a vocabulary, by pair."""

    byte_ids: np.ndarray  # int32 (256,): the id of each single byte
    # A hash table, uint64, in buckets of a cache line: four keys, left id << 32 | right id, and their four values,
    # rank << 32 | merged id. NOTHING is an empty key, and the value of a pair that does not merge.
    pairs: np.ndarray
    of_bytes: np.ndarray  # uint64 (65536,): values of `pairs` for two single bytes, by left << 8 | right


class Tokens(NamedTuple):
    """Whole tokens by their bytes; token t is blob[offsets[t]:offsets[t + 1]]."""

    short: np.ndarray  # a hash table, uint64, rows of 4: up to 15 packed bytes, and the id
    long: np.ndarray  # a hash table, uint64 (capacity,): the upper half of the hash and id + 1, 0 where empty
    blob: np.ndarray  # uint8, read-only
    offsets: np.ndarray  # int64 (tokens + 1,)


@inlined
def pair_bucket(pairs, key):
    """Return the index in `pairs` where the search for a pair starts."""
    return key * HASH_1 >> np.uint64(40) & np.uint64(len(pairs) - 8)


@inlined
def pair_key(left, right):
    """Return the key of a pair of ids: left id << 32 | right id."""
    return np.uint64(left) << np.uint64(32) | np.uint64(right)


@inlined
def find_pair(pairs, key):
    """Return the value of a pair, or NOTHING if it does not merge."""
    bucket = pair_bucket(pairs, key)
    value = find_in_bucket(pairs, bucket, key)
    # A full bucket continues in the next. `&` makes the condition one branch, rarely taken.
    while (value == NOTHING) & (pairs[bucket + np.uint64(3)] != NOTHING):
        bucket = bucket + np.uint64(8) & np.uint64(len(pairs) - 1)
        value = find_in_bucket(pairs, bucket, key)
    return value


@inlined
def insert_pair(pairs, key, value):
    """Insert a pair. Return whether it was new."""
    bucket = pair_bucket(pairs, key)
    while True:
        for place in range(4):
            if pairs[bucket + np.uint64(place)] == key:
                return False
            if pairs[bucket + np.uint64(place)] == NOTHING:
                pairs[bucket + np.uint64(place)] = key
                pairs[bucket + np.uint64(place + 4)] = value
                return True
        bucket = bucket + np.uint64(8) & np.uint64(len(pairs) - 1)


@kernel
def fill_byte_pairs(merges):
    """Fill `of_bytes` with the values of all pairs of bytes."""
    for left in range(256):
        for right in range(256):
            key = pair_key(merges.byte_ids[left], merges.byte_ids[right])
            merges.of_bytes[left << 8 | right] = find_pair(merges.pairs, key)


@kernel
def insert_pairs(pairs, listed, ranks):
    """Fill the empty table. listed: int32 (n, 3), left, right and merged id. Return the first repeated pair, or -1."""
    for i in range(len(listed)):
        value = np.uint64(ranks[i]) << np.uint64(32) | np.uint64(listed[i, 2])
        if not insert_pair(pairs, pair_key(listed[i, 0], listed[i, 1]), value):
            return i
    return -1


@inlined
def short_slot(low, high, tokens):
    """Return the index in `tokens.short` where the search for a packed token starts."""
    return np.int64(mix(low, high) >> np.uint64(20) & np.uint64(len(tokens.short) - 1) & ~np.uint64(3))


@inlined
def find_short(low, high, tokens):
    """Return the id of the token with these packed bytes, or -1."""
    short = tokens.short
    row = short_slot(low, high, tokens)
    token = np.int64(-1)
    while short[row + 1]:
        if short[row] == low and short[row + 1] == high:
            token = np.int64(short[row + 2])
            break
        row = row + 4 & len(short) - 1
    return token


@internal
def find_long(data, start, end, tokens):
    """Return the id of the token data[start:end] of at least 16 bytes, or -1."""
    mask = np.uint64(len(tokens.long) - 1)
    h = hash_bytes(data, start, end)
    slot = h >> np.uint64(20) & mask
    length = end - start
    while tokens.long[slot]:
        found = tokens.long[slot]
        if (found ^ h) >> np.uint64(32) == 0:
            token = np.int64(found & LOW_HALF) - 1
            at = tokens.offsets[token]
            if tokens.offsets[token + 1] - at == length:
                k = 0
                while k < length and tokens.blob[at + k] == data[start + k]:
                    k += 1
                if k == length:
                    return token
        slot = slot + ONE & mask
    return np.int64(-1)


@kernel
def find_token(data, start, end, tokens):
    """Return the id of the token data[start:end], or -1."""
    if end - start < SHORT:
        low, high = pack_slowly(data, start, end - start)
        return find_short(low, high, tokens)
    return find_long(data, start, end, tokens)


@kernel
def insert_tokens(tokens):
    """Fill the empty tables with all tokens but empty ones. Return the id of the first repeated token, or -1."""
    long_mask = np.uint64(len(tokens.long) - 1)
    for token in range(len(tokens.offsets) - 1):
        start = tokens.offsets[token]
        end = tokens.offsets[token + 1]
        if start == end:
            continue
        if find_token(tokens.blob, start, end, tokens) >= 0:
            return token
        if end - start < SHORT:
            low, high = pack_slowly(tokens.blob, start, end - start)
            row = short_slot(low, high, tokens)
            while tokens.short[row + 1]:
                row = row + 4 & len(tokens.short) - 1
            tokens.short[row] = low
            tokens.short[row + 1] = high
            tokens.short[row + 2] = np.uint64(token)
        else:
            h = hash_bytes(tokens.blob, start, end)
            slot = h >> np.uint64(20) & long_mask
            while tokens.long[slot]:
                slot = slot + ONE & long_mask
            tokens.long[slot] = h & ~LOW_HALF | np.uint64(token + 1)
    return -1


@kernel
def pairs_by_bytes(tokens, first, last, pairs, used):
    """Write every pair of tokens that concatenate to a token of first..last to `pairs`, int32 (n, 3), from `used` on.

    Columns: left, right, merged. Return (tokens done, rows used). Stops early before `pairs` could overflow.
    """
    for token in range(first, last):
        start = tokens.offsets[token]
        end = tokens.offsets[token + 1]
        if used + (end - start) > len(pairs):
            return token, used
        for middle in range(start + 1, end):
            left = find_token(tokens.blob, start, middle, tokens)
            if left >= 0:
                right = find_token(tokens.blob, middle, end, tokens)
                if right >= 0:
                    pairs[used, 0] = left
                    pairs[used, 1] = right
                    pairs[used, 2] = token
                    used += 1
    return last, used
