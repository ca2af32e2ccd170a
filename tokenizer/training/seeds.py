"""The seeds of Unigram training, from counts of words: characters, and frequent substrings that obey the rules.

Words are cut into segments where the rules let no piece cross. Suffixes of segments are sorted only up to the length of
the longest piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from tokenizer.document_blocks import as_readonly
from tokenizer.kernels import substrings as kernel
from tokenizer.kernels.lattice import Lattice
from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.splitting.unicode_properties import scripts
from tokenizer.training.count_table import Counted
from tokenizer.training.piece_rules import PieceRules
from tokenizer.training.spilling import in_order_by_steps, join, pieces

SPACE = " "  # only begins a piece
BYTE_CHARACTERS = "<0x123456789ABCDEF>"  # if one were unknown, the text "<0x41>" could become the piece of a byte
PROLONGED_SOUND = "\u30fc"  # the length mark of kana; its script is Common
STEP = 1 << 20  # words or positions between which Ctrl-C is handled
SORTED_AT_ONCE = 1 << 18  # suffixes
MOST_POSITIONS = 2**31 - 1


@cache
def script_kinds() -> np.ndarray:
    """Return the script of each code point, uint8 (0x110000,). Code points without a script share one."""
    kinds = np.full(CODE_POINTS, kernel.SCRIPT, dtype=np.uint8)
    found = scripts()
    numbers = {name: kernel.SCRIPT + k for k, name in enumerate(sorted(found), start=1)}
    numbers |= {"hiragana": numbers["han"], "katakana": numbers["han"], "inherited": kernel.INHERITED}
    for name, ranges in found.items():
        for first, last in ranges:
            kinds[first : last + 1] = numbers[name]
    kinds[ord(PROLONGED_SOUND)] = numbers["han"]
    return kinds


@dataclass(frozen=True)
class Seeds:
    """The lattice of all segments, and the pieces of which it consists, characters first.

    symbols: int32, per position: the number of its character, from 1. characters: int64: the code point of each
    character. places: int64, per piece: a position where it occurs. lengths: uint8: its symbols. weights: int64: its
    occurrences.
    """

    lattice: Lattice
    symbols: np.ndarray
    characters: np.ndarray
    places: np.ndarray
    lengths: np.ndarray
    weights: np.ndarray


def character_kinds(rules: PieceRules, characters: np.ndarray, runs: bool) -> np.ndarray:
    """Return the kind of each code point for `kernels.substrings`, uint8: UNKNOWN unless in `characters`.

    runs: whether runs of spaces can be pieces.
    """
    kinds = script_kinds().copy() if rules.split_by_unicode_script else np.full(CODE_POINTS, kernel.ANY, np.uint8)
    digits = slice(ord("0"), ord("9") + 1)
    if not rules.split_by_number:
        kinds[digits] = kernel.ANY
    if rules.split_digits:
        kinds[digits] = kernel.ALONE
    kinds[ord(SPACE)] = kernel.SPACES if runs else kernel.SPACE
    known = np.zeros(CODE_POINTS, dtype=np.bool_)
    known[characters] = True
    kinds[~known] = kernel.UNKNOWN
    return kinds


def find_seeds(words: Counted, rules: PieceRules, runs: bool = False) -> Seeds:
    """Return the seeds of words in UTF-8. The order of the words does not matter.

    runs: whether runs of spaces can be pieces, which no other character follows.
    """
    characters = covered_characters(words, rules)
    kinds = character_kinds(rules, characters, runs)
    segments = in_order_by_steps(join([_cut(piece, kinds, rules) for piece in pieces(words)]))
    symbols, starts, reaches = _lay_out(segments, characters, kinds, rules.max_piece_length)
    counts = segments.counts
    del segments
    tree, occurrences = _tree(symbols, reaches, np.repeat(counts, np.diff(starts)), len(characters))
    kept = _most_covering(tree, rules.seed_size)
    first_places = np.zeros(len(characters) + 1, dtype=np.int64)
    first_places[symbols[::-1]] = np.arange(len(symbols))[::-1]
    piece_of = np.full(len(tree.depths), kernel.NONE, dtype=np.int32)
    piece_of[kept] = len(characters) + np.arange(len(kept), dtype=np.int32)
    return Seeds(
        lattice=Lattice(starts, counts, *_edges(tree, piece_of, symbols)),
        symbols=symbols,
        characters=characters,
        places=np.concatenate([first_places[1:], tree.places[kept]]),
        lengths=np.concatenate([np.ones(len(characters), dtype=np.uint8), tree.depths[kept]]),
        weights=np.concatenate([occurrences[1:], tree.weights[kept]]),
    )


def covered_characters(words: Counted, rules: PieceRules) -> np.ndarray:
    """Return the code points of the characters that pieces may have, int64, ascending."""
    occurrences = np.zeros(CODE_POINTS, dtype=np.int64)
    for first, last in _steps(len(words.counts)):
        kernel.count_characters(*map(as_readonly, words), first, last, occurrences)
    occurrences[0] = 0  # no file format spells NUL
    found = np.flatnonzero(occurrences)
    ordered = found[np.argsort(-occurrences[found], kind="stable")]
    covered = np.cumsum(occurrences[ordered]) / max(1, occurrences.sum())
    wanted = int(np.searchsorted(covered, rules.character_coverage)) + 1
    required = SPACE + rules.required_chars + (BYTE_CHARACTERS if rules.byte_fallback else "")
    return np.union1d(ordered[:wanted], np.array([ord(character) for character in required]))


def _steps(n: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + STEP, n)) for first in range(0, n, STEP))


def _cut(words: Counted, kinds: np.ndarray, rules: PieceRules) -> Counted:
    """Return the segments of words, unsorted."""
    data, offsets, counts = map(as_readonly, words)
    size, longest = int(offsets[-1] - offsets[0]), int(np.diff(offsets).max(initial=0))
    cut = Counted.empty(size, 3 * size)  # untouched pages take no memory
    room = np.empty(longest, dtype=np.uint8), np.empty(longest + 1, dtype=np.int64)
    n = kernel.cut_words(data, offsets, counts, kinds, rules.max_piece_length, *room, *cut)
    return Counted(cut.data[: cut.offsets[n]], cut.offsets[: n + 1], cut.counts[:n])


def _lay_out(
    segments: Counted, characters: np.ndarray, kinds: np.ndarray, longest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the symbols, int32, the first position of each segment, int64, and the reaches, uint8.

    The reach of a position is the length of the longest possible piece there.
    """
    positions = int(np.count_nonzero((segments.data & 0xC0) != 0x80))
    if positions > MOST_POSITIONS:
        raise ValueError(f"the words have {positions:,} characters, more than 2**31: leave out rare ones (`min_count`)")
    symbol_of = np.zeros(CODE_POINTS, dtype=np.int32)
    symbol_of[characters] = 1 + np.arange(len(characters))
    symbols = np.empty(positions, dtype=np.int32)
    kinds_here, reaches = np.empty((2, positions), dtype=np.uint8)
    starts = np.zeros(len(segments.counts) + 1, dtype=np.int64)
    data, offsets, at = as_readonly(segments.data), as_readonly(segments.offsets), 0
    for first, last in _steps(len(segments.counts)):
        at = kernel.lay_out(
            data, offsets, symbol_of, kinds, longest, first, last, at, starts, symbols, kinds_here, reaches
        )
    return symbols, starts, reaches


