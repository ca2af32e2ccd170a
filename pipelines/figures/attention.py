"""One step of attention in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from lm.attention.backends import reference
from lm.masks import Mask
from pipelines.figures.canvas import show_matrix
from pipelines.reporting.svg import new_figure, style

TOKENS = ("the", "cat", "sat")
QUERIES = ((1.0, 0.0), (0.5, 1.0), (2.0, 1.0))
KEYS = ((1.0, 0.5), (0.0, 2.0), (1.5, 0.0))
VALUES = ((1.0, 0.0), (0.0, 2.0), (3.0, -1.0))

Rows = Sequence[Sequence[float]]


def draw_attention(
    queries: Rows = QUERIES, keys: Rows = KEYS, values: Rows = VALUES, tokens: Sequence[str] = TOKENS
) -> Figure:
    """Return the matrices of one causal head: queries, keys, values, masked scores, weights and outputs.

    Numbers are printed to two decimals. `queries`, `keys` and `values` have a row for each of the `tokens`.
    """
    q, k, v = (torch.tensor(rows, dtype=torch.float64)[None, None] for rows in (queries, keys, values))
    length, width = q.shape[2:]
    mask = Mask(causal=True)
    scores = (q @ k.mT)[0, 0] / math.sqrt(width)
    hidden = torch.ones(length, length).triu(1).bool()
    identity = torch.eye(length, dtype=torch.float64)[None, None]
    weights, outputs = (reference(q, k, values, mask)[0, 0].numpy() for values in (identity, v))
    features = [f"{feature}" for feature in range(width)]
    masked = scores.masked_fill(hidden, -math.inf).numpy()
    with style():
        figure = new_figure(8.0, 5.6)
        matrices: list[tuple[np.ndarray, str, Sequence[str]]] = [
            (q[0, 0].numpy(), "queries Q", features),
            (k[0, 0].numpy(), "keys K", features),
            (v[0, 0].numpy(), "values V", features),
            (masked, f"scores Q Kᵀ / √{width}, masked", tokens),
            (weights, "weights = softmax of each row", tokens),
            (outputs, "output = weights · V", features),
        ]
        for axes, (matrix, title, columns) in zip(figure.subplots(2, 3).flat, matrices, strict=True):
            show_matrix(axes, matrix, title, tokens, columns)
    return figure
