"""Words as tokens of a trie: the longest from left to right (WordPiece), or the path of largest score (Unigram).

One trie holds all tokens. WordPiece's first token of a word is a path from the root. The tokens after it are paths from
the node of the prefix "##", with which they begin in the vocabulary.
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
# Indices in the `rules` of Unigram: ROOT, the id of unknown characters, whether to encode as sentencepiece does (with
# float32 sums, and without looking up joined unknown pieces), and the first of the ids of the 256 bytes.
UNKNOWN_CHARACTER, IS_MODEL, BYTE_IDS = 1, 2, 3
LARGEST_SUM = 100_000.0  # in float32; larger sums are subtracted from all later ones
NOTHING = -1  # no id, no place


class Pieces(NamedTuple):
    """The trie of all tokens; all arrays are empty for other kinds of vocabularies.

    The node at the end of a token has the token's id as its number. All other nodes have numbers from the root's on.
    """

    # uint64, a hash table: node << 36 | byte << 28 | next node; 0 where empty, since no node follows itself
    edges: np.ndarray
    rules: np.ndarray  # int64 (4,) for WordPiece, (259,) for Unigram; the id of a byte without a piece is NOTHING
    scores: np.ndarray  # float64, the score of each id, then that of unknown characters; empty for WordPiece


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


@internal
def best_path(data, start, end, pieces, sums, starts, ids):
    """Find the segmentation of data[start:end], UTF-8, with the largest sum of scores (Viterbi).

    sums: float64; starts, ids: int32; at least end - start + 1 long. The last piece of the best segmentation of
    data[start:start + k] starts at starts[k] and has the id ids[k]. `encoding.lattice` is the reference.
    """
    edges, scores = pieces.edges, pieces.scores
    root = np.uint64(pieces.rules[ROOT])  # nodes below end tokens
    length = end - start
    for k in range(length + 1):
        starts[k] = NOTHING
    sums[0] = 0.0
    unknown = pieces.rules[UNKNOWN_CHARACTER]
    unknown_score = scores[len(scores) - 1]
    narrow = pieces.rules[IS_MODEL] != 0
    furthest = 0
    place = 0
    while place < length:
        before = sums[place]
        if narrow and abs(before) > LARGEST_SUM:
            for k in range(place + 1, furthest + 1):
                sums[k] = np.float64(np.float32(sums[k] - before))
            before = 0.0
        first = data[start + place]
        single = place + 1 + np.int64(first >= 0xC0) + np.int64(first >= 0xE0) + np.int64(first >= 0xF0)
        has_single = False
        node = root
        for k in range(place, length):
            edge = edges[_slot(node, np.uint64(data[start + k]), edges)]
            if edge == 0:
                break
            node = edge & NODE_MASK
            if node < root:
                candidate = before + scores[node]
                if narrow:
                    candidate = np.float64(np.float32(candidate))
                if starts[k + 1] == NOTHING or candidate > sums[k + 1]:
                    sums[k + 1] = candidate
                    starts[k + 1] = place
                    ids[k + 1] = node
                    furthest = max(furthest, k + 1)
                has_single |= k + 1 == single
        if not has_single:
            candidate = before + unknown_score
            if narrow:
                candidate = np.float64(np.float32(candidate))
            if starts[single] == NOTHING or candidate > sums[single]:
                sums[single] = candidate
                starts[single] = place
                ids[single] = unknown
                furthest = max(furthest, single)
        place = single


@internal
def write_path(data, start, end, pieces, starts, ids, out, at):
    """Write the ids of the best path to out[at:]. Return their number. Overwrites `starts` with the ends of pieces.

    Neighbouring unknown pieces become the piece that they spell together, else their bytes if all have ids, else one
    unknown id.
    """
    first = at
    unknown = pieces.rules[UNKNOWN_CHARACTER]
    after = np.int64(NOTHING)
    place = np.int64(end - start)
    while place > 0:  # `starts[k]` becomes the end of the piece that starts at k
        before = np.int64(starts[place])
        starts[place] = after
        after = place
        place = before
    place = 0
    while place < end - start:
        following = after
        token = np.int64(ids[after])
        after = np.int64(starts[after])
        if token != unknown:
            out[at] = token
            at += 1
            place = following
            continue
        while after != NOTHING and ids[after] == unknown:
            following = after
            after = np.int64(starts[after])
        at = _write_unknown(data, start + place, start + following, pieces, out, at)
        place = following
    return at - first


@internal
def _write_unknown(data, start, end, pieces, out, at):
    root = np.uint64(pieces.rules[ROOT])
    node = root
    edge = np.uint64(0)
    for k in range(start, end):
        edge = pieces.edges[_slot(node, np.uint64(data[k]), pieces.edges)]
        if edge == 0:
            break
        node = edge & NODE_MASK
    out[at] = pieces.rules[UNKNOWN_CHARACTER]
    if edge and node < root and not pieces.rules[IS_MODEL]:
        out[at] = node
        return at + 1
    for k in range(start, end):
        if pieces.rules[BYTE_IDS + np.int64(data[k])] < 0:
            return at + 1
    for k in range(start, end):
        out[at] = pieces.rules[BYTE_IDS + np.int64(data[k])]
        at += 1
    return at


@internal
def encode_word(data, start, end, pieces, missed, out, at):
    """Write the ids of the word data[start:end], of at most SCRATCH bytes, to out[at:]. Return their number."""
    if len(pieces.scores):
        sums, starts, ids = missed.sums[:], missed.path_starts[:], missed.path_ids[:]
        best_path(data, start, end, pieces, sums, starts, ids)
        return write_path(data, start, end, pieces, starts, ids, out, at)
    return cut_word(data, start, end, pieces, out, at)


@kernel
def encode_long_word(data, start, end, edges, rules, scores, sums, starts, ids, out, at):
    """As `encode_word`, for words of any length and callable from Python. For sums, starts and ids see `best_path`."""
    pieces = Pieces(edges, rules, scores)
    if len(scores):
        best_path(data, start, end, pieces, sums, starts, ids)
        return write_path(data, start, end, pieces, starts, ids, out, at)
    return cut_word(data, start, end, pieces, out, at)


@internal
def find_pieces(data, misses, used, pieces, missed):
    """Cut the first `misses` words into tokens. Write the ids to `found` from `used` on."""
    found = missed.found[:]
    for m in range(misses):
        start = missed.starts[m]
        length = missed.lengths[m]
        count = encode_word(data, start, start + length, pieces, missed, found, used)
        if length < SHORT and count > 4:
            missed.rows[m] = NO_ROW  # `Caches.small` has no room for the ids, and `Caches.large` would save no time
        missed.places[m] = used
        missed.counts[m] = count
        used += count
