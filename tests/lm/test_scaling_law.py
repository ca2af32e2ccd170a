"""Scaling laws: exact on noiseless data, as good as scipy's search on noisy data, and closed forms of what follows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, minimize_scalar, nnls

from lm.metrics.scaling_law import LARGEST_EXPONENT, SMALLEST_EXPONENT, ScalingLaw, bootstrap, fit

HOFFMANN = ScalingLaw(1.69, 406.4, 0.34, 410.7, 0.28)
BESIROGLU = ScalingLaw(1.817, 482.0, 0.348, 2085.0, 0.366)


def grid(law, smallest=1e5, largest=1.6e6):
    """Return sizes, tokens and losses of five sizes, each with D, 2D and 4D tokens."""
    sizes = np.repeat(np.geomspace(smallest, largest, 5), 3)
    tokens = 2 * largest * (sizes / largest) ** -0.5 * np.tile([1, 2, 4], 5)
    return sizes, tokens, np.array([law.loss(n, d) for n, d in zip(sizes, tokens, strict=True)])


def numbers(law):
    return list(vars(law).values())


@pytest.mark.parametrize("law", [HOFFMANN, BESIROGLU])
@pytest.mark.parametrize("sizes", [(1e5, 1.6e6), (5e7, 1e10)])
def test_published_laws_are_recovered_from_their_losses(law, sizes):
    assert numbers(fit(*grid(law, *sizes))) == pytest.approx(numbers(law), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 3), st.floats(0.1, 3), st.floats(0.1, 1.2), st.floats(0.1, 3), st.floats(0.1, 1.2), st.floats(-1, 1)
)
def test_random_laws_are_recovered_from_their_losses(entropy, by_size, alpha, by_tokens, beta, shift):
    largest = 1.6 * 10 ** (6 + 3 * shift)
    law = ScalingLaw(entropy, by_size * largest**alpha, alpha, by_tokens * largest**beta, beta)
    assert numbers(fit(*grid(law, largest / 16, largest))) == pytest.approx(numbers(law), rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_search_of_scipy_finds_a_smaller_error_on_noisy_losses(seed):
    generator = np.random.default_rng(seed)
    sizes, tokens, losses = grid(ScalingLaw(1.2, 40.0, 0.3, 60.0, 0.3))
    losses = losses + generator.normal(0, 0.02, len(losses))
    found = fit(sizes, tokens, losses)

    errors = [found.loss(n, d) for n, d in zip(sizes, tokens, strict=True)] - losses
    x, y = sizes / 4e5, tokens / 4e6

    def scaled(p):
        return p[0] + p[1] * x ** -p[2] + p[3] * y ** -p[4] - losses

    low, high = [0, 0, SMALLEST_EXPONENT, 0, SMALLEST_EXPONENT], [9, 9, LARGEST_EXPONENT, 9, LARGEST_EXPONENT]
    starts = [[1, 0.5, a, 0.5, b] for a in (0.1, 0.5, 1.5) for b in (0.1, 0.5, 1.5)]
    best = min(2 * least_squares(scaled, start, bounds=(low, high), x_scale="jac").cost for start in starts)
    assert np.sum(errors**2) <= best * (1 + 1e-9)


def test_weights_are_repetitions_of_runs():
    sizes, tokens, losses = grid(HOFFMANN)
    losses = losses + np.random.default_rng(0).normal(0, 0.02, len(losses))
    counts = np.array([2, 1, 0, 1, 3] * 3)
    repeated = [np.repeat(each, counts) for each in (sizes, tokens, losses)]
    weighted = fit(sizes, tokens, losses, counts.astype(float))
    assert numbers(weighted) == pytest.approx(numbers(fit(*repeated)), rel=1e-5)


def test_a_loss_below_the_power_laws_has_no_entropy():
    """The least squares alone would give E = -0.3."""
    found = fit(*grid(ScalingLaw(-0.3, 406.4, 0.34, 410.7, 0.28)))
    assert found.entropy == 0
    assert found.bounds()[0] == "entropy"


def test_a_loss_that_ignores_the_size_or_the_tokens_has_no_best_size():
    by_tokens = fit(*grid(ScalingLaw(1.0, 0.0, 0.3, 100.0, 0.3)))
    by_size = fit(*grid(ScalingLaw(1.0, 100.0, 0.3, 0.0, 0.3)))
    assert by_tokens.best_size(1e15) < 1e5  # the smallest size
    assert by_size.best_size(1e15) > 1.6e6
    assert ScalingLaw(1.0, 0.0, 0.3, 100.0, 0.3).best_size(1e15) == 0
    assert ScalingLaw(1.0, 100.0, 0.3, 0.0, 0.3).best_size(1e15) == float("inf")
    assert ScalingLaw(1.0, 0.0, 0.3, 100.0, 0.3).bounds() == ["size_factor"]


@pytest.mark.parametrize("law", [HOFFMANN, BESIROGLU])
@pytest.mark.parametrize("flops", [1e14, 5.76e23])
def test_the_best_size_has_the_lowest_loss_at_its_compute(law, flops):
    best = minimize_scalar(lambda n: law.loss(np.exp(n), flops / 6 / np.exp(n)), bracket=(10, 25), tol=1e-12)
    assert law.best_size(flops) == pytest.approx(np.exp(best.x), rel=1e-4)
    tokens = flops / 6 / law.best_size(flops)
    assert law.size_for(tokens) == pytest.approx(law.best_size(flops))


def test_chinchilla_is_about_as_large_as_its_refit_says():
    """Besiroglu et al. 2024 find that their law agrees with 70B parameters for the compute of Chinchilla."""
    assert 5e10 < BESIROGLU.best_size(5.76e23) < 1e11
    assert HOFFMANN.best_size(5.76e23) < 5e10


def test_more_text_helps_all_sizes_by_the_same():
    for size in (1e5, 1e9):
        gain = HOFFMANN.loss(size, 1e7) - HOFFMANN.loss(size, 2e7)
        assert gain == pytest.approx(HOFFMANN.token_gain(1e7, 2e7))


def test_intervals_of_the_bootstrap_contain_the_law_and_grow_with_the_noise():
    sizes, tokens, losses = grid(BESIROGLU)
    noise = np.random.default_rng(1).normal(0, 1, len(losses))
    widths = []
    for deviation in (0.0, 0.001, 0.01):
        laws = bootstrap(sizes, tokens, losses + deviation * noise, draws=60)
        predicted = [law.loss(4e6, 4e7) for law in laws]
        low, high = np.quantile(predicted, [0.025, 0.975])
        assert low - 1e-9 <= BESIROGLU.loss(4e6, 4e7) <= high + 1e-9
        widths.append(high - low)
    assert widths[0] < 1e-6 < widths[1] < widths[2]


def test_the_same_seed_draws_the_same_samples():
    runs = grid(HOFFMANN)
    assert bootstrap(*runs, draws=3, seed=1) == bootstrap(*runs, draws=3, seed=1)


@pytest.mark.parametrize("kept", [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]])
def test_too_few_runs_are_refused(kept):
    sizes, tokens, losses = grid(HOFFMANN)
    with pytest.raises(ValueError, match="a scaling law needs 6 runs of 3 sizes and 3 numbers of tokens"):
        fit(sizes[kept], tokens[kept], losses[kept])


def test_losses_must_be_finite():
    sizes, tokens, losses = grid(HOFFMANN)
    losses[3] = np.nan
    with pytest.raises(ValueError, match="losses finite"):
        fit(sizes, tokens, losses)


def test_given_exponents_are_kept_and_the_rest_is_least_squares():
    law = ScalingLaw(1.2, 20.0, 0.3, 60.0, 0.4)
    runs = [(n, d) for n in (1e5, 4e5, 2e6) for d in (1e6, 1e7, 4e7)]
    sizes, tokens = zip(*runs, strict=True)
    found = fit(sizes, tokens, [law.loss(n, d) for n, d in runs], exponents=(0.3, 0.4))
    assert (found.size_exponent, found.token_exponent) == (0.3, 0.4)
    assert (found.entropy, found.size_factor, found.token_factor) == pytest.approx((1.2, 20.0, 60.0))
    losses = np.random.default_rng(0).uniform(1, 3, len(runs))
    other = fit(sizes, tokens, losses, exponents=(0.3, 0.4))
    columns = np.stack([np.ones(len(runs)), np.power(sizes, -0.3), np.power(tokens, -0.4)], axis=1)
    best, _ = nnls(columns, losses)
    assert (other.entropy, other.size_factor, other.token_factor) == pytest.approx(tuple(best), abs=1e-6)
