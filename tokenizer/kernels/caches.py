"""Caches of recent pretokens of one thread: layout of the rows, and look-up."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import HASH_1, HASH_2, inlined, load_8, mix, store_8

COUNT_BITS = 4  # upper bits of the second word of a row of `Caches.small`; zero in a key
SMALL_ROW = 4
LARGE_ROW = 16


class Caches(NamedTuple):
    """Recent pretokens of one thread, in rows of words. A key has two adjacent rows, the newer first; an insertion
    moves the newer row to the older's place."""

    # uint64, rows of 4: a packed pretoken of up to 15 bytes, with the number of ids in the upper bits, and up to 4 ids
    small: np.ndarray
    # uint64, rows of 16: up to 63 bytes, zero padded, with their number in the top byte of word 7; up to 15 ids and
    # their number in the 16 halves of words 8 to 15. Packed small pretokens with more than 4 ids are here too,
    # with 0 in word 7.
    large: np.ndarray


@inlined
def row_in_small(low, high, small_mask):
    """Return the index in `Caches.small` of the two rows of a packed pretoken: the upper bits of a multilinear hash,
    which depend on every bit of the key."""
    return low * HASH_1 + high * HASH_2 >> np.uint64(43) & small_mask


@inlined
def find_large(data, start, length, low, first_row, large, out, at):
    """Copy the ids of a large pretoken from its cache to out[at:]. Return their number, 0 on a miss."""
    last = np.uint64(((length + 7) >> 3) - 1)
    count = 0
    for way in range(2):
        row = first_row + np.uint64(way * LARGE_ROW)
        if large[row + np.uint64(7)] >> np.uint64(56) == np.uint64(length) and large[row + last] == low:
            w = np.uint64(0)
            while w < last and large[row + w] == load_8(data, start + np.int64(w) * 8):
                w += np.uint64(1)
            if w == last:
                count = _copy_ids(large, row, out, at)
    return count


@inlined
def _copy_ids(large, row, out, at):
    """Copy the ids of a row to out[at:], possibly with one extra element. Return their number."""
    count = np.int64(large[row + np.uint64(15)] >> np.uint64(32))
    for w in range((count + 1) >> 1):
        store_8(out, at + 2 * w, large[row + np.uint64(8 + w)])
    return count


@inlined
def row_in_large(low, high, large):
    """Return the index in `Caches.large` of a small pretoken with too many ids for `Caches.small`."""
    return mix(low, high) >> np.uint64(20) & np.uint64(len(large) - 2 * LARGE_ROW)


@inlined
def find_small_in_large(low, high, large, found, used):
    """Copy the ids of a packed pretoken from `Caches.large` to found[used:]. Return their number, 0 on a miss."""
    count = 0
    for way in range(2):
        row = row_in_large(low, high, large) + np.uint64(way * LARGE_ROW)
        if large[row] == low and large[row + np.uint64(1)] == high and large[row + np.uint64(7)] == 0:
            count = _copy_ids(large, row, found, used)
    return count
