"""The seeds of Unigram training: words cut into segments, and the frequent substrings of the segments.

No piece crosses the end of a segment, so the probability of a word is the product over its segments. Each occurrence of
a substring is weighted by the count of its segment. The substrings are the nodes of the suffix tree of all
segments, built from the sorted suffixes and the lengths of their common prefixes (Abouelhoda et al. 2004, "Replacing
suffix trees with enhanced suffix arrays").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import inlined, internal, kernel

# Kinds of characters; those from SCRIPT on are scripts. No piece goes directly from one script to another.
UNKNOWN = 0  # belongs to no piece
ANY = 1  # joins every script
INHERITED = 2  # has the script of the character before it
SPACE = 3  # only begins a piece
ALONE = 4  # a piece of its own
SPACES = 5  # begins a piece; a run of them can be a piece
SCRIPT = 6

REPLACEMENT = 0xFFFD
NONE = -1
LEAST_WEIGHT = 2  # of a substring
NODES, TOP, FIRST, WEIGHT = range(4)  # in `state`: nodes, height of the stack, first rank and weight of the group


class Tree(NamedTuple):
    """The suffix tree, without nodes of fewer than two symbols. Equal suffixes are one group."""

    depths: np.ndarray  # uint8, per node: symbols
    weights: np.ndarray  # int64, per node: occurrences
    parents: np.ndarray  # int32, per node, or NONE
    places: np.ndarray  # int64, per node: a position at which it occurs
    deepest: np.ndarray  # int32, per position: the longest node that begins there, or NONE
    stack: np.ndarray  # int32: the nodes on the path of the present suffix, the deepest on top, NONE at the bottom
    state: np.ndarray  # int64 (4,)


@inlined
def _decode(data, position, end):
    """Return the code point at `position` and its width in bytes; U+FFFD and 1 where the bytes are not UTF-8."""
    first = np.int64(data[position])
    if first < 0x80:
        return first, 1
    width = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if first < 0xC2 or first > 0xF4 or position + width > end:
        return REPLACEMENT, 1
    code_point = first & (0x7F >> width)
    for k in range(1, width):
        byte = np.int64(data[position + k])
        if byte & 0xC0 != 0x80:
            return REPLACEMENT, 1
        code_point = code_point << 6 | byte & 0x3F
    least = 0x80 if width == 2 else 0x800 if width == 3 else 0x10000
    if code_point < least or code_point > 0x10FFFF or 0xD800 <= code_point < 0xE000:
        return REPLACEMENT, 1
    return code_point, width


@kernel
def count_characters(data, offsets, counts, first, last, characters):
    """Add the occurrences of each code point of the words first <= w < last to `characters`, int64."""
    for word in range(first, last):
        position = offsets[word]
        while position < offsets[word + 1]:
            code_point, width = _decode(data, position, offsets[word + 1])
            characters[code_point] += counts[word]
            position += width


@inlined
def _reach(kinds, first, end, longest):
    """Return the length of the longest piece that may begin at kinds[first], 0 for an unknown character."""
    kind = np.int64(kinds[first])
    if kind in (UNKNOWN, ALONE):
        return kind == ALONE
    script = kind if kind >= SCRIPT else ANY
    last = min(end, first + longest)
    in_run = kind == SPACES and first + 1 < end and kinds[first + 1] == SPACES
    for k in range(first + 1, last):
        kind = np.int64(kinds[k])
        if in_run and kind == SPACES:
            continue
        if in_run or kind in (UNKNOWN, ALONE, SPACE, SPACES):
            return k - first
        if kind == ANY:
            script = ANY
        elif kind >= SCRIPT:
            if script != ANY and script != kind:
                return k - first
            script = kind
    return last - first


@inlined
def _copy(data, first, last, out, used):
    """Append one character, U+FFFD for a byte that is not UTF-8. Return the length of `out`."""
    if last - first == 1 and data[first] >= 0x80:
        out[used] = 0xEF
        out[used + 1] = 0xBF
        out[used + 2] = 0xBD
        return used + 3
    for position in range(first, last):
        out[used] = data[position]
        used += 1
    return used


@kernel
def cut_words(data, offsets, counts, kind_of, longest, kinds, places, out, out_offsets, out_counts):
    """Write the segments of words, in UTF-8 and without unknown characters. Return their number.

    kind_of: uint8, per code point. kinds, places: room for the kind and the position of each character of a word.
    """
    n = 0
    used = np.int64(0)
    out_offsets[0] = 0
    for word in range(len(counts)):
        end = offsets[word + 1]
        position = offsets[word]
        length = 0
        while position < end:
            code_point, width = _decode(data, position, end)
            kinds[length] = kind_of[code_point]
            places[length] = position
            position += width
            length += 1
        places[length] = end
        furthest = 0  # where the longest piece so far ends
        begun = False
        for k in range(length):
            if k >= furthest and begun:
                out_offsets[n + 1] = used
                out_counts[n] = counts[word]
                n += 1
                begun = False
            furthest = max(furthest, k + _reach(kinds, k, length, longest))
            if furthest > k:
                used = _copy(data, places[k], places[k + 1], out, used)
                begun = True
        if begun:
            out_offsets[n + 1] = used
            out_counts[n] = counts[word]
            n += 1
    return n


@kernel
def lay_out(data, offsets, symbol_of, kind_of, longest, first, last, at, starts, symbols, kinds, reaches):
    """Write the symbols and reaches of the segments first <= s < last from position `at` on.

    Return the position after them. A reach is the length of the longest possible piece at a position.
    symbol_of: int32, kind_of: uint8, per code point. starts: int64, per segment: its position. kinds: uint8,
    room for the kind of each character.
    """
    for segment in range(first, last):
        starts[segment] = at
        position = offsets[segment]
        begin = at
        while position < offsets[segment + 1]:
            code_point, width = _decode(data, position, offsets[segment + 1])
            symbols[at] = symbol_of[code_point]
            kinds[at] = kind_of[code_point]
            position += width
            at += 1
        for k in range(begin, at):
            reaches[k] = _reach(kinds, k, at, longest)
    starts[last] = at
    return at


@kernel
def pack_keys(symbols, reaches, positions, skip, taken, bits, first, last, keys):
    """Append the symbols from `skip` to `skip + taken` of each suffix to its key, uint64, with zeros after its end."""
    for k in range(first, last):
        key = keys[k]
        position = positions[k]
        end = position + np.int64(reaches[position])
        for at in range(position + skip, position + skip + taken):
            key <<= np.uint64(bits)
            if at < end:
                key |= np.uint64(symbols[at])
        keys[k] = key


@inlined
def _common(symbols, reaches, one, two):
    """Return the length of the common prefix of two suffixes."""
    most = min(np.int64(reaches[one]), np.int64(reaches[two]))
    length = 0
    while length < most and symbols[one + length] == symbols[two + length]:
        length += 1
    return length


@inlined
def _new_node(tree, depth, weight, place):
    node = tree.state[NODES]
    tree.state[NODES] += 1
    tree.depths[node] = depth
    tree.weights[node] = weight
    tree.parents[node] = NONE
    tree.places[node] = place
    tree.stack[tree.state[TOP] + 1] = node
    tree.state[TOP] += 1
    return node


@internal
def _end_group(tree, reaches, order, rank, common):
    """Enter the group of suffixes that ends before `rank`, and end all nodes of more than `common` symbols."""
    state = tree.state
    place = order[state[FIRST]]
    length = np.int64(reaches[place])
    deepest = NONE  # node of the group, or a later one
    child = NONE
    weight = state[WEIGHT]
    if weight >= LEAST_WEIGHT and length >= 2:
        deepest = _new_node(tree, length, weight, place)
        weight = np.int64(0)
    while state[TOP] and np.int64(tree.depths[tree.stack[state[TOP]]]) > common:
        node = np.int64(tree.stack[state[TOP]])
        state[TOP] -= 1
        if child != NONE:
            tree.parents[child] = node
        if deepest == NONE:
            deepest = node
        tree.weights[node] += weight
        weight = tree.weights[node]
        child = node
    if common >= 2:
        if state[TOP] == 0 or np.int64(tree.depths[tree.stack[state[TOP]]]) < common:
            _new_node(tree, common, 0, place)
        node = np.int64(tree.stack[state[TOP]])
        if child != NONE:
            tree.parents[child] = node
        if deepest == NONE:
            deepest = node
        tree.weights[node] += weight
    for k in range(state[FIRST], rank):
        tree.deepest[order[k]] = deepest


@kernel
def grow_tree(symbols, reaches, order, weights, first, last, tree):
    """Enter the suffixes of the ranks first <= r < last. weights: int64, per position.

    A last call with first = last = the number of suffixes completes the tree.
    """
    state = tree.state
    for rank in range(first, last):
        place = order[rank]
        if rank:
            before = order[rank - 1]
            common = _common(symbols, reaches, before, place)
            if common < reaches[before] or common < reaches[place]:
                _end_group(tree, reaches, order, rank, common)
                state[FIRST] = rank
                state[WEIGHT] = 0
        state[WEIGHT] += weights[place]
    if first == last and last:
        _end_group(tree, reaches, order, last, 0)


@kernel
def count_edges(tree, piece_of, first, last, edge_starts):
    """Write where the edges of each position end: edge_starts[p + 1]. piece_of: int32, per node, or NONE."""
    for position in range(first, last):
        edges = 1
        node = np.int64(tree.deepest[position])
        while node != NONE:
            edges += piece_of[node] != NONE
            node = np.int64(tree.parents[node])
        edge_starts[position + 1] = edge_starts[position] + edges


@kernel
def write_edges(tree, piece_of, symbols, first, last, edge_starts, pieces, lengths):
    """Write the pieces that begin at each position and their lengths, shortest first. Symbol s is piece s - 1."""
    for position in range(first, last):
        at = edge_starts[position + 1]
        node = np.int64(tree.deepest[position])
        while node != NONE:
            if piece_of[node] != NONE:
                at -= 1
                pieces[at] = piece_of[node]
                lengths[at] = tree.depths[node]
            node = np.int64(tree.parents[node])
        pieces[at - 1] = symbols[position] - 1
        lengths[at - 1] = 1
