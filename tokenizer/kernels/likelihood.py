"""The choice of the next pair in WordPiece training by likelihood, on the data of `kernels.piece_merges`.

The score of a pair is count(ab) / (count(a) count(b)), after Schuster and Nakajima, "Japanese and Korean Voice Search"
(2012). A merge lowers count(a) and count(b), so the scores of all other pairs with these symbols rise. These pairs are
ranked again at once: each symbol has a list of its pairs. A pair whose score falls is ranked again when it reaches the
top of the heap. So no score in the heap is too low, and the first one that is up to date is the largest.

A pair with a frequent symbol has a low score and merges late, so the lists that a merge visits are short.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tokenizer.kernels.piece_merges import CURRENT, FINISHED, FOUND, GROW, NODES, NONE, RECORDS, TOUCHED, replace
from tokenizer.kernels.tools import inlined, internal, kernel

LISTED_LEFT, LISTED_RIGHT = 2, 4  # bits of `Merging.marks`: the pair is in the list of its left, right symbol
# Five operations, each rounded to 53 bits, make a score; beyond this factor the larger of two is certain.
CERTAIN = 1 + 2.0**-48


class Ranking(NamedTuple):
    """Counts of symbols, and the heap of the pairs that are frequent enough."""

    symbol_counts: np.ndarray  # int64, per symbol
    firsts: np.ndarray  # int32 (symbols, 2): a record whose pair has the symbol on the left, on the right, or NONE
    nexts: np.ndarray  # int32 (records, 2): the next record of the same list, or NONE
    ranked_by: np.ndarray  # int64 (records, 3): count(ab), count(a) and count(b) when the record was ranked
    places: np.ndarray  # int32, per record: its index in the heap, or NONE
    heap_scores: np.ndarray  # float64, in the order of the heap
    heap: np.ndarray  # int32: records, the largest score first
    size: np.ndarray  # int64 (1,): entries of the heap


@kernel
def count_symbols(symbols, words, word_counts, symbol_counts):
    """Add the occurrences of each symbol to `symbol_counts`."""
    for position in range(len(symbols)):
        symbol_counts[symbols[position]] += word_counts[words[position]]


@intrinsic
def compare_products(typing_context, first, second):
    """Return the sign of a b c - d e f for two tuples of three int64 from 0 on, which 192 bits hold exactly."""
    signature = types.int64(first, second)

    def codegen(context, builder, signature, arguments):
        wide = ir.IntType(192)
        products = []
        for factors in arguments:
            parts = [builder.zext(builder.extract_value(factors, i), wide) for i in range(3)]
            products.append(builder.mul(builder.mul(parts[0], parts[1]), parts[2]))
        greater = builder.zext(builder.icmp_unsigned(">", *products), ir.IntType(64))
        return builder.sub(greater, builder.zext(builder.icmp_unsigned("<", *products), ir.IntType(64)))

    return signature, codegen


@internal
def _precedes(merging, ranking, score, record, other_score, other):
    """Return whether a pair merges before another: larger score, then count, then smaller left and right symbol."""
    if score > other_score * CERTAIN:
        return True
    if other_score > score * CERTAIN:
        return False
    by = ranking.ranked_by
    sign = compare_products((by[record, 0], by[other, 1], by[other, 2]), (by[other, 0], by[record, 1], by[record, 2]))
    if sign == 0:
        sign = by[record, 0] - by[other, 0]
    return sign > 0 or (sign == 0 and merging.keys[record] < merging.keys[other])


@inlined
def _put(ranking, place, score, record):
    ranking.heap_scores[place] = score
    ranking.heap[place] = record
    ranking.places[record] = place


@internal
def _settle(merging, ranking, place, score, record):
    """Put a record at a place of the heap, and restore the order upwards or downwards."""
    heap = ranking.heap
    scores = ranking.heap_scores
    size = ranking.size[0]
    while place > 0:
        parent = (place - 1) >> 1
        if not _precedes(merging, ranking, score, record, scores[parent], heap[parent]):
            break
        _put(ranking, place, scores[parent], heap[parent])
        place = parent
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _precedes(
            merging, ranking, scores[child + 1], heap[child + 1], scores[child], heap[child]
        ):
            child += 1
        if not _precedes(merging, ranking, scores[child], heap[child], score, record):
            break
        _put(ranking, place, scores[child], heap[child])
        place = child
    _put(ranking, place, score, record)


@internal
def _rank(merging, ranking, record):
    """Rank a pair by its present counts. A new entry of the heap is also listed with its symbols."""
    left = merging.keys[record] >> 32
    right = merging.keys[record] & 0xFFFFFFFF
    count = merging.counts[record]
    with_left = ranking.symbol_counts[left]
    with_right = ranking.symbol_counts[right]
    ranking.ranked_by[record, 0] = count
    ranking.ranked_by[record, 1] = with_left
    ranking.ranked_by[record, 2] = with_right
    place = np.int64(ranking.places[record])
    if place == NONE:
        place = ranking.size[0]
        ranking.size[0] += 1
    if not merging.marks[record] & LISTED_LEFT:
        merging.marks[record] |= LISTED_LEFT
        ranking.nexts[record, 0] = ranking.firsts[left, 0]
        ranking.firsts[left, 0] = record
    if not merging.marks[record] & LISTED_RIGHT:
        merging.marks[record] |= LISTED_RIGHT
        ranking.nexts[record, 1] = ranking.firsts[right, 1]
        ranking.firsts[right, 1] = record
    _settle(merging, ranking, place, count / (np.float64(with_left) * np.float64(with_right)), record)


@internal
def _rank_list(merging, ranking, symbol, side, min_count):
    """Rank the pairs with a symbol on one side (0: left, 1: right), and unlist those that are too rare."""
    listed = LISTED_LEFT if side == 0 else LISTED_RIGHT
    before = np.int64(NONE)
    record = np.int64(ranking.firsts[symbol, side])
    while record != NONE:
        after = np.int64(ranking.nexts[record, side])
        if merging.counts[record] >= min_count:
            _rank(merging, ranking, record)
            before = record
        else:
            merging.marks[record] &= ~np.uint8(listed)
            if before == NONE:
                ranking.firsts[symbol, side] = after
            else:
                ranking.nexts[before, side] = after
        record = after


@internal
def _merge(merging, ranking, record, new, min_count):
    """Replace a pair by a symbol, and rank all pairs whose scores rise."""
    left = merging.keys[record] >> 32
    right = merging.keys[record] & 0xFFFFFFFF
    weight = replace(merging, record, new)
    merging.counts[record] = 0
    ranking.symbol_counts[left] -= weight
    ranking.symbol_counts[right] -= weight
    ranking.symbol_counts[new] += weight
    for side in range(2):
        _rank_list(merging, ranking, left, side, min_count)
        _rank_list(merging, ranking, right, side, min_count)


@kernel
def merge_and_find(merging, ranking, new, min_count):
    """Replace the pair state[CURRENT], unless it is NONE, by the symbol `new`, and find the next pair.

    The next pair has the largest score of those that occur at least `min_count` times. Return FOUND with the pair in
    state[CURRENT]; FINISHED if there is none; GROW, with nothing done, if arrays must grow.
    """
    state = merging.state
    record = state[CURRENT]
    if record != NONE:
        size = np.int64(merging.sizes[record])
        if state[RECORDS] + 2 * size > len(merging.keys) or state[NODES] + 2 * size > len(merging.places):
            return GROW
        _merge(merging, ranking, record, new, min_count)
        state[CURRENT] = NONE
    for t in range(state[TOUCHED]):
        record = np.int64(merging.touched[t])
        merging.marks[record] &= ~np.uint8(1)
        if merging.counts[record] >= min_count:
            _rank(merging, ranking, record)
    state[TOUCHED] = 0
    while ranking.size[0]:
        record = np.int64(ranking.heap[0])
        if merging.counts[record] >= min_count:
            by = ranking.ranked_by
            if (
                by[record, 0] == merging.counts[record]
                and by[record, 1] == ranking.symbol_counts[merging.keys[record] >> 32]
                and by[record, 2] == ranking.symbol_counts[merging.keys[record] & 0xFFFFFFFF]
            ):
                state[CURRENT] = record
                return FOUND
            _rank(merging, ranking, record)
            continue
        ranking.places[record] = NONE
        ranking.size[0] -= 1
        last = ranking.size[0]
        if last:
            _settle(merging, ranking, 0, ranking.heap_scores[last], np.int64(ranking.heap[last]))
    return FINISHED
