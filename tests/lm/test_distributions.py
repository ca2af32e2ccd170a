"""Information measures of explicit distributions: worked values, and the identities between them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lm.text_statistics import distributions as d

# Cover & Thomas, example 2.2.1: rows are Y, columns are X.
COVER_THOMAS = np.array([[4, 2, 1, 1], [2, 4, 1, 1], [2, 2, 2, 2], [8, 0, 0, 0]]) / 32

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 7)


def draw(seed, *shape):
    """Return a random distribution of that shape, in which some outcomes are impossible."""
    generator = np.random.default_rng(seed)
    weights = generator.exponential(size=shape) * (generator.random(shape) < 0.7)
    weights.flat[generator.integers(weights.size)] += 1.0
    return weights / weights.sum()


def channel(seed, inputs, outputs):
    return np.random.default_rng(seed).dirichlet(np.full(outputs, 0.5), size=inputs)


def test_worked_values_of_cover_and_thomas():
    joint = COVER_THOMAS.T  # (X, Y)
    assert d.entropy(joint.sum(axis=1)) == pytest.approx(7 / 4)
    assert d.entropy(joint.sum(axis=0)) == pytest.approx(2)
    assert d.conditional_entropy(joint) == pytest.approx(13 / 8)  # H(Y | X)
    assert d.conditional_entropy(joint.T) == pytest.approx(11 / 8)  # H(X | Y)
    assert d.joint_entropy(joint) == pytest.approx(27 / 8)
    assert d.mutual_information(joint) == pytest.approx(3 / 8)


def test_worked_values_of_two_coins():
    # Cover & Thomas, example 2.3.1 with r = 1/2 and s = 1/4.
    p, q = [1 / 2, 1 / 2], [3 / 4, 1 / 4]
    assert d.kl(p, q) == pytest.approx(1 - math.log2(3) / 2)
    assert d.kl(q, p) == pytest.approx(3 / 4 * math.log2(3) - 1)
    assert d.cross_entropy(p, q) == pytest.approx(2 - math.log2(3) / 2)


@pytest.mark.parametrize(("base", "bit"), [(2, 1.0), (math.e, math.log(2)), (10, math.log10(2)), (4, 0.5)])
def test_any_base(base, bit):
    assert d.entropy([0.5, 0.5], base) == pytest.approx(bit)
    assert d.js([1, 0], [0, 1], base) == pytest.approx(bit)
    assert d.mutual_information([[0.5, 0], [0, 0.5]], base) == pytest.approx(bit)


def test_impossible_outcomes_cost_nothing_and_unforeseen_ones_cost_infinity():
    assert d.entropy([1.0, 0.0]) == 0
    assert d.kl([1.0, 0.0], [0.5, 0.5]) == 1
    assert d.kl([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert d.cross_entropy([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert d.js([1.0, 0.0, 0.0], [0.0, 0.5, 0.5]) == 1


@given(seeds, sizes)
def test_entropies_and_divergences_agree_with_scipy(seed, size):
    p, q = draw(seed, size), draw(seed + 1, size)
    assert d.entropy(p) == pytest.approx(stats.entropy(p, base=2), abs=1e-12)
    assert d.kl(p, q) == pytest.approx(stats.entropy(p, q, base=2), abs=1e-12)


@given(seeds, sizes, sizes)
def test_chain_rules(seed, rows, columns):
    joint = draw(seed, rows, columns)
    assert d.joint_entropy(joint) == pytest.approx(d.entropy(joint.sum(axis=1)) + d.conditional_entropy(joint))
    information = d.entropy(joint.sum(axis=0)) - d.conditional_entropy(joint)
    assert d.mutual_information(joint) == pytest.approx(information, abs=1e-12)


@given(seeds, sizes)
def test_cross_entropy_is_entropy_and_divergence(seed, size):
    p, q = draw(seed, size), draw(seed + 1, size)
    assert d.cross_entropy(p, q) == pytest.approx(d.entropy(p) + d.kl(p, q))
    assert d.kl(p, q) >= 0
    assert d.kl(p, p) == 0


@given(seeds, sizes, sizes)
def test_js_and_mutual_information_are_symmetric(seed, rows, columns):
    p, q, joint = draw(seed, rows), draw(seed + 1, rows), draw(seed, rows, columns)
    assert d.js(p, q) == pytest.approx(d.js(q, p))
    assert 0 <= d.js(p, q) <= 1 + 1e-12
    assert d.mutual_information(joint) == pytest.approx(d.mutual_information(joint.T), abs=1e-12)


@given(seeds, sizes, sizes, sizes)
def test_processing_data_does_not_add_information(seed, inputs, middles, outputs):
    joint = draw(seed, inputs, middles)  # of X and Y
    behind = channel(seed, middles, outputs)  # Y to Z
    assert d.mutual_information(joint @ behind) <= d.mutual_information(joint) + 1e-12
    p, q = draw(seed, middles), draw(seed + 1, middles)
    assert d.kl(p @ behind, q @ behind) <= d.kl(p, q) + 1e-12


@given(seeds, st.integers(2, 7))
def test_information_is_the_divergence_of_js_from_a_fair_coin(seed, size):
    p, q = draw(seed, size), draw(seed + 1, size)
    assert d.mutual_information(np.stack([p, q]) / 2) == pytest.approx(d.js(p, q), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: d.entropy([0.5, 0.6]), "sum to 1.1"),
        (lambda: d.entropy([1.5, -0.5]), "negative"),
        (lambda: d.entropy([math.nan, 1.0]), "not a number"),
        (lambda: d.kl([1.0], [0.5, 0.5]), "same outcomes"),
        (lambda: d.mutual_information([0.5, 0.5]), "matrix"),
        (lambda: d.entropy([0.5, 0.5], base=1), "base"),
    ],
)
def test_mistakes_are_value_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
