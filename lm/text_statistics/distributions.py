"""Compute information measures of explicit distributions by their textbook definitions. numpy only, float64.

A distribution is an array of probabilities that sum to 1. A joint distribution of X and Y is a matrix (X, Y), rows x.
Logarithms are to `base`: 2 for bits, e for nats. The convention 0 log 0 = 0 makes outcomes without probability free.

Cover & Thomas, Elements of Information Theory, 2nd edition, chapter 2. Lin 1991 for the Jensen-Shannon divergence.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
SUM_TOLERANCE = 1e-9


def entropy(p: ArrayLike, base: float = 2.0) -> float:
    """Return H(p) = -sum p log p of a distribution of any shape."""
    p = _distribution(p)
    return _in_base(-_expected_log(p, p), base)


def cross_entropy(p: ArrayLike, q: ArrayLike, base: float = 2.0) -> float:
    """Return H(p, q) = -sum p log q; infinity if q is 0 where p is not."""
    p, q = _pair(p, q)
    return _in_base(-_expected_log(p, q), base)


def kl(p: ArrayLike, q: ArrayLike, base: float = 2.0) -> float:
    """Return D(p || q) = sum p log(p / q), at least 0; infinity if q is 0 where p is not."""
    p, q = _pair(p, q)
    return _in_base(_expected_log(p, p) - _expected_log(p, q), base)


def js(p: ArrayLike, q: ArrayLike, base: float = 2.0) -> float:
    """Return the Jensen-Shannon divergence D(p || m) / 2 + D(q || m) / 2 with m = (p + q) / 2: from 0 to log 2."""
    p, q = _pair(p, q)
    middle = (p + q) / 2
    return (kl(p, middle, base) + kl(q, middle, base)) / 2


def joint_entropy(joint: ArrayLike, base: float = 2.0) -> float:
    """Return H(X, Y) of a joint distribution (X, Y)."""
    return entropy(_joint(joint), base)


def conditional_entropy(joint: ArrayLike, base: float = 2.0) -> float:
    """Return H(Y | X) = -sum p(x, y) log p(y | x) of a joint distribution (X, Y)."""
    joint = _joint(joint)
    given = joint.sum(axis=1, keepdims=True)
    return _in_base(_expected_log(given, given) - _expected_log(joint, joint), base)


def mutual_information(joint: ArrayLike, base: float = 2.0) -> float:
    """Return I(X; Y) = D(p(x, y) || p(x) p(y)) of a joint distribution (X, Y)."""
    joint = _joint(joint)
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return _in_base(_expected_log(joint, joint) - _expected_log(joint, independent), base)


def _distribution(p: ArrayLike) -> Floats:
    """Return the probabilities as float64. Raises ValueError if they are negative or do not sum to 1."""
    values: Floats = np.asarray(p, dtype=np.float64)
    if not np.all(values >= 0):
        raise ValueError("a distribution has a probability that is negative or not a number: give values from 0 to 1")
    if not abs(values.sum() - 1) <= SUM_TOLERANCE:
        raise ValueError(f"the probabilities of a distribution sum to {values.sum():.12g}, not 1: divide by the sum")
    return values


def _pair(p: ArrayLike, q: ArrayLike) -> tuple[Floats, Floats]:
    p, q = _distribution(p), _distribution(q)
    if p.shape != q.shape:
        raise ValueError(f"distributions of shapes {p.shape} and {q.shape}: give both over the same outcomes")
    return p, q


def _joint(joint: ArrayLike) -> Floats:
    joint = _distribution(joint)
    if joint.ndim != 2:
        raise ValueError(f"a joint distribution is a matrix (X, Y), not an array of shape {joint.shape}")
    return joint


def _expected_log(p: Floats, q: Floats) -> float:
    """Return sum p ln q over the outcomes with p > 0."""
    possible = p > 0
    with np.errstate(divide="ignore"):
        return float(p[possible] @ np.log(q[possible]))


def _in_base(nats: float, base: float) -> float:
    """Return nats in units of log `base`, at least 0: rounding can make a divergence negative."""
    if not base > 1:
        raise ValueError(f"the base of logarithms is {base}, but must be above 1: 2 for bits, math.e for nats")
    return max(0.0, nats) / math.log(base)
