"""Compute confidence intervals of ratios of sums, by a bootstrap over documents. numpy only.

A quantity such as bits per byte is a ratio of two sums over documents. A sample of the bootstrap (Efron 1979) draws as
many documents as there are, with replacement, and takes the ratio of their sums. The interval contains the middle 95 %
of these ratios. For the difference between two models, each sample has the same documents for both. A text of few
documents is cut into segments, and samples draw blocks of consecutive segments instead (Politis & Romano 1992).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
LEVEL = 0.95
CHUNK_COUNTS = 2**22  # counts in memory at once: 32 MB

Floats = NDArray[np.float64]


def resampled_sums(sums: np.ndarray, *, picks: int | None = None, draws: int = DRAWS, seed: int = 0) -> Floats:
    """Return the sums of `draws` samples of units: (U, K) to (draws, K) float64.

    Each sample has `picks` units, drawn with replacement; default: U. Equal columns have equal results. Raises
    ValueError without units.
    """
    columns = np.asarray(sums, np.float64).T.copy()
    units = columns.shape[1]
    if units == 0:
        raise ValueError("no unit to draw from: give at least one document")
    generator = np.random.default_rng(seed)
    rows = max(1, CHUNK_COUNTS // max(units, picks or units))
    parts = []
    for first in range(0, draws, rows):
        count = min(rows, draws - first)
        drawn = generator.integers(units, size=(count, picks or units)) + units * np.arange(count)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=count * units).reshape(count, units).astype(np.float64)
        # One product per column: a matrix product may round equal columns differently.
        parts.append(np.stack([counts @ column for column in columns], axis=1))
    return np.concatenate(parts)


def block_length(segments: int) -> int:
    """Return the number of segments in a block: the cube root of `segments`, at least 4 and at most half of them."""
    return max(1, min(max(4, round(math.cbrt(segments))), segments // 2))


def circular_blocks(sums: np.ndarray, length: int) -> Floats:
    """Return the sums of `length` consecutive rows, from each row on and around the end: (N, K) to (N, K) float64."""
    around = np.concatenate([sums, sums[: length - 1]]).astype(np.float64)
    blocks: Floats = np.lib.stride_tricks.sliding_window_view(around, length, axis=0).sum(axis=-1)
    return blocks


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the range of the middle 95 % of `values` (draws,): the percentile interval."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
