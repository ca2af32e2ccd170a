"""Caches of recent pretokens, one thread's: where their rows are and what is in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import HASH_1, HASH_2, inlined, load_8, mix, store_8

COUNT_BITS = 4  # of the second word of a row of `Caches.small`, its upper ones; a key has zeros there
SMALL_ROW = 4
LARGE_ROW = 16


class Caches(NamedTuple):
    """Recent pretokens of one thread, in rows of words. A key has two rows side by side; a new one pushes the newer of
    the two to the older's place."""

    # uint64, rows of 4: up to 15 bytes as `pack` gives them, the number of ids in the upper bits, and up to 4 ids
    small: np.ndarray
    # uint64, rows of 16: up to 63 bytes, zero padded, their number in the top byte of word 7; up to 15 ids and their
    # number in the 16 halves of words 8 to 15. Also small pretokens that have more ids than `small` takes, packed;
    # their word 7 is 0.
    large: np.ndarray


@inlined
def row_in_small(low, high, small_mask):
    """Where in `Caches.small` the two rows of a packed pretoken begin: the upper bits of a multilinear hash, to which
    every bit of the key contributes."""
    return low * HASH_1 + high * HASH_2 >> np.uint64(43) & small_mask


@inlined
def find_large(data, start, length, low, first_row, large, out, at):
    """Copy the ids of a large pretoken from its cache to out[at:]; how many, 0 where it is not there."""
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
    """Copy the ids of a row to out[at:], and perhaps one place more; how many they are."""
    count = np.int64(large[row + np.uint64(15)] >> np.uint64(32))
    for w in range((count + 1) >> 1):
        store_8(out, at + 2 * w, large[row + np.uint64(8 + w)])
    return count


@inlined
def row_in_large(low, high, large):
    """Where a small pretoken is in `Caches.large` if it has too many ids for `Caches.small`."""
    return mix(low, high) >> np.uint64(20) & np.uint64(len(large) - 2 * LARGE_ROW)


@inlined
def find_small_in_large(low, high, large, found, used):
    count = 0
    for way in range(2):
        row = row_in_large(low, high, large) + np.uint64(way * LARGE_ROW)
        if large[row] == low and large[row + np.uint64(1)] == high and large[row + np.uint64(7)] == 0:
            count = _copy_ids(large, row, found, used)
    return count
