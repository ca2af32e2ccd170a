"""WordPiece: cut words into the longest tokens from left to right.

One trie holds all tokens. The first token of a word is a path from the root. The tokens after it are paths from the
node of the prefix "##", with which they begin in the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.misses import NO_ROW
from tokenizer.kernels.tools import HASH_1, ONE, SHORT, inlined, internal, kernel

NODE_BITS = np.uint64(28)
NODE_MASK = np.uint64((1 << 28) - 1)
NOT_A_TOKEN = -1
# Indices in `rules`: the root, the node of "##", the id of unknown words, and the most code points of a known word.
ROOT, CONTINUATION, UNKNOWN, LONGEST_WORD = range(4)


class Pieces(NamedTuple):
    """The trie of all tokens; both arrays are empty for other kinds of vocabularies.

    The node at the end of a token has the token's id as its number. All other nodes have numbers from the root's on.
    """

    # uint64, a hash table: node << 36 | byte << 28 | next node; 0 where empty, since no node follows itself
    edges: np.ndarray
    rules: np.ndarray  # int64 (4,)


@inlined
def _slot(node, byte, edges):
    """Return the index in `edges` of the edge from `node` by `byte`, or of the empty row where it would be."""
    key = node << np.uint64(8) | byte
    slot = key * HASH_1 >> np.uint64(30) & np.uint64(len(edges) - 1)
    while edges[slot] and edges[slot] >> NODE_BITS != key:
        slot = slot + ONE & np.uint64(len(edges) - 1)
    return slot


@kernel
def insert_pieces(blob, offsets, ids, root, edges):
    """Insert the paths blob[offsets[t]:offsets[t + 1]], shorter ones first, into the empty table.

    ids: int32, the id of the token that ends each path, or NOT_A_TOKEN. Return the last node of the last path.
    """
    nodes = root + 1
    node = np.uint64(root)
    for path in range(len(ids)):
        node = np.uint64(root)
        for k in range(offsets[path], offsets[path + 1]):
            byte = np.uint64(blob[k])
            slot = _slot(node, byte, edges)
            if edges[slot] == 0:
                following = nodes
                if k == offsets[path + 1] - 1 and ids[path] != NOT_A_TOKEN:
                    following = np.int64(ids[path])
                else:
                    nodes += 1
                edges[slot] = (node << np.uint64(8) | byte) << NODE_BITS | np.uint64(following)
            node = edges[slot] & NODE_MASK
    return np.int64(node)


@inlined
def _too_long(data, start, end, longest):
    """Return whether a word has more than `longest` code points."""
    code_points = end - start
    if code_points > longest:
        for k in range(start, end):
            code_points -= data[k] & 0xC0 == 0x80
    return code_points > longest


@internal
def cut_word(data, start, end, pieces, out, at):
    """Write the ids of the word data[start:end] to out[at:], uint32. Return their number.

    A word with too many code points, or with a part that no token spells, has only the id of unknown words.
    """
    edges = pieces.edges
    tokens = np.uint64(pieces.rules[ROOT])  # nodes below end tokens
    node = tokens
    n = at
    place = start
    known = not _too_long(data, start, end, pieces.rules[LONGEST_WORD])
    while known and place < end:
        known = False
        for k in range(place, end):
            edge = edges[_slot(node, np.uint64(data[k]), edges)]
            if edge == 0:
                break
            node = edge & NODE_MASK
            if node < tokens:
                known = True
                out[n] = node
                place = k + 1
        n += 1
        node = np.uint64(pieces.rules[CONTINUATION])
    if not known:
        out[at] = pieces.rules[UNKNOWN]
        n = at + 1
    return n - at


@kernel
def cut_long_word(data, start, end, pieces, out, at):
    """As `cut_word`, callable from Python."""
    return cut_word(data, start, end, pieces, out, at)


@internal
def find_pieces(data, misses, used, pieces, missed):
    """Cut the first `misses` words into tokens. Write the ids to `found` from `used` on."""
    found = missed.found[:]
    for m in range(misses):
        start = missed.starts[m]
        length = missed.lengths[m]
        count = cut_word(data, start, start + length, pieces, found, used)
        if length < SHORT and count > 4:
            missed.rows[m] = NO_ROW  # `Caches.small` has no room for the ids, and `Caches.large` would save no time
        missed.places[m] = used
        missed.counts[m] = count
        used += count
