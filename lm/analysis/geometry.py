"""The geometry of an embedding: which tokens lie close together, and the directions along which they spread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class Neighbours:
    """The nearest tokens of some tokens: ids (N, k) int64, nearest first, and their cosines (N, k) float64."""

    ids: Tensor
    cosines: Tensor


def nearest_tokens(embedding: Tensor, ids: Tensor, count: int) -> Neighbours:
    """The `count` rows of `embedding` (V, width) with the largest cosine to each of the rows `ids` (N,), the row
    itself left out.

    The cosine to a row of zeros is 0. Raises ValueError when there are not `count` other rows.
    """
    entries = embedding.shape[0]
    if not 1 <= count < entries:
        raise ValueError(f"count is {count}, but a token of {entries} has from 1 to {entries - 1} neighbours: give one")
    directions = F.normalize(embedding.detach().double(), dim=-1)
    cosines = directions[ids] @ directions.T
    cosines[torch.arange(len(ids), device=ids.device), ids] = -torch.inf
    found = cosines.topk(count, dim=-1)
    return Neighbours(found.indices, found.values.clamp(-1.0, 1.0))


@dataclass(frozen=True)
class PrincipalComponents:
    """`coordinates` (V, k) float64 of each token along the k directions of largest variance, in falling order; `shares`
    (k,) float64 of the whole variance that each explains; `directions` (k, width), of length 1."""

    coordinates: Tensor
    shares: Tensor
    directions: Tensor


def principal_components(embedding: Tensor, count: int = 2) -> PrincipalComponents:
    """Principal components of the rows of `embedding` (V, width): eigenvectors of their covariance (Pearson 1901).

    In float64, where the covariance loses nothing that shows; of 50,000 rows it costs a fifth of the singular values of
    the matrix itself. A direction's sign means nothing: it is chosen so that its largest component is positive.
    Raises ValueError when there are fewer than `count` directions.
    """
    largest = min(embedding.shape)
    if not 1 <= count <= largest:
        raise ValueError(f"count is {count}, but there are from 1 to {largest} principal components: give one of these")
    centred = embedding.detach().double()
    centred = centred - centred.mean(dim=0)
    variances, eigenvectors = torch.linalg.eigh(centred.T @ centred)  # in rising order
    variances, directions = variances.flip(0).clamp(min=0.0), eigenvectors.T.flip(0)[:count]
    largest_components = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    directions = directions * torch.where(largest_components < 0, -1.0, 1.0)
    return PrincipalComponents(centred @ directions.T, variances[:count] / variances.sum(), directions)
