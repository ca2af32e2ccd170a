"""Compute confidence intervals of ratios of sums, by a bootstrap over documents. numpy only.

A quantity such as bits per byte is a ratio of two sums over documents. A sample of the bootstrap (Efron 1979) draws as
many documents as there are, with replacement, and takes the ratio of their sums. The interval contains the middle 95 %
of these ratios. For the difference between two models, each sample has the same documents for both. A text of few
documents is cut into segments, and samples draw blocks of consecutive segments instead (Politis & Romano 1992).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Generic, TypeVar

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


Key = TypeVar("Key")


class Repeats(Generic[Key]):
    """The means of groups of repeated runs, and their intervals by Student's t with the pooled variance."""

    def __init__(self, groups: Mapping[Key, Sequence[float]]) -> None:
        """`groups` has the values of each group, at least one."""
        self.means = {key: fmean(values) for key, values in groups.items()}
        self._counts = {key: len(values) for key, values in groups.items()}
        self.freedom = sum(count - 1 for count in self._counts.values())
        """Degrees of freedom: runs minus groups; with 0 there are no intervals"""
        squares = math.fsum((value - self.means[key]) ** 2 for key, values in groups.items() for value in values)
        self.deviation = math.sqrt(squares / self.freedom) if self.freedom else math.nan
        """Pooled standard deviation of one run"""

    def margin(self, key: Key) -> float | None:
        """Return half the width of the 95 % interval of a group's mean; None without repeats."""
        return self._margin(1 / self._counts[key])

    def margin_of_difference(self, one: Key, other: Key) -> float | None:
        """Return half the width of the 95 % interval of the difference of two means; None without repeats."""
        return self._margin(1 / self._counts[one] + 1 / self._counts[other])

    def _margin(self, share: float) -> float | None:
        return t_quantile(self.freedom) * self.deviation * math.sqrt(share) if self.freedom else None

    def best(self, among: Iterable[Key] | None = None) -> Key:
        """Return the group with the lowest mean; `among`: the groups to choose from, by default all."""
        return min(self.means if among is None else among, key=lambda key: self.means[key])

    def not_significantly_worse(self, among: Iterable[Key] | None = None) -> list[Key] | None:
        """Return the groups, the lowest included, whose mean does not differ from the lowest at the 5 % level.

        Each group is compared alone with the lowest, without a correction for several comparisons. Returns None without
        repeats, because then nothing is known about differences.
        """
        if not self.freedom:
            return None
        keys = list(self.means if among is None else among)
        best = self.best(keys)
        gaps = {key: self.means[key] - self.means[best] for key in keys}
        return [key for key in keys if key == best or gaps[key] <= (self.margin_of_difference(key, best) or 0.0)]


def t_quantile(freedom: int, level: float = 0.95) -> float:
    """Return x such that Student's t with `freedom` degrees of freedom is within [-x, x] with probability `level`."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_within(middle, freedom) < level else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _probability_within(angle: float, freedom: int) -> float:
    """Return P(|t| <= sqrt(freedom) tan(angle)): Abramowitz & Stegun 26.7.3 (odd) and 26.7.4 (even)."""
    odd, cosine = freedom % 2, math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
