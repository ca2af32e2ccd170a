"""Metrics of labels and numbers beside scikit-learn and scipy, and naive Bayes by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from sklearn import metrics

from lm.metrics import labels
from lm.metrics.baselines import SMOOTHINGS, NaiveBayes

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60)
NUMBERS = arrays(np.float64, 12, elements=st.integers(-3, 3).map(float))


@given(PAIRS)
def test_scores_of_single_labels_equal_those_of_scikit_learn(pairs):
    targets, said = np.array(pairs).T
    assert labels.macro_f1(targets, said, 6) == pytest.approx(metrics.f1_score(targets, said, average="macro"))
    assert labels.matthews(targets, said, 6) == pytest.approx(metrics.matthews_corrcoef(targets, said))


@given(st.integers(1, 20), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_scores_of_several_labels_equal_those_of_scikit_learn(texts, count, seed):
    targets, said = np.random.default_rng(seed).random((2, texts, count)) < 0.4
    micro = metrics.f1_score(targets, said, average="micro", zero_division=0)
    assert labels.micro_f1(targets, said) == pytest.approx(micro)
    occurs = (targets | said).any(axis=0)
    each = metrics.f1_score(targets, said, average=None, zero_division=0)
    expected = each[occurs].mean() if occurs.any() else 0.0
    assert labels.macro_f1(targets, said, count) == pytest.approx(expected)


@given(PAIRS)
def test_confusions_are_the_most_frequent_mistakes(pairs):
    mistakes = Counter(pair for pair in pairs if pair[0] != pair[1])
    confused = labels.most_confused(*np.array(pairs).T, most=3)
    assert all(mistakes[target, predicted] == times for target, predicted, times in confused)
    assert [times for *_, times in confused] == [times for _, times in mistakes.most_common(3)]


@given(st.integers(1, 3000), st.data())
def test_the_interval_of_a_share_is_wilsons(texts, data):
    right = data.draw(st.integers(0, texts))
    expected = stats.binomtest(right, texts).proportion_ci(0.95, method="wilson")
    assert labels.share_interval(right / texts, texts) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(NUMBERS, NUMBERS)
def test_correlations_equal_those_of_scipy_and_a_constant_has_none(x, y):
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert labels.pearson(x, y) is None and labels.spearman(x, y) is None
        return
    assert labels.pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert labels.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_calibration_is_the_gap_between_confidence_and_accuracy():
    confidences = np.array([0.61, 0.62, 0.95, 0.96, 1.0])
    correct = np.array([True, False, True, True, False])
    gaps = abs(1 - 0.61 - 0.62), abs(3 - 1 - 0.95 - 0.96 - 1.0)
    assert labels.calibration_error(confidences, correct) == pytest.approx(sum(gaps) / 5)


def posteriors(train, labels, text, label_count, vocab_size, smoothing):
    """Return p(label | text) by counting in plain Python."""
    products = []
    for label in range(label_count):
        own = [t for t, y in zip(train, labels, strict=True) if y == label]
        counts = Counter(token for t in own for token in t)
        total = sum(counts.values()) + smoothing * vocab_size
        products.append(len(own) * math.prod((counts[token] + smoothing) / total for token in text))
    return [product / sum(products) for product in products]


TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=6, max_size=12)


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_naive_bayes_multiplies_smoothed_frequencies(texts, text):
    labels = [i % 3 for i in range(len(texts))]
    model = NaiveBayes.fit([np.array(t) for t in texts], np.array(labels), 3, 4)
    expected = posteriors(texts, labels, text, 3, 4, model.smoothing)
    np.testing.assert_allclose(np.exp(model.log_posteriors([np.array(text)]))[0], expected, rtol=1e-9)


@given(TEXTS)
def test_naive_bayes_smoothing_maximizes_leave_one_out_accuracy(texts):
    labels = [i % 2 for i in range(len(texts))]
    model = NaiveBayes.fit([np.array(t) for t in texts], np.array(labels), 2, 4)

    def lowest_and_highest(smoothing):
        """Return the leave-one-out number of correct labels, without and with ties."""
        low = high = 0
        for i, (text, label) in enumerate(zip(texts, labels, strict=True)):
            p = posteriors(texts[:i] + texts[i + 1 :], labels[:i] + labels[i + 1 :], text, 2, 4, smoothing)
            low += p[label] > p[1 - label] * (1 + 1e-9)
            high += p[label] > p[1 - label] * (1 - 1e-9)
        return low, high

    assert lowest_and_highest(model.smoothing)[1] >= max(lowest_and_highest(s)[0] for s in SMOOTHINGS)


def test_a_label_without_texts_is_never_chosen():
    model = NaiveBayes.fit([np.array([0, 0]), np.array([1])], np.array([0, 2]), 3, 2)
    probabilities = np.exp(model.log_posteriors([np.array([0]), np.array([1])]))
    assert (probabilities[:, 1] == 0).all()
    assert probabilities.argmax(axis=1).tolist() == [0, 2]
