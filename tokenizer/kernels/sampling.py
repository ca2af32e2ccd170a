"""Random segmentations of pretokens: merges of which some are dropped, and random paths of Unigram pieces.

The kernels consume uniform random numbers in the order of `DropoutEncoder` and `encoding.segmentations`, their
references in plain Python. A kernel that runs out of numbers stops before the pretoken that needs more.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

import numpy as np

from tokenizer.kernels.hash_tables import LOW_HALF
from tokenizer.kernels.merges import heap_begin, heap_ids, heap_pop, heap_push, merge_at
from tokenizer.kernels.tools import internal, kernel
from tokenizer.kernels.trie import base_of, child, id_of
from tokenizer.kernels.trie_words import NOTHING, ROOT, UNKNOWN_CHARACTER, write_path


class Edges(NamedTuple):
    """The pieces that begin at a character, shortest first."""

    places: np.ndarray  # int64: the end of each
    tokens: np.ndarray  # int64: its id
    weights: np.ndarray  # float64: first alpha times its score, then sums


def make_edges(n: int) -> Edges:
    """Return room for n pieces."""
    return Edges(np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n))


@internal
def _merge(n, size, merges, dropout, numbers, used, heap, dropped):
    """Merge a pretoken of n bytes. Return the random numbers used so far, -1 if there are too few."""
    waiting = 0
    while size > 0:
        entry = heap.entries[0]
        size = heap_pop(heap.entries, size)
        at = np.int64(entry & LOW_HALF)
        if (heap.values[at] ^ entry) >> np.uint64(32):
            continue  # stale: another pair starts here now
        if used == len(numbers):
            return -1
        used += 1
        if numbers[used - 1] < dropout:
            dropped[waiting] = entry
            waiting += 1
            continue
        size = merge_at(at, n, merges.pairs, heap, size)
        for k in range(waiting):
            size = heap_push(heap.entries, size, dropped[k])
        waiting = 0
    return used


@kernel
def merge_with_dropout(data, start, ends, merges, dropout, numbers, heap, dropped, out, at):
    """Write the ids of pretokens to out[at:]; the first starts at data[start]. Each merge is dropped at random.

    numbers: float64, uniform in [0, 1). heap, dropped (uint64): room for the longest pretoken. Return the number of
    pretokens done, the numbers used, and the end of the ids.
    """
    used = 0
    for k in range(len(ends)):
        n = ends[k] - start
        size = heap_begin(data, start, 0, n, n, merges, heap, 0)
        after = _merge(n, size, merges, dropout, numbers, used, heap, dropped)
        if after < 0:
            return k, used, at
        used = after
        at = heap_ids(n, heap, out, at)
        start = ends[k]
    return len(ends), used, at


@internal
def _edges(data, place, end, pieces, alpha, edges):
    """Find the pieces that begin at data[place], and alpha times the score of each. Return their number.

    The shortest is first. If no piece is the single character, the last one is the unknown character.
    """
    places = edges.places
    tokens = edges.tokens
    weights = edges.weights
    scores = pieces.scores
    first = data[place]
    single = place + 1 + np.int64(first >= 0xC0) + np.int64(first >= 0xE0) + np.int64(first >= 0xF0)
    has_single = False
    base = np.uint64(ROOT)
    count = 0
    for k in range(place, end):
        unit = child(pieces.units, base, data[k])
        if unit == 0:
            break
        base = base_of(unit)
        token = id_of(unit)
        if token != NOTHING:
            places[count] = k + 1
            tokens[count] = token
            weights[count] = alpha * scores[token]
            count += 1
            has_single |= k + 1 == single
    if not has_single:
        places[count] = single
        tokens[count] = pieces.rules[UNKNOWN_CHARACTER]
        weights[count] = alpha * scores[len(scores) - 1]
        count += 1
    return count


@internal
def _sum_paths(data, start, end, pieces, alpha, edges, sums):
    """Write the log of the summed weights of all paths from each character to the end of a pretoken to `sums`."""
    places = edges.places
    weights = edges.weights
    sums[end - start] = 0.0
    for place in range(end - 1, start - 1, -1):
        if data[place] & 0xC0 == 0x80:
            continue  # within a character
        count = _edges(data, place, end, pieces, alpha, edges)
        largest = -np.inf
        for k in range(count):
            weights[k] += sums[places[k] - start]
            largest = max(largest, weights[k])
        total = 0.0
        for k in range(count):
            total += exp(weights[k] - largest)
        sums[place - start] = largest + log(total)


@kernel
def draw_pieces(data, start, ends, pieces, alpha, numbers, edges, sums, path, out, at):
    """Write the ids of a random path through each pretoken to out[at:]; the first starts at data[start].

    A path has a probability proportional to exp(alpha * score). numbers: float64, uniform in [0, 1). edges, sums
    (float64), path (int64): room for the bytes of the longest pretoken and one more. Return the number of pretokens
    done, the numbers used, and the end of the ids.
    """
    places = edges.places
    weights = edges.weights
    used = 0
    for pretoken in range(len(ends)):
        end = ends[pretoken]
        _sum_paths(data, start, end, pieces, alpha, edges, sums)
        place = start
        drawn = 0
        while place < end:
            if used + drawn == len(numbers):
                return pretoken, used, at
            count = _edges(data, place, end, pieces, alpha, edges)
            total = 0.0
            for k in range(count):
                total += exp(weights[k] + sums[places[k] - start] - sums[place - start])
                weights[k] = total
            threshold = numbers[used + drawn] * total
            drawn += 1
            k = 0
            while k < count - 1 and weights[k] <= threshold:
                k += 1
            path[places[k] - start] = (place - start) << 32 | edges.tokens[k]
            place = places[k]
        used += drawn
        at += write_path(data, start, end, pieces, path, out, at)
        start = end
    return len(ends), used, at
