"""A trie of byte strings with ids, as a double array: the child of a node is the unit at the node's base plus the byte.

A unit is base << 36 | (id + 1) << 9 | 1 << 8 | byte. base: where its children are, `NO_CHILDREN` if it has none. id: of
the string that ends here, -1 if none does. byte: the last byte of the string. Unused units are 0. No two nodes share a
base, so the byte of a unit shows whether it is a child. Source: Aoe, "An Efficient Digital Search Algorithm by Using a
Double-Array Structure" (1989).
"""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.tools import ALL, ONE, inlined, kernel, trailing_zeros

BYTES = 256
NO_CHILDREN, ROOT = 0, BYTES  # bases; the units below ROOT stay unused
MOST_UNITS = 1 << 27
USED, LABEL, BASE_PLACE = 1 << 8, (1 << 9) - 1, 36
_USED, _LABEL, _BASE_PLACE = np.uint64(USED), np.uint64(LABEL), np.uint64(BASE_PLACE)
_ID, _ID_PLACE = np.uint64((1 << 27) - 1), np.uint64(9)
_SEARCHED = 64  # words of bases before the last base that are tried; more would take longer for little memory
# Columns of the queue of nodes: the strings below, a range; the bytes that they share; and the unit of the node, at
# first only its byte.
FIRST, LAST, DEPTH, UNIT = range(4)


@inlined
def child(units, base, byte):
    """Return the unit of a child, 0 if there is none. base: uint64; byte: uint8."""
    unit = units[base + np.uint64(byte)]
    return unit if unit & _LABEL == _USED | np.uint64(byte) else np.uint64(0)


@inlined
def base_of(unit):
    """Return the base of a unit's children, uint64."""
    return unit >> _BASE_PLACE


@inlined
def id_of(unit):
    """Return the id of the string that ends at a unit, -1 if none does."""
    return np.int64(unit >> _ID_PLACE & _ID) - 1


@inlined
def _free_base(children, count, taken, bases, first):
    """Return a base with room for the bytes children[:count], at or after bit 64 * first; -1 if there is none."""
    for word in range(first, len(bases)):
        free = ~bases[word]
        for i in range(count):
            place = np.int64(64 * word + children[i, UNIT])
            after = np.uint64(place & 63)
            free &= ~(taken[place >> 6] >> after | taken[(place >> 6) + 1] << ONE << (np.uint64(63) - after))
        if free:
            return np.int64(64 * word) + np.int64(trailing_zeros(free))
    return np.int64(-1)


@kernel
def build(blob, offsets, ids, units, taken, bases, queue):
    """Build the trie of different strings in ascending order, blob[offsets[s]:offsets[s + 1]] with the id ids[s].

    units: uint64, zeros. taken, bases: uint64, zeros; bit i is whether unit i is used and whether i is a base; `taken`
    has 5 words more. queue: int32, as many rows as units. Return the number of units that are needed, or -1 if there
    are too few.
    """
    taken[: BYTES // 64] = ALL
    bases[: BYTES // 64] = ALL
    full = BYTES // 64  # words of `taken` that are full
    last_base = np.int64(0)
    queue[0, FIRST], queue[0, LAST], queue[0, DEPTH], queue[0, UNIT] = 0, len(ids), 0, 0
    done, waiting = 0, 1
    while done < waiting:  # breadth first, so that the nodes near the root are together
        first, depth, unit = queue[done, FIRST], queue[done, DEPTH], queue[done, UNIT]
        last = queue[done, LAST]
        done += 1
        if offsets[first + 1] - offsets[first] == depth:
            units[unit] |= np.uint64(ids[first] + 1) << _ID_PLACE
            first += 1
        if waiting + BYTES > len(queue):
            return np.int64(-1)
        count = 0
        for s in range(first, last):
            byte = np.int32(blob[offsets[s] + depth])
            if count == 0 or byte != queue[waiting + count - 1, UNIT]:
                queue[waiting + count, FIRST] = s
                queue[waiting + count, DEPTH] = depth + 1
                queue[waiting + count, UNIT] = byte
                count += 1
            queue[waiting + count - 1, LAST] = s + 1
        if count == 0:
            continue
        while taken[full] == ALL:
            full += 1
        searched = max(BYTES // 64, full - BYTES // 64, (last_base >> 6) - _SEARCHED)
        base = _free_base(queue[waiting:], count, taken, bases, searched)
        if base < 0 or base + BYTES > len(units):
            return np.int64(-1)
        last_base = max(last_base, base)
        bases[base >> 6] |= ONE << np.uint64(base & 63)
        units[unit] |= np.uint64(base) << _BASE_PLACE
        for _ in range(count):
            byte = queue[waiting, UNIT]
            place = base + byte
            taken[place >> 6] |= ONE << np.uint64(place & 63)
            units[place] = _USED | np.uint64(byte)
            queue[waiting, UNIT] = place
            waiting += 1
    return last_base + BYTES
