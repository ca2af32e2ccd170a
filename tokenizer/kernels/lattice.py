"""The steps of Unigram training on the lattice of all segmentations.

The nodes of a segment's lattice are its positions, its edges the pieces that begin at each of them. Sums over paths are
in the probability domain. A long segment would leave the range of float64, so the sums from a position on are scaled up
when they become small; the backward pass scales by the same factors.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import inlined, kernel

SMALL = 1e-100
NONE = -1


class Lattice(NamedTuple):
    """Segments, and the pieces that begin at each of their positions, shortest first."""

    starts: np.ndarray  # int64, per segment: its first position; then the number of positions
    counts: np.ndarray  # int64, per segment
    edge_starts: np.ndarray  # int64, per position: its first edge; then the number of edges
    pieces: np.ndarray  # int32, per edge
    lengths: np.ndarray  # uint8, per edge: symbols


@inlined
def _forward(lattice, begin, length, probabilities, longest, alphas, factors):
    """Return the log-probability of a segment. Write the scaled probability of all paths to each node to `alphas`.

    factors[k] scales the sums of node k and all later ones.
    """
    for k in range(length + 1):
        alphas[k] = 0.0
        factors[k] = 1.0
    alphas[0] = 1.0
    scale = 0.0
    for k in range(length):
        if alphas[k] < SMALL and alphas[k] > 0:
            factor = 1.0 / alphas[k]
            for node in range(k, min(k + longest, length) + 1):
                alphas[node] *= factor
            factors[k] = factor
            scale -= log(factor)
        here = alphas[k]
        for edge in range(lattice.edge_starts[begin + k], lattice.edge_starts[begin + k + 1]):
            alphas[k + np.int64(lattice.lengths[edge])] += here * probabilities[lattice.pieces[edge]]
    return scale + log(alphas[length])


@kernel
def expect(lattice, first, last, probabilities, longest, alphas, betas, factors, expected):
    """Add the expected count of each piece in the segments first <= s < last to `expected`, float64.

    Return the log-likelihood of the segments in nats.
    alphas, betas, factors: float64, room for one more than the positions of the longest segment.
    """
    likelihood = 0.0
    for segment in range(first, last):
        begin = lattice.starts[segment]
        length = lattice.starts[segment + 1] - begin
        weight = np.float64(lattice.counts[segment])
        likelihood += weight * _forward(lattice, begin, length, probabilities, longest, alphas, factors)
        betas[length] = weight / alphas[length]
        for k in range(length - 1, -1, -1):
            here = alphas[k]
            beta = 0.0
            for edge in range(lattice.edge_starts[begin + k], lattice.edge_starts[begin + k + 1]):
                piece = lattice.pieces[edge]
                rest = probabilities[piece] * betas[k + np.int64(lattice.lengths[edge])]
                expected[piece] += here * rest
                beta += rest
            betas[k] = beta
            if factors[k] != 1.0:
                for node in range(k, min(k + longest, length) + 1):
                    betas[node] *= factors[k]
    return likelihood


@inlined
def _best_path(lattice, begin, length, scores, whole, best, edges):
    """Write the score of the best path to each node, and its last edge. On ties the longest last piece wins.

    whole: whether an edge may be the whole path.
    """
    for k in range(length + 1):
        best[k] = -np.inf
    best[0] = 0.0
    for k in range(length):
        here = best[k]
        for edge in range(lattice.edge_starts[begin + k], lattice.edge_starts[begin + k + 1]):
            size = np.int64(lattice.lengths[edge])
            if k + size > length or (size == length and not whole):
                continue
            score = here + scores[lattice.pieces[edge]]
            if score > best[k + size]:
                best[k + size] = score
                edges[k + size] = edge


@kernel
def count_best(lattice, first, last, scores, best, edges, found):
    """Add the count of each piece on the best paths of the segments first <= s < last to `found`, float64.

    best: float64, edges: int64: room for one more than the positions of the longest segment.
    """
    for segment in range(first, last):
        begin = lattice.starts[segment]
        length = lattice.starts[segment + 1] - begin
        _best_path(lattice, begin, length, scores, True, best, edges)
        while length:
            found[lattice.pieces[edges[length]]] += np.float64(lattice.counts[segment])
            length -= np.int64(lattice.lengths[edges[length]])


@kernel
def find_losses(lattice, places, lengths, scores, found, total, first, last, best, edges, losses):
    """Write the log-likelihood lost without each of the pieces first <= p < last, per occurrence of any piece.

    The best path of other pieces replaces the piece. places: int64, per piece: a position at which it occurs. found:
    float64, the counts on best paths, and `total` their sum. The loss is -inf if the other path is better or the piece
    is on no best path, and inf if there is no other path.
    """
    for piece in range(first, last):
        length = np.int64(lengths[piece])
        count = found[piece]
        _best_path(lattice, places[piece], length, scores, False, best, edges)
        if best[length] == -np.inf:
            losses[piece] = np.inf
            continue
        if best[length] > scores[piece] or count == 0:
            losses[piece] = -np.inf
            continue
        others = 0
        after = 0.0
        while length:
            other = lattice.pieces[edges[length]]
            length -= np.int64(lattice.lengths[edges[length]])
            after += log(found[other] + count)
            others += 1
        after -= others * log(total + count * (others - 1))
        losses[piece] = count / total * (log(count / total) - after)


@kernel
def drop_pieces(lattice, new_of):
    """Drop the edges of dropped pieces, and renumber the pieces of the others. Return the number of edges left.

    new_of: int32, per piece: its new number, or NONE if it is dropped.
    """
    used = 0
    edge = 0
    for position in range(len(lattice.edge_starts) - 1):
        end = lattice.edge_starts[position + 1]
        lattice.edge_starts[position] = used
        while edge < end:
            new = new_of[lattice.pieces[edge]]
            if new != NONE:
                lattice.pieces[used] = new
                lattice.lengths[used] = lattice.lengths[edge]
                used += 1
            edge += 1
    lattice.edge_starts[-1] = used
    return used
