"""Filters keep the right entries, and draws follow the distribution."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm.decoding import sampling

FEW = settings(max_examples=50, deadline=None)
rows = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=20).map(torch.tensor)


def draws(logits, count, **options):
    ids = sampling.sample(logits.expand(count, -1), generator=torch.Generator().manual_seed(0), **options)
    return torch.bincount(ids, minlength=len(logits)).tolist()


def test_draws_follow_the_softmax_at_each_temperature():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    for value in (0.5, 1.0, 3.0):
        expected = 20_000 * torch.softmax(logits / value, dim=-1).double()
        expected = expected / expected.sum() * 20_000
        assert stats.chisquare(draws(logits, 20_000, temperature=value), expected).pvalue > 1e-3


def test_filtered_draws_are_renormalised():
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log()
    for options in ({"top_k": 2}, {"top_p": 0.5}, {"top_p": 0.7}, {"min_p": 0.6}):
        observed = draws(logits, 20_000, **options)
        assert observed[0] == observed[3] == 0
        assert stats.chisquare(observed[1:3], [20_000 * 4 / 7, 20_000 * 3 / 7]).pvalue > 1e-3


def test_the_nucleus_is_the_smallest_set_that_reaches_p():
    logits = torch.tensor([[0.125, 0.5, 0.25, 0.125]]).log()
    for p, kept in ((0.3, [1]), (0.5, [1]), (0.51, [1, 2]), (0.75, [1, 2]), (0.8, [0, 1, 2]), (1.0, [0, 1, 2, 3])):
        assert sampling.keep_top_p(logits, p).isfinite()[0].nonzero().flatten().tolist() == kept


@FEW
@given(rows, st.integers(1, 25))
def test_top_k_keeps_the_k_largest_unchanged(logits, k):
    kept = sampling.keep_top_k(logits, k)
    edge = logits.sort(descending=True).values[min(k, len(logits)) - 1]
    assert torch.equal(kept, torch.where(logits >= edge, logits, -math.inf))


@FEW
@given(rows, st.floats(0.01, 1.0))
def test_the_nucleus_contains_the_likeliest_and_reaches_p(logits, p):
    kept = sampling.keep_top_p(logits, p).isfinite()
    assert kept[logits.argmax()]
    assert torch.softmax(logits, dim=-1)[kept].sum() >= p - 1e-5
    assert logits[kept].min() >= logits[~kept].max() if (~kept).any() else True


@FEW
@given(rows, st.floats(0.0, 1.0))
def test_min_p_keeps_tokens_of_enough_probability_relative_to_the_likeliest(logits, p):
    kept = sampling.keep_min_p(logits, p).isfinite()
    shares = torch.softmax(logits.double(), dim=-1)
    shares = shares / shares.max()
    assert kept[logits.argmax()]
    assert (shares[kept] >= p - 1e-5).all()
    assert (shares[~kept] <= p + 1e-5).all()


def test_all_filters_together_keep_the_same_entries_as_transformers():
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(12, generator=torch.Generator().manual_seed(5)) * 2
    left = logits[None]
    for warp in (TemperatureLogitsWarper(1.5), TopKLogitsWarper(9), TopPLogitsWarper(0.95), MinPLogitsWarper(0.1)):
        left = warp(None, left)
    expected = torch.softmax(left[0].double(), dim=-1)
    observed = draws(logits, 20_000, temperature=1.5, top_k=9, top_p=0.95, min_p=0.1)
    kept = expected > 0
    assert 2 < kept.sum() < 9
    assert sum(count for count, keep in zip(observed, kept.tolist(), strict=True) if not keep) == 0
    assert stats.chisquare(torch.tensor(observed)[kept], expected[kept] * 20_000).pvalue > 1e-3


@FEW
@given(st.integers(0, 2**32), st.floats(0.5, 3.0))
def test_repetition_is_penalised_as_transformers_does(seed, penalty):
    from transformers import RepetitionPenaltyLogitsProcessor

    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 11, generator=generator)
    ids = torch.randint(0, 11, (3, 7), generator=generator)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits)
    torch.testing.assert_close(sampling.penalize_repetition(logits, ids, penalty), expected)


def test_padding_is_not_penalised():
    logits = torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, -1.0]])
    ids = torch.tensor([[0, 0, 2], [0, 0, 1]])
    present = torch.tensor([[False, False, True], [False, True, True]])
    penalised = sampling.penalize_repetition(logits, ids, 2.0, present)
    assert penalised.tolist() == [[1.0, 1.0, -2.0], [0.5, 0.5, -1.0]]


def test_a_nucleus_of_probability_one_keeps_all_of_a_large_vocabulary():
    logits = 3 * torch.randn(50_257, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sampling.keep_top_p(logits, 1.0), logits)


@pytest.mark.parametrize("shape", [(7,), (2, 7), (2, 3, 7)])
def test_samplers_accept_any_leading_axes(shape):
    logits = torch.full(shape, -1e4)
    logits[..., 4] = 0.0
    for ids in (sampling.draw(logits), sampling.greedy(logits), sampling.sample(logits, top_k=3, top_p=0.9)):
        assert ids.shape == shape[:-1]
        assert (ids == 4).all()


@FEW
@given(rows)
def test_temperature_zero_and_top_one_are_greedy(logits):
    best = logits.argmax()
    assert sampling.sample(logits[None], temperature=0.0)[0] == best
    assert logits[sampling.sample(logits[None], top_k=1)[0]] == logits[best]


@pytest.mark.parametrize("least", [5e-324, 1e-45, 1e-38, 1e-20])
@pytest.mark.parametrize("option", ["temperature", "top_p"])
def test_the_smallest_settings_are_greedy(least, option):
    logits = torch.tensor([[700.0, -3.0, 699.0, 0.0], [0.0, 0.5, -700.0, 0.25]])
    assert sampling.sample(logits, **{option: least}).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("filtered", "words"),
    [
        (lambda x: sampling.apply_temperature(x, -1.0), "temperature is -1.0"),
        (lambda x: sampling.keep_top_k(x, 0), "top_k is 0"),
        (lambda x: sampling.keep_top_p(x, 0.0), "top_p is 0.0"),
        (lambda x: sampling.keep_top_p(x, 1.5), "top_p is 1.5"),
        (lambda x: sampling.keep_min_p(x, 1.5), "min_p is 1.5"),
        (lambda x: sampling.penalize_repetition(x[None], torch.tensor([[0]]), 0.0), "repetition_penalty is 0.0"),
    ],
)
def test_invalid_settings_are_refused(filtered, words):
    with pytest.raises(ValueError, match=words):
        filtered(torch.zeros(3))
