"""Cuts: places in a pretoken that no merge crosses.

The first merge across a place joins a part that ends there to a part that starts there. The context of a merge is the
last WIDTH bytes of its left part and the first WIDTH bytes of its right part. A shorter part is in the context whole.
The two numbers of bytes are the shape of the context. A place is a cut if the text around it is the context of no
merge. All contexts are in a Bloom filter, whose false positives hide some cuts. This changes no ids.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import HASH_1, HASH_2, ONE, inlined, load_8, trailing_zeros

WIDTH = 4  # most bytes of a part in a context; a context fits in a word
ALWAYS = np.uint64(1)  # bit of the shape of two single bytes, which need no look-up

# Masks of the bytes of a word that belong to a context, by the number of its shape: WIDTH * (left bytes - 1) + right
# bytes - 1.
_SIDES = [(left, right) for left in range(1, WIDTH + 1) for right in range(1, WIDTH + 1)]
_MASKS = np.array([(1 << 8 * (WIDTH + right)) - (1 << 8 * (WIDTH - left)) for left, right in _SIDES], dtype=np.uint64)


class Cuts(NamedTuple):
    """The contexts of all merges. Both arrays are empty if pretokens are never cut."""

    # uint16 (65536,), by the bytes before and after a place, left << 8 | right: a bit for each shape of contexts with
    # these two bytes in the middle.
    shapes: np.ndarray
    contexts: np.ndarray  # uint64, a power of two of them: each context has three bits in one word


@inlined
def word_and_bits(context, words):
    """Return the index of a context's word in a filter of `words` words, and its three bits in this word."""
    h = context * HASH_1
    h ^= h >> np.uint64(32)
    h *= HASH_2
    low = np.uint64(63)
    bits = ONE << (h & low) | ONE << (h >> np.uint64(6) & low) | ONE << (h >> np.uint64(12) & low)
    return h >> np.uint64(24) & np.uint64(words - 1), bits


@inlined
def next_cut(data, start, end, cuts):
    """Return the first place after `start` between two bytes that no merge joins, or `end`."""
    shapes = cuts.shapes
    place = start + 1
    while place < end and shapes[np.int64(data[place - 1]) << 8 | np.int64(data[place])]:
        place += 1
    return place


@inlined
def next_fine_cut(data, start, end, cuts):
    """Return the first place after `start` where the text is the context of no merge, or `end`."""
    shapes = cuts.shapes
    contexts = cuts.contexts
    last = len(data) - WIDTH
    for place in range(start + 1, end):
        left = np.uint64(shapes[np.int64(data[place - 1]) << 8 | np.int64(data[place])])
        if left & ALWAYS:
            continue
        if WIDTH <= place <= last:
            around = load_8(data, place - WIDTH)
            while left:
                word, bits = word_and_bits(around & _MASKS[trailing_zeros(left)], len(contexts))
                if contexts[word] & bits == bits:
                    break
                left &= left - ONE
        if left == 0:
            return place
    return end
