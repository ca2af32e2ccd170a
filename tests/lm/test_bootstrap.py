"""Bootstrap intervals cover the truth as often as they say, and agree with the delta method."""

import math

import numpy as np
import pytest

from lm.metrics.intervals import DRAWS, block_length, circular_blocks, interval, resampled_sums

TRUE_RATIO = 0.8


def documents(generator, count):
    """Return the nats and bytes of documents whose lengths and losses vary, and whose true ratio is TRUE_RATIO."""
    sizes = generator.lognormal(7, 0.6, count)
    return sizes * TRUE_RATIO * generator.gamma(25, 1 / 25, count), sizes


def delta_method_error(numerators, denominators):
    """Return the standard error of a ratio of sums from its first-order expansion (Cochran 1977, equation 6.13)."""
    ratio, count = numerators.sum() / denominators.sum(), len(numerators)
    residuals = numerators - ratio * denominators
    return math.sqrt(count / (count - 1) * (residuals**2).sum()) / denominators.sum()


def ratio_interval(numerators, denominators, draws=DRAWS, seed=0):
    """Return the 95 % interval of sum(numerators) / sum(denominators) over documents."""
    drawn = resampled_sums(np.stack([numerators, denominators], axis=1), draws=draws, seed=seed)
    return interval(drawn[:, 0] / drawn[:, 1])


def test_95_of_100_intervals_contain_the_true_ratio():
    generator = np.random.default_rng(1)
    inside = 0
    for seed in range(1000):
        low, high = ratio_interval(*documents(generator, 200), draws=1000, seed=seed)
        inside += low <= TRUE_RATIO <= high
    assert inside / 1000 == pytest.approx(0.95, abs=0.015)


def test_an_interval_agrees_with_the_delta_method():
    nats, sizes = documents(np.random.default_rng(2), 400)
    low, high = ratio_interval(nats, sizes, draws=10_000)
    assert (high - low) / 2 == pytest.approx(1.96 * delta_method_error(nats, sizes), rel=0.03)
    assert (low + high) / 2 == pytest.approx(nats.sum() / sizes.sum(), rel=2e-3)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_a_model_does_not_differ_from_itself(count):
    nats, sizes = documents(np.random.default_rng(3), count)
    drawn = resampled_sums(np.stack([nats, sizes, nats, sizes], axis=1))
    assert (drawn[:, 0] / drawn[:, 1] == drawn[:, 2] / drawn[:, 3]).all()


def test_a_paired_interval_is_narrower_than_the_intervals_of_both_models():
    generator = np.random.default_rng(4)
    nats, sizes = documents(generator, 200)
    better = nats - sizes * generator.normal(0.01, 0.02, 200)
    drawn = resampled_sums(np.stack([nats, better, sizes], axis=1))
    low, high = interval((drawn[:, 0] - drawn[:, 1]) / drawn[:, 2])
    assert 0 < low < 0.01 < high
    alone = ratio_interval(nats, sizes)
    assert (high - low) < (alone[1] - alone[0]) / 4


def test_samples_are_those_of_a_loop_and_repeat_with_the_seed():
    sums = np.random.default_rng(5).random((6, 2))
    drawn = resampled_sums(sums, picks=4, draws=50, seed=9)
    generator = np.random.default_rng(9)
    expected = [sums[generator.integers(6, size=4)].sum(axis=0) for _ in range(50)]
    np.testing.assert_allclose(drawn, expected)
    assert (resampled_sums(sums, picks=4, draws=50, seed=9) == drawn).all()
    assert (resampled_sums(sums, picks=4, draws=50, seed=8) != drawn).any()


def test_blocks_cover_every_segment_equally_often():
    sums = np.arange(10.0).reshape(5, 2)
    blocks = circular_blocks(sums, 3)
    assert blocks.tolist() == [(sums[[i, (i + 1) % 5, (i + 2) % 5]].sum(axis=0)).tolist() for i in range(5)]
    assert circular_blocks(sums, 1).tolist() == sums.tolist()


@pytest.mark.parametrize(("segments", "length"), [(1, 1), (2, 1), (6, 3), (30, 4), (1000, 10), (8000, 20)])
def test_a_block_has_several_segments_if_there_are_enough(segments, length):
    assert block_length(segments) == length


def test_intervals_of_a_correlated_series_need_blocks():
    """The moving average of noise has a known error of its mean; single segments give less than half of it."""
    noise = np.random.default_rng(6).normal(size=4015)
    series = np.convolve(noise, np.ones(16), "valid")[:, None]
    count, length = len(series), 64
    drawn = resampled_sums(circular_blocks(series, length), picks=math.ceil(count / length))
    blocks = (drawn / (math.ceil(count / length) * length)).std()
    single = (resampled_sums(series) / count).std()
    true = 16 / math.sqrt(count)
    assert blocks == pytest.approx(true, rel=0.25)
    assert single < true / 2


def test_no_documents_are_an_error():
    with pytest.raises(ValueError, match="no unit to draw from"):
        resampled_sums(np.empty((0, 2)))
