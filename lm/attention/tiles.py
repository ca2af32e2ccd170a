"""Tiles: rectangles of the (T, S) scores that are computed together, with the heads of a group side by side.

Axes: B sequences, H query heads, G key heads, T queries, S keys, D components; a tile has t queries and s keys. Query
head h reads key head h // (H / G) (Ainslie et al. 2023), so the H / G heads of a group can stand under each other as
rows of one matrix, and keys and values need no copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from lm.masks import Mask

QUERY_BLOCK = 128  # queries of a tile where some keys can be left out; at 64 and 256 it is slower on the CPU


def default_scale(q: Tensor, scale: float | None) -> float:
    """What the scores are multiplied by: 1 / sqrt(D) unless said."""
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def group_size(q: Tensor, k: Tensor) -> int:
    """Query heads that share a key head. Raises ValueError where that is no whole number."""
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} query heads over {k.shape[1]} key heads: the number of key heads must divide the other"
        )
    return q.shape[1] // k.shape[1]


def row_blocks(mask: Mask, queries: int, keys: int, most: int) -> Iterator[tuple[slice, slice]]:
    """The queries, at most `most` at a time, each time with the keys that any of them may see."""
    step = min(most, QUERY_BLOCK) if mask.causal or mask.window else most
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        yield rows, mask.span(queries, keys, rows)


def by_group(x: Tensor, groups: int) -> Tensor:
    """x (B, H, n, D) to (B G, H / G n, D): the rows of a group's heads under each other."""
    batch, heads, rows, width = x.shape
    return x.reshape(batch * groups, heads // groups * rows, width)


def added_by_group(added: Tensor, batch: int, heads: int, groups: int, rows: int) -> Tensor:
    """added (1 or B, 1 or H, 1 or t, s) to (B G, H / G t, s), without a copy where it is the same for all heads."""
    if added.shape[:2] == (1, 1) and heads == groups:
        return added[0].expand(batch * groups, rows, -1)
    return added.expand(batch, heads, rows, -1).reshape(batch * groups, heads // groups * rows, -1)
