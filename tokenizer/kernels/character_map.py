"""Walks through the trie of a `CharacterMap`."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.tools import inlined, internal
from tokenizer.splitting.double_array import HAS_LEAF, LABEL, LEAF

_LEAF, _LABEL, _HAS_LEAF = (np.uint32(constant) for constant in (LEAF, LABEL, HAS_LEAF))


@inlined
def shortest_key(data, size, units):
    """Return the index in `texts` of the replacement of the shortest key that data[:size] starts with; -1 for none."""
    base = _offset(units[0])
    for k in range(size):
        byte = np.uint32(data[k])
        place = base ^ byte
        if byte == 0 or place >= len(units) or units[place] & _LABEL != byte:
            return np.int64(-1)
        base = place ^ _offset(units[place])
        if units[place] & _HAS_LEAF:
            return np.int64(units[base] & ~_LEAF)
    return np.int64(-1)


@internal
def longest_key(data, position, end, units):
    """Return the index in `texts` of the replacement of the longest key at a position, and the end of the key.

    -1 and `position` if there is none. units: empty if there is no map.
    """
    found, after = np.int64(-1), position
    if len(units) == 0:
        return found, after
    base = _offset(units[0])
    while position < end:
        byte = np.uint32(data[position])
        place = base ^ byte
        if byte == 0 or place >= len(units) or units[place] & _LABEL != byte:
            break
        base = place ^ _offset(units[place])
        position += 1
        if units[place] & _HAS_LEAF:
            found, after = np.int64(units[base] & ~_LEAF), position
    return found, after


@inlined
def _offset(unit):
    return np.uint32(unit >> np.uint32(10) << ((unit & np.uint32(512)) >> np.uint32(6)))
