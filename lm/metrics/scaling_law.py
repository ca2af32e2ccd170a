"""Fit the loss of models by their size and training tokens: L(N, D) = E + A / N^alpha + B / D^beta. numpy only.

The form is that of Hoffmann et al. 2022, equation 2. The fit minimises the sum of squared errors of the loss by
variable projection (Golub & Pereyra 1973): for given exponents, non-negative least squares gives E, A and B. Only the
two exponents are searched, from the best point of a grid by damped Gauss-Newton steps. The parameters of data without
noise are recovered up to rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SMALLEST_EXPONENT, LARGEST_EXPONENT = 0.01, 4.0
GRID = np.geomspace(SMALLEST_EXPONENT, LARGEST_EXPONENT, 24)
# Subsets of the columns 1, N^-alpha and D^-beta that may have positive coefficients, the largest first.
SUBSETS = [list(subset) for size in (3, 2, 1) for subset in combinations(range(3), size)]
FEWEST_RUNS = 6
"""One more than the law has parameters"""
FEWEST_VALUES = 3
"""Fewest different sizes, and fewest different numbers of tokens, that determine both curves"""
MOST_STEPS = 200
DRAWS = 500
# A relative change of the exponents that ends the search.
TOLERANCE = 1e-14


@dataclass(frozen=True)
class ScalingLaw:
    """The law L(N, D) = entropy + size_factor / N^size_exponent + token_factor / D^token_exponent."""

    entropy: float
    """E: the loss that remains for endless models and text, in the unit of the losses"""
    size_factor: float
    """A"""
    size_exponent: float
    """alpha"""
    token_factor: float
    """B"""
    token_exponent: float
    """beta"""

    def loss(self, size: float, tokens: float) -> float:
        """Return the loss of a model of `size` parameters after `tokens` tokens."""
        by_size = float(self.size_factor * size**-self.size_exponent)
        return self.entropy + by_size + self.token_gain(tokens, math.inf)

    def token_gain(self, tokens: float, more: float) -> float:
        """Return by how much the loss falls, at any size, from `tokens` to `more` tokens."""
        return float(self.token_factor * (tokens**-self.token_exponent - more**-self.token_exponent))

    def best_size(self, flops: float) -> float:
        """Return the size with the lowest loss for `flops` = 6 N D (Hoffmann et al. 2022, equation 4).

        It is 0 if the loss does not depend on the size, and infinite if it does not depend on the tokens.
        """
        by_size = self.size_exponent * self.size_factor
        by_tokens = self.token_exponent * self.token_factor
        if by_size == 0 or by_tokens == 0:
            return 0.0 if by_size == 0 else math.inf
        both = self.size_exponent + self.token_exponent
        logarithm = (math.log(by_size / by_tokens) + self.token_exponent * math.log(flops / 6)) / both
        return math.exp(logarithm) if logarithm < 700 else math.inf

    def size_for(self, tokens: float) -> float:
        """Return the size that suits `tokens` tokens: for the FLOPs of both, no other size has a lower loss."""
        by_size, by_tokens = self.size_exponent * self.size_factor, self.token_exponent * self.token_factor
        return float((by_size / by_tokens * tokens**self.token_exponent) ** (1 / self.size_exponent))

    def bounds(self) -> list[str]:
        """Return the names of the parameters that are at a bound, where the law has no unique best value."""
        zero = [name for name in ("entropy", "size_factor", "token_factor") if getattr(self, name) == 0]
        ends = (SMALLEST_EXPONENT, LARGEST_EXPONENT)
        used = {"size_exponent": self.size_factor, "token_exponent": self.token_factor}
        return zero + [name for name, factor in used.items() if factor and getattr(self, name) in ends]


class _Projection(NamedTuple):
    """The best E, A and B for given exponents, on data divided by their geometric means."""

    coefficients: Floats
    residuals: Floats
    error: float
    jacobian: Floats
    """Derivatives of the residuals by both exponents, without the part that the coefficients undo (Kaufman 1975)"""


class _Data:
    """Weighted runs, with sizes and tokens divided by their geometric means so that all columns are near 1."""

    def __init__(self, sizes: Floats, tokens: Floats, losses: Floats, weights: Floats) -> None:
        logarithms = np.log(sizes), np.log(tokens)
        self.centres = float(logarithms[0].mean()), float(logarithms[1].mean())
        used = weights > 0
        self.root = np.sqrt(weights[used])
        self.x = [(each - centre)[used] for each, centre in zip(logarithms, self.centres, strict=True)]
        self.y = self.root * losses[used]

    def columns(self, exponents: Floats) -> Floats:
        """Return the weighted columns 1, N^-alpha and D^-beta: (runs, 3)."""
        powers = [np.exp(-exponent * x) for exponent, x in zip(exponents, self.x, strict=True)]
        columns: Floats = self.root[:, None] * np.stack([np.ones_like(self.x[0]), *powers], axis=1)
        return columns

    def project(self, exponents: Floats) -> _Projection:
        """Return the best non-negative coefficients for the exponents."""
        columns = self.columns(exponents)
        coefficients, error = np.zeros(3), math.inf
        for subset in SUBSETS:
            found = np.linalg.lstsq(columns[:, subset], self.y, rcond=None)[0]
            if (found < 0).any():
                continue
            residuals = self.y - columns[:, subset] @ found
            if (squares := float(residuals @ residuals)) < error:
                coefficients, error = np.zeros(3), squares
                coefficients[subset] = found
            if len(subset) == 3:
                break  # no bound is active, so no subset does better
        residuals = self.y - columns @ coefficients
        basis = np.linalg.qr(columns[:, coefficients > 0])[0]
        slopes = np.stack(
            [c * x * column for c, x, column in zip(coefficients[1:], self.x, columns.T[1:], strict=True)]
        )
        return _Projection(coefficients, residuals, error, slopes.T - basis @ (basis.T @ slopes.T))

    def grid_start(self) -> Floats:
        """Return the exponents of the grid with the smallest error."""
        powers = [np.exp(-np.outer(GRID, x)) for x in self.x]  # (grid, runs)
        weights = self.root**2
        y = self.y / self.root
        shape = (len(GRID), len(GRID))
        gram, right = np.empty((*shape, 3, 3)), np.empty((*shape, 3))
        one, by_size, by_tokens = np.ones((1, len(y))), powers[0], powers[1]
        axes = [one[:, None, :], by_size[:, None, :], by_tokens[None, :, :]]
        for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (2, 2)):
            gram[..., i, j] = gram[..., j, i] = (axes[i] * axes[j]) @ weights
        gram[..., 1, 2] = gram[..., 2, 1] = (by_size * weights) @ by_tokens.T
        for i in range(3):
            right[..., i] = axes[i] @ (weights * y)
        errors = _errors(gram, right) + float(self.y @ self.y)
        row, column = np.unravel_index(errors.argmin(), shape)
        return np.array([GRID[row], GRID[column]])


def _errors(gram: Floats, right: Floats) -> Floats:
    """Return the sums of squared errors of non-negative least squares, minus the sum of squared losses.

    `gram`: products of the columns (..., 3, 3); `right`: products with the losses (..., 3). Result: (...).
    """
    best = np.full(right.shape[:-1], np.inf)
    for subset in SUBSETS:
        # The ridge keeps columns that are nearly parallel solvable; the grid only has to find a start.
        part = gram[..., subset, :][..., subset] + 1e-10 * np.eye(len(subset))
        found = np.linalg.solve(part, right[..., subset][..., None])[..., 0]
        error = -(found * right[..., subset]).sum(-1)
        best = np.minimum(best, np.where((found >= 0).all(-1), error, np.inf))
    return best


def _polish(data: _Data, exponents: Floats) -> tuple[Floats, _Projection]:
    """Return the exponents with the smallest error near a start, and their projection.

    The search takes damped Gauss-Newton steps (Levenberg-Marquardt).
    """
    now, damping = data.project(exponents), 1e-3
    for _ in range(MOST_STEPS):
        normal, gradient = now.jacobian.T @ now.jacobian, now.jacobian.T @ now.residuals
        size = np.diag(np.diag(normal)) + 1e-300 * np.eye(2)
        step = np.linalg.lstsq(normal + damping * size, -gradient, rcond=None)[0]
        moved = np.clip(exponents + step, SMALLEST_EXPONENT, LARGEST_EXPONENT)
        if np.all(np.abs(moved - exponents) <= TOLERANCE * exponents):
            break
        there = data.project(moved)
        if there.error < now.error:
            exponents, now, damping = moved, there, damping / 10
        elif damping > 1e12:
            break
        else:
            damping *= 10
    return exponents, now


def fit(
    sizes: Sequence[float] | Floats,
    tokens: Sequence[float] | Floats,
    losses: Sequence[float] | Floats,
    weights: Floats | None = None,
    exponents: tuple[float, float] | None = None,
) -> ScalingLaw:
    """Return the law with the smallest sum of squared errors over runs of `sizes` parameters and `tokens` tokens.

    E, A and B are not negative, and the exponents are from 0.01 to 4; `ScalingLaw.bounds` names parameters at such a
    bound. `weights`: multiples of each squared error, by default 1. `exponents`: given alpha and beta, for runs that do
    not determine them. Raises ValueError for fewer than 6 runs, or fewer than 3 different sizes or numbers of tokens.
    """
    n, d, y = (np.asarray(each, np.float64) for each in (sizes, tokens, losses))
    check_runs(n, d)
    if not all(np.isfinite(each).all() for each in (n, d, y)) or min(n.min(), d.min()) <= 0:
        raise ValueError("sizes and tokens must be above 0, and losses finite")
    data = _Data(n, d, y, np.ones(len(n)) if weights is None else weights)
    if exponents is None:
        powers, found = _polish(data, data.grid_start())
    else:
        powers = np.array(exponents)
        found = data.project(powers)
    factors = found.coefficients[1:] * np.exp(powers * data.centres)
    entropy, (by_size, by_tokens) = float(found.coefficients[0]), map(float, factors)
    return ScalingLaw(entropy, by_size, float(powers[0]), by_tokens, float(powers[1]))


def check_runs(sizes: Sequence[float] | Floats, tokens: Sequence[float] | Floats) -> None:
    """Raise ValueError if a law cannot be fitted to runs of these sizes and tokens."""
    runs, different = len(sizes), (len(set(sizes)), len(set(tokens)))
    if runs < FEWEST_RUNS or min(different) < FEWEST_VALUES:
        raise ValueError(
            f"a scaling law needs {FEWEST_RUNS} runs of {FEWEST_VALUES} sizes and {FEWEST_VALUES} numbers of tokens, "
            f"but there are {runs} runs of {different[0]} sizes and {different[1]} numbers of tokens"
        )


def bootstrap(
    sizes: Sequence[float] | Floats,
    tokens: Sequence[float] | Floats,
    losses: Sequence[float] | Floats,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[ScalingLaw]:
    """Return the laws fitted to `draws` samples of the runs, each drawn with replacement (Efron 1979).

    Samples to which no law can be fitted are drawn again. Raises ValueError as `fit` does.
    """
    check_runs(sizes, tokens)
    counts = _samples(np.asarray(sizes), np.asarray(tokens), np.random.default_rng(seed))
    return [fit(sizes, tokens, losses, next(counts)) for _ in range(draws)]


def _samples(sizes: Floats, tokens: Floats, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield how often each run is in a sample, for samples with enough different sizes and numbers of tokens."""
    runs = len(sizes)
    while True:
        counts = np.bincount(generator.integers(runs, size=runs), minlength=runs)
        drawn = counts > 0
        if min(len(set(sizes[drawn])), len(set(tokens[drawn]))) >= FEWEST_VALUES and drawn.sum() >= FEWEST_RUNS - 1:
            yield counts.astype(np.float64)
