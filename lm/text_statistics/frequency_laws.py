"""Fit Zipf's law (word frequency by rank) and Heaps' law (vocabulary size by text length)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_COUNT = 10  # rarer words are left out of Zipf's fit: their ranks are noise
LEAST_RANKS = 10
FIRST_LENGTH = 1000  # words of text where Heaps' fit begins
POINTS = 60  # on a logarithmic axis

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Zipf:
    """The maximum-likelihood fit p(r) = r^-s / sum of r^-s of the frequency of the word of rank r, r = 1 to `ranks`.

    occurrences: total occurrences of these words;
    distance: largest difference between the cumulative distributions of text and fit, from 0 to 1.
    """

    exponent: float
    ranks: int
    occurrences: int
    distance: float


@dataclass(frozen=True, kw_only=True)
class Heaps:
    """The least-squares fit of log V(n) = log K + beta log n, with V(n) the distinct words among the first n.

    deviation: the root mean square of the relative deviation of V(n), so 0.01 is 1 %.
    """

    exponent: float
    factor: float
    deviation: float


def fit_zipf(counts: Array) -> Zipf | None:
    """Return the fit to the words that occur at least `LEAST_COUNT` times; None for fewer than `LEAST_RANKS` words.

    counts (V,): occurrences of each word. The log-likelihood is concave in s. At its maximum, fit and text have the
    same mean of ln r, which bisection finds.
    """
    frequent = np.sort(counts[counts >= LEAST_COUNT])[::-1].astype(np.float64)
    if len(frequent) < LEAST_RANKS:
        return None
    logarithms = np.log(np.arange(1, len(frequent) + 1))
    observed = frequent / frequent.sum()

    def fit(exponent: float) -> Array:
        weights: Array = np.exp(-exponent * logarithms)
        weights /= weights.sum()
        return weights

    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fit(middle) @ logarithms > observed @ logarithms else (low, middle)
    distance = np.abs(np.cumsum(observed) - np.cumsum(fit(low))).max()
    return Zipf(exponent=low, ranks=len(frequent), occurrences=int(frequent.sum()), distance=float(distance))


def vocabulary_growth(words: Array) -> list[tuple[int, int]]:
    """Return (n, distinct words among the first n) at `POINTS` lengths n up to N: words (N,) integers."""
    if not len(words):
        return []
    firsts = np.sort(np.unique(words, return_index=True)[1])
    lengths = np.unique(np.round(np.geomspace(1, len(words), POINTS)).astype(np.int64))
    return list(zip(lengths.tolist(), np.searchsorted(firsts, lengths).tolist(), strict=True))


def fit_heaps(growth: list[tuple[int, int]]) -> Heaps | None:
    """Return the fit to the points of `vocabulary_growth` from `FIRST_LENGTH` words on; None below three points."""
    points = [point for point in growth if point[0] >= FIRST_LENGTH]
    if len(points) < 3:
        return None
    lengths, vocabulary = (np.log(np.array(values, dtype=np.float64)) for values in zip(*points, strict=True))
    slope, intercept = np.polyfit(lengths, vocabulary, 1)
    deviations = np.expm1(vocabulary - (intercept + slope * lengths))
    return Heaps(
        exponent=float(slope), factor=math.exp(intercept), deviation=float(np.sqrt(np.mean(np.square(deviations))))
    )
