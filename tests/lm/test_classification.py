"""Metrics of classifiers, recomputed from their definitions, and naive Bayes by hand."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm.classification import macro_f1, most_confused

from lm.metrics.baselines import SMOOTHINGS, NaiveBayes

PREDICTIONS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60)


@given(PREDICTIONS)
def test_macro_f1_is_the_mean_harmonic_mean_of_precision_and_recall(pairs):
    values = []
    for label in {label for pair in pairs for label in pair}:
        true = sum(target == predicted == label for target, predicted in pairs)
        predictions = sum(predicted == label for _, predicted in pairs)
        targets = sum(target == label for target, _ in pairs)
        precision, recall = true / max(1, predictions), true / max(1, targets)
        values.append(2 * precision * recall / (precision + recall) if true else 0.0)
    targets, predictions = torch.tensor(pairs).T
    assert macro_f1(targets, predictions) == pytest.approx(sum(values) / len(values))


@given(PREDICTIONS)
def test_confusions_are_the_most_frequent_mistakes(pairs):
    mistakes = Counter(pair for pair in pairs if pair[0] != pair[1])
    found = most_confused(*torch.tensor(pairs).T, most=3)
    assert all(mistakes[target, predicted] == times for target, predicted, times in found)
    assert [times for *_, times in found] == [times for _, times in mistakes.most_common(3)]


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
