"""WordPiece: the longest tokens of a word from left to right, by walks in a trie with two roots.

The root of a word's first token is node 0; the other root is the node that the prefix of continuations ("##") leads to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.caches import find_small_in_large
from tokenizer.kernels.tools import HASH_1, ONE, SHORT, inlined, internal, kernel

NODE_BITS = np.uint64(28)
NODE_MASK = np.uint64((1 << 28) - 1)
CONTINUATION, UNKNOWN, LONGEST_WORD = range(3)  # in `rules`
NONE = -1


class Pieces(NamedTuple):
    """The trie of all tokens; all arrays are empty for another kind of vocabulary."""

    # uint64, a hash table of the edges: node << 36 | byte << 28 | next node; 0 where empty, as no edge leads to node 0
    edges: np.ndarray
    finals: np.ndarray  # int32, per node: the id of the token that ends there, or NONE
    rules: np.ndarray  # int64 (3,): the node of continuations, the id of unknown words, most code points of a word


@inlined
def _slot(node, byte, edges):
    return (node << np.uint64(8) | byte) * HASH_1 >> np.uint64(30) & np.uint64(len(edges) - 1)


@inlined
def _next(node, byte, edges):
    """Return the node that a byte leads to from a node, 0 if there is none."""
    slot = _slot(node, byte, edges)
    key = node << np.uint64(8) | byte
    while edges[slot]:
        if edges[slot] >> NODE_BITS == key:
            return edges[slot] & NODE_MASK
        slot = slot + ONE & np.uint64(len(edges) - 1)
    return np.uint64(0)


@kernel
def insert_pieces(blob, offsets, ids, edges, finals, nodes):
    """Insert the tokens blob[offsets[t]:offsets[t + 1]] with their ids, int32. nodes: how many there are already.

    The first token must be the prefix of continuations, with the id NONE; it may be empty. Return the number of nodes
    and the node of the prefix.
    """
    root = np.uint64(0)
    for token in range(len(ids)):
        node = np.uint64(0)
        for k in range(offsets[token], offsets[token + 1]):
            byte = np.uint64(blob[k])
            found = _next(node, byte, edges)
            if found == 0:
                found = np.uint64(nodes)
                nodes += 1
                slot = _slot(node, byte, edges)
                while edges[slot]:
                    slot = slot + ONE & np.uint64(len(edges) - 1)
                edges[slot] = (node << np.uint64(8) | byte) << NODE_BITS | found
            node = found
        if token == 0:
            root = node
        else:
            finals[node] = ids[token]
    return nodes, np.int64(root)


@internal
def cut_word(data, start, end, pieces, out, at):
    """Write the ids of the word data[start:end] to out[at:], uint32. Return their number.

    It is 1, for the unknown id, if the word has too many code points or a part that no token spells.
    """
    first = at
    code_points = 0
    for k in range(start, end):
        code_points += data[k] & 0xC0 != 0x80
    root = np.uint64(0)
    place = start if code_points <= pieces.rules[LONGEST_WORD] else end + 1
    while place < end:
        node = root
        token = NONE
        after = place
        for k in range(place, end):
            node = _next(node, np.uint64(data[k]), pieces.edges)
            if node == 0:
                break
            if pieces.finals[node] != NONE:
                token = np.int64(pieces.finals[node])
                after = k + 1
        if token == NONE:
            place = end + 1
            break
        out[at] = token
        at += 1
        place = after
        root = np.uint64(pieces.rules[CONTINUATION])
    if place > end:
        out[first] = pieces.rules[UNKNOWN]
        return 1
    return at - first


@kernel
def cut_long_word(data, start, end, pieces, out, at):
    """As `cut_word`, callable from Python."""
    return cut_word(data, start, end, pieces, out, at)


@internal
def find_pieces(data, misses, used, pieces, large, missed):
    """Cut the first `misses` words into tokens. Write the ids to `found` from `used` on."""
    found = missed.found[:]
    for m in range(misses):
        start = missed.starts[m]
        length = missed.lengths[m]
        count = 0
        if length < SHORT:
            count = find_small_in_large(missed.low[m], missed.high[m], large, found, used)
        if count == 0:
            count = cut_word(data, start, start + length, pieces, found, used)
        missed.places[m] = used
        missed.counts[m] = count
        used += count
