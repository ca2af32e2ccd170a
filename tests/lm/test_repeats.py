"""Intervals of repeated runs: Student's t with the pooled variance, against scipy and closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lm.metrics.intervals import Repeats, t_quantile

VALUES = st.lists(st.floats(-100, 100), min_size=1, max_size=6)


@given(st.integers(1, 400), st.floats(0.01, 0.999))
def test_quantiles_of_students_t_are_those_of_scipy(freedom, level):
    assert t_quantile(freedom, level) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9, abs=1e-12)


def test_one_and_two_degrees_of_freedom_have_a_closed_form():
    assert t_quantile(1) == pytest.approx(math.tan(0.95 * math.pi / 2))
    assert t_quantile(2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)))


def test_the_interval_of_one_group_is_the_textbook_interval():
    values = [1.02, 1.05, 0.99]
    repeats = Repeats({"a": values})
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert repeats.means["a"] - repeats.margin("a") == pytest.approx(low)
    assert repeats.means["a"] + repeats.margin("a") == pytest.approx(high)


def test_the_difference_of_two_groups_is_students_test():
    one, other = [1.02, 1.05, 0.99], [1.2, 1.1, 1.15, 1.18]
    repeats = Repeats({"one": one, "other": other})
    interval = stats.ttest_ind(one, other).confidence_interval(0.95)
    margin = repeats.margin_of_difference("one", "other")
    difference = repeats.means["one"] - repeats.means["other"]
    assert (difference - margin, difference + margin) == pytest.approx((interval.low, interval.high))


@given(st.dictionaries(st.integers(), VALUES, min_size=1, max_size=6))
def test_the_variance_is_the_residual_of_an_analysis_of_variance(groups):
    repeats = Repeats(groups)
    freedom = sum(map(len, groups.values())) - len(groups)
    assert repeats.freedom == freedom
    if freedom:
        pooled = sum(np.var(values) * len(values) for values in groups.values()) / freedom
        assert repeats.deviation**2 == pytest.approx(pooled, abs=1e-9)
    else:
        assert repeats.margin(next(iter(groups))) is None


def test_groups_within_the_interval_of_the_difference_are_not_significantly_worse_than_the_lowest():
    repeats = Repeats({512: [1.0, 1.02], 1024: [1.01, 1.03], 2048: [1.5, 1.52]})
    assert repeats.best() == 512
    assert repeats.not_significantly_worse() == [512, 1024]


def test_without_repeats_nothing_is_known_about_differences():
    repeats = Repeats({512: [1.0], 1024: [1.0001]})
    assert repeats.best() == 512
    assert repeats.not_significantly_worse() is None
    assert repeats.margin(512) is None
    assert repeats.margin_of_difference(512, 1024) is None