def sorted_suffixes(symbols: np.ndarray, reaches: np.ndarray, characters: int) -> np.ndarray:
    """Return the positions of all suffixes of at least two symbols in lexicographic order, int32.

    reaches: uint8, per position: the length of its suffix. Suffixes that are equal are in no particular order.
    """
    order: np.ndarray = np.flatnonzero(reaches >= 2).astype(np.int32)
    first_symbols: np.ndarray = symbols[order]
    if characters < 1 << 16:  # numpy has a radix sort for 16 bits
        first_symbols = first_symbols.astype(np.uint16)
    order = order[np.argsort(first_symbols, kind="stable")]
    ends: np.ndarray = np.cumsum(np.bincount(first_symbols, minlength=1))
    first = 0
    while first < len(order):  # in parts, which take less memory
        last = int(ends[min(int(np.searchsorted(ends, first + SORTED_AT_ONCE)), len(ends) - 1)])
        order[first:last] = _sort(order[first:last], symbols, reaches, characters)
        first = last
    return order


def _sort(order: np.ndarray, symbols: np.ndarray, reaches: np.ndarray, characters: int) -> np.ndarray:
    """Return positions in the order of their suffixes.

    Each pass sorts by as many symbols as fit in 64 bits; the next pass sorts the ties by the symbols after them.
    """
    bits = characters.bit_length()
    longest, done = int(reaches.max(initial=0)), 0
    tied = np.arange(len(order), dtype=np.int32)  # the ranks that are not final
    keys = np.zeros(len(order), dtype=np.uint64)  # the number of the tie, then symbols
    tie_bits = 0
    while len(tied):
        taken = min((64 - tie_bits) // bits, longest - done)
        positions = order[tied]
        for first, last in _steps(len(tied)):
            kernel.pack_keys(symbols, reaches, positions, done, taken, bits, first, last, keys)
        places = np.argsort(keys)
        order[tied] = positions[places]
        keys = keys[places]
        done += taken
        if done >= longest:
            break
        equal = np.concatenate([[False], keys[1:] == keys[:-1]])
        unfinished = (keys & np.uint64((1 << bits) - 1)) != 0
        unfinished &= equal | np.append(equal[1:], False)
        ties = np.cumsum(~equal[unfinished])
        tied, keys = tied[unfinished], ties.astype(np.uint64)
        tie_bits = int(ties[-1]).bit_length() if len(ties) else 0
    return order


def _tree(
    symbols: np.ndarray, reaches: np.ndarray, weights: np.ndarray, characters: int
) -> tuple[kernel.Tree, np.ndarray]:
    """Return the suffix tree, and the occurrences of each symbol, int64. weights: int64, per position."""
    occurrences = np.zeros(characters + 1, dtype=np.int64)
    np.add.at(occurrences, symbols, weights)
    order = sorted_suffixes(symbols, reaches, characters)
    room = 2 * len(order) + 1  # untouched pages take no memory
    tree = kernel.Tree(
        depths=np.empty(room, dtype=np.uint8),
        weights=np.empty(room, dtype=np.int64),
        parents=np.empty(room, dtype=np.int32),
        places=np.empty(room, dtype=np.int64),
        deepest=np.full(len(symbols), kernel.NONE, dtype=np.int32),
        stack=np.full(2 + int(reaches.max(initial=0)), kernel.NONE, dtype=np.int32),
        state=np.zeros(4, dtype=np.int64),
    )
    for first, last in [*_steps(len(order)), (len(order), len(order))]:
        kernel.grow_tree(symbols, reaches, order, weights, first, last, tree)
    nodes = int(tree.state[kernel.NODES])
    used = tree._replace(depths=tree.depths[:nodes], weights=tree.weights[:nodes], places=tree.places[:nodes])
    return used, occurrences


def _most_covering(tree: kernel.Tree, most: int) -> np.ndarray:
    """Return the nodes that cover most text, at most `most`; on ties the longer ones, then the first."""
    nodes = np.arange(len(tree.depths))
    if len(nodes) <= most:
        return nodes
    lengths = tree.depths.astype(np.int64)
    return np.sort(np.lexsort((-lengths, -tree.weights * lengths))[:most])


def _edges(tree: kernel.Tree, piece_of: np.ndarray, symbols: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the `edge_starts`, `pieces` and `lengths` of the lattice."""
    edge_starts = np.zeros(len(symbols) + 1, dtype=np.int64)
    for first, last in _steps(len(symbols)):
        kernel.count_edges(tree, piece_of, first, last, edge_starts)
    edges = np.empty(edge_starts[-1], dtype=np.int32), np.empty(edge_starts[-1], dtype=np.uint8)
    for first, last in _steps(len(symbols)):
        kernel.write_edges(tree, piece_of, symbols, first, last, edge_starts, *edges)
    return edge_starts, *edges
