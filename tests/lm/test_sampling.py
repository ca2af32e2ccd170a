"""Samplers as pure functions: what they keep, and that draws follow the distribution."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm import sampling

FEW = settings(max_examples=50, deadline=None)
rows = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=20).map(torch.tensor)


def draws(logits, count, **options):
    ids = sampling.choose(logits.expand(count, -1), generator=torch.Generator().manual_seed(0), **options)
    return torch.bincount(ids, minlength=len(logits)).tolist()


def test_draws_follow_the_softmax_at_each_temperature():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    for value in (0.5, 1.0, 3.0):
        expected = 20_000 * torch.softmax(logits / value, dim=-1).double()
        expected = expected / expected.sum() * 20_000
        assert stats.chisquare(draws(logits, 20_000, temperature_value=value), expected).pvalue > 1e-3


def test_draws_from_the_top_are_renormalised():
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log()
    for options in ({"k": 2}, {"p": 0.5}, {"p": 0.7}):
        observed = draws(logits, 20_000, **options)
        assert observed[0] == observed[3] == 0
        assert stats.chisquare(observed[1:3], [20_000 * 4 / 7, 20_000 * 3 / 7]).pvalue > 1e-3


def test_the_nucleus_is_the_smallest_set_that_reaches_p():
    logits = torch.tensor([[0.125, 0.5, 0.25, 0.125]]).log()
    for p, kept in ((0.3, [1]), (0.5, [1]), (0.51, [1, 2]), (0.75, [1, 2]), (0.8, [0, 1, 2]), (1.0, [0, 1, 2, 3])):
        assert sampling.top_p(logits, p).isfinite()[0].nonzero().flatten().tolist() == kept


@FEW
@given(rows, st.integers(1, 25))
def test_top_k_keeps_the_k_largest_as_they_are(logits, k):
    kept = sampling.top_k(logits, k)
    edge = logits.sort(descending=True).values[min(k, len(logits)) - 1]
    assert torch.equal(kept, torch.where(logits >= edge, logits, -math.inf))


@FEW
@given(rows, st.floats(0.01, 1.0))
def test_the_nucleus_always_holds_the_likeliest_and_reaches_p(logits, p):
    kept = sampling.top_p(logits, p).isfinite()
    assert kept[logits.argmax()]
    assert torch.softmax(logits, dim=-1)[kept].sum() >= p - 1e-5
    assert logits[kept].min() >= logits[~kept].max() if (~kept).any() else True


@FEW
@given(rows)
def test_temperature_zero_and_top_one_are_greedy(logits):
    best = logits.argmax()
    assert sampling.choose(logits[None], temperature_value=0.0)[0] == best
    assert logits[sampling.choose(logits[None], k=1)[0]] == logits[best]


@pytest.mark.parametrize(
    ("filtered", "words"),
    [
        (lambda x: sampling.temperature(x, -1.0), "temperature is -1.0"),
        (lambda x: sampling.top_k(x, 0), "top_k is 0"),
        (lambda x: sampling.top_p(x, 0.0), "top_p is 0.0"),
        (lambda x: sampling.top_p(x, 1.5), "top_p is 1.5"),
    ],
)
def test_settings_that_keep_nothing_are_refused(filtered, words):
    with pytest.raises(ValueError, match=words):
        filtered(torch.zeros(3))
