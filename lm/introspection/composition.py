"""Composition of heads: how much a later head reads of what an earlier head writes, from their weights alone.

With W_QK and W_OV of `lm.introspection.circuits`, Frobenius norms, and head 1 before head 2 (Elhage et al. 2021):

    Q: |W_QK2^T W_OV1| / (|W_QK2| |W_OV1|)      K: |W_QK2 W_OV1| / ...      V: |W_OV2 W_OV1| / ...

Independent random matrices of width d give 1 / sqrt(d), which is subtracted. In a post-norm model, W_OV1 includes the
norms that the sum passes before head 2 reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lm.introspection.circuits import query_and_key, through_norms, write_and_read
from lm.model import LanguageModel


@dataclass(frozen=True)
class Composition:
    """Scores (N, N) float64 of all N heads, layer by layer; NaN unless the column's head is in an earlier layer."""

    query: Tensor
    key: Tensor
    value: Tensor


@torch.no_grad()
def composition_scores(model: LanguageModel, distance: int = 0) -> Composition:
    """Return how much each head (row) composes with each head of an earlier layer (column).

    With rotary positions, Q and K composition depend on `distance`: see `qk_circuit`. The weights of norms are
    included, their scales are not. Raises ValueError for models without circuits, and with qk_norm.

    No matrix of width x width is formed: with D head features, the norms are computed from D x D Gram matrices.
    """
    blocks, count = model.stack.blocks, model.config.heads
    heads = [(layer, head) for layer in range(len(blocks)) for head in range(count)]
    queries, keys = map(torch.stack, zip(*(query_and_key(model, *head, distance) for head in heads), strict=True))
    pairs = [write_and_read(model, *head) for head in heads]
    written, reads = torch.stack([write.T for write, _ in pairs]), torch.stack([read for _, read in pairs])
    in_query, in_key, in_read, in_written = map(_gram, (queries, keys, reads, written))
    # For Q, K and V, the matrix of the later head is A^T B. Each entry has the Gram matrix of A, then B, then |A^T B|.
    kinds = [(in_key, queries, _norm(in_key, in_query)), (in_query, keys, _norm(in_key, in_query))]
    kinds.append((in_written, reads, _norm(in_written, in_read)))
    found = [torch.full((len(heads), len(heads)), torch.nan, dtype=torch.float64) for _ in kinds]
    for layer in range(1, len(blocks)):
        earlier = layer * count
        arriving = through_norms(blocks[layer - 1 : layer], written[:earlier])  # (earlier, D, width)
        written[:earlier] = arriving
        sizes = _norm(_gram(arriving), in_read[:earlier])  # |W_OV1|
        for later in range(earlier, earlier + count):
            for scores, (left, middle, norm) in zip(found, kinds, strict=True):
                between = middle[later] @ arriving.transpose(1, 2)  # (earlier, D, D)
                size = (left[later] @ between @ in_read[:earlier] * between).sum(dim=(1, 2)).clamp(min=0).sqrt()
                product = norm[later] * sizes
                ratio = torch.where(product > 0, size / product.clamp(min=1e-300), 0.0)
                scores[later, :earlier] = ratio - model.config.width**-0.5
    return Composition(*found)


def _gram(factors: Tensor) -> Tensor:
    """Return the products (N, D, D) of the rows of factors (N, D, width)."""
    return factors @ factors.transpose(1, 2)


def _norm(left: Tensor, right: Tensor) -> Tensor:
    """Return |A^T B| of each head from the Gram matrices (N, D, D) of A and B."""
    return (left * right).sum(dim=(1, 2)).clamp(min=0).sqrt()
