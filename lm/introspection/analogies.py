"""Analogies between embeddings: a is to b as c is to d (Mikolov et al. 2013).

The answer is the entry with the largest cosine with b - a + c, computed from vectors of length 1, and is not a, b or c
(Levy and Goldberg 2014 call this 3CosAdd). Chance is the mean rank of an answer in a random order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class Analogies:
    """The answers to N analogies, and how parallel their displacements are."""

    ranks: Tensor
    """(N,) int64: rank of d among the possible answers; 1 is the nearest"""
    nearest: Tensor
    """(N,) int64: the nearest possible answer"""
    candidates: int
    """Number of possible answers: all allowed entries except a, b and c"""
    parallel: Tensor
    """(N,) float64: cosine of b - a and d - c"""

    @property
    def chance_rank(self) -> float:
        """The mean rank of d in a random order."""
        return (self.candidates + 1) / 2


def analogies(embedding: Tensor, quadruples: Tensor, allowed: Tensor) -> Analogies:
    """Return the answers to analogies of rows a, b, c and d: `quadruples` (N, 4) int64 of `embedding` (V, width).

    `allowed` (V,) bool says which rows may be answers, and is True at the four rows. Raises ValueError unless the four
    rows differ.
    """
    for row in quadruples.tolist():
        if len(set(row)) < 4:
            raise ValueError(f"an analogy needs four different entries, but has {row}")
    vectors = embedding.detach().double()
    directions = F.normalize(vectors, dim=-1)
    a, b, c, d = directions[quadruples.T]
    cosines = F.normalize(b - a + c, dim=-1) @ directions.T
    cosines[:, ~allowed] = -torch.inf
    cosines.scatter_(1, quadruples[:, :3], -torch.inf)
    ranks = 1 + (cosines > cosines.gather(1, quadruples[:, 3:])).sum(dim=-1)
    a, b, c, d = vectors[quadruples.T]
    parallel = F.cosine_similarity(b - a, d - c, dim=-1)
    return Analogies(ranks, cosines.argmax(dim=-1), int(allowed.sum()) - 3, parallel)


def chance_of_parallels(embedding: Tensor, quadruples: Tensor) -> float | None:
    """Return the mean cosine of b - a of one analogy and d - c of another; None for fewer than two analogies.

    `embedding` and `quadruples` are as for `analogies`.
    """
    count = len(quadruples)
    if count < 2:
        return None
    a, b, c, d = embedding.detach().double()[quadruples.T]
    first, second = F.normalize(b - a, dim=-1), F.normalize(d - c, dim=-1)
    own = (first * second).sum()
    return float((first.sum(dim=0) @ second.sum(dim=0) - own) / (count * (count - 1)))
