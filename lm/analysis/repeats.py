"""Means of repeated runs with 95 % intervals. Standard library only.

Groups of runs differ in their mean and share one variance, so that a few runs each are enough to estimate it: the
pooled variance of an analysis of variance (Fisher 1925).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Generic, TypeVar

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
