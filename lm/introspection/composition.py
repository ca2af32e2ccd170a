"""Composition of heads: how much a later head reads of what an earlier head writes, from their weights alone.

With W_QK and W_OV of `lm.introspection.circuits`, Frobenius norms, and head 1 before head 2 (Elhage et al. 2021):

    Q: |W_QK2^T W_OV1| / (|W_QK2| |W_OV1|)      K: |W_QK2 W_OV1| / ...      V: |W_OV2 W_OV1| / ...

Independent random matrices of width d give 1 / sqrt(d), which is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lm.introspection.circuits import query_and_key, write_and_read
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
    heads = [(layer, head) for layer in range(len(model.stack.blocks)) for head in range(model.config.heads)]
    queries, keys = map(torch.stack, zip(*(query_and_key(model, *head, distance) for head in heads), strict=True))
    pairs = [write_and_read(model, *head) for head in heads]
    writes, reads = (torch.stack(factors) for factors in zip(*pairs, strict=True))
    in_query, in_key, in_read, in_write = map(_gram, (queries, keys, reads, writes.transpose(1, 2)))
    scores_norm, writes_norm = _norm(in_query, in_key), _norm(in_write, in_read)  # |W_QK|, |W_OV|

    def composed(left: Tensor, middle: Tensor, norm: Tensor) -> Tensor:
        """Return |A^T (B W_O) W_V| of each pair over the product of the norms; `left` is the Gram matrix of A."""
        found = torch.full((len(heads), len(heads)), torch.nan, dtype=torch.float64)
        for later, (layer, _) in enumerate(heads):
            earlier = layer * model.config.heads
            if earlier:
                between = middle[later] @ writes[:earlier]  # (earlier, D, D)
                size = (left[later] @ between @ in_read[:earlier] * between).sum(dim=(1, 2)).clamp(min=0).sqrt()
                product = norm[later] * writes_norm[:earlier]
                ratio = torch.where(product > 0, size / product.clamp(min=1e-300), 0.0)
                found[later, :earlier] = ratio - model.config.width**-0.5
        return found

    return Composition(
        composed(in_key, queries, scores_norm),
        composed(in_query, keys, scores_norm),
        composed(in_write, reads, writes_norm),
    )


def _gram(factors: Tensor) -> Tensor:
    """Return the products (N, D, D) of the rows of factors (N, D, width)."""
    return factors @ factors.transpose(1, 2)


def _norm(left: Tensor, right: Tensor) -> Tensor:
    """Return |A^T B| of each head from the Gram matrices (N, D, D) of A and B."""
    return (left * right).sum(dim=(1, 2)).clamp(min=0).sqrt()
