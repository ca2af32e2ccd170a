"""Tiles: rectangles of the (T, S) scores that are computed together.

Axes: B sequences, H query heads, G key heads, T queries, S keys, D features; a tile has t queries and s keys. The H / G
query heads of a group share a key head (Ainslie et al. 2023). They are stacked as rows of one matrix, so keys and
values need no copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from lm.masks import Mask

QUERY_BLOCK = 128  # queries of a tile that leaves keys out; 64 and 256 are slower on the CPU


def default_scale(q: Tensor, scale: float | None) -> float:
    """Return `scale`, or 1 / sqrt(D) by default."""
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def group_size(q: Tensor, k: Tensor) -> int:
    """Return the number of query heads per key head. Raises ValueError if it is not an integer."""
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads over {k.shape[1]} key heads: the number of key heads must divide the other"
        )
    return q.shape[1] // k.shape[1]


def row_blocks(mask: Mask, queries: int, keys: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Yield ranges of at most `most` queries, each with the range of keys that they attend to."""
    step = min(most, QUERY_BLOCK) if mask.causal or mask.window else most
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        yield rows, mask.span(queries, keys, rows)


def by_group(x: Tensor, groups: int) -> Tensor:
    """x (B, H, n, D) to (B G, H / G n, D): the heads of a group are stacked."""
    batch, heads, rows, width = x.shape
    return x.reshape(batch * groups, heads // groups * rows, width)


def added_by_group(added: Tensor, batch: int, heads: int, groups: int, rows: int) -> Tensor:
    """added (1 or B, 1 or H, 1 or t, s) to (B G, H / G t, s), without a copy if it is the same for all heads."""
    if added.shape[:2] == (1, 1) and heads == groups:
        return added[0].expand(batch * groups, rows, -1)
    return added.expand(batch, heads, rows, -1).reshape(batch * groups, heads // groups * rows, -1)
