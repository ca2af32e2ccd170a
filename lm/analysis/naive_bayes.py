"""Naive Bayes on token counts: the baseline that a text classifier should beat. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SMOOTHINGS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


class NaiveBayes:
    """Multinomial naive Bayes (Manning, Raghavan and Schütze 2008, equations 13.3 and 13.7).

    Label y has n(y) texts, in which token w occurs c(w, y) times:

        ln p(y | text) = ln n(y) + sum over tokens w of ln (c(w, y) + a) / (sum_v c(v, y) + a V) + constant.

    The book has a = 1. Here a is chosen from `SMOOTHINGS` by leave-one-out accuracy on the training texts.
    """

    def __init__(self, counts: np.ndarray, texts: np.ndarray, smoothing: float) -> None:
        """counts (L, V): occurrences of each token in the texts of each label; texts (L,): texts of each label."""
        self.smoothing = smoothing
        self._log_prior = _log(texts)
        self._log_likelihood = np.log(counts + smoothing) - np.log(_totals(counts, smoothing))

    @classmethod
    def fit(cls, texts: Sequence[np.ndarray], labels: np.ndarray, label_count: int, vocab_size: int) -> NaiveBayes:
        """Fit to the ids of `texts`, each (T,), with `labels` (N,) in [0, label_count)."""
        counts = np.zeros((label_count, vocab_size))
        bags = [np.unique(text, return_counts=True) for text in texts]
        for (tokens, times), label in zip(bags, labels, strict=True):
            counts[label, tokens] += times
        sizes = np.bincount(labels, minlength=label_count)
        correct = [_leave_one_out_correct(counts, sizes, bags, labels, smoothing) for smoothing in SMOOTHINGS]
        return cls(counts, sizes, SMOOTHINGS[int(np.argmax(correct))])

    def log_posteriors(self, texts: Sequence[np.ndarray]) -> Floats:
        """Return ln p(label | text) in nats, (N, L)."""
        scores = np.stack([self._log_prior + self._log_likelihood[:, text].sum(axis=1) for text in texts])
        shifted: Floats = scores - scores.max(axis=1, keepdims=True)
        log_sum: Floats = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return shifted - log_sum


def _leave_one_out_correct(
    counts: np.ndarray,
    sizes: np.ndarray,
    bags: Sequence[tuple[np.ndarray, np.ndarray]],
    labels: np.ndarray,
    smoothing: float,
) -> int:
    """Return the number of texts that the counts of all other texts label correctly."""
    log_counts, totals, log_prior = np.log(counts + smoothing), _totals(counts, smoothing)[:, 0], _log(sizes)
    correct = 0
    for (tokens, times), label in zip(bags, labels, strict=True):
        length = times.sum()
        scores = log_prior + log_counts[:, tokens] @ times - length * np.log(totals)
        likelihood = np.log(counts[label, tokens] - times + smoothing) @ times
        scores[label] = _log(sizes[label] - 1) + likelihood - length * np.log(totals[label] - length)
        correct += int(scores.argmax()) == label
    return correct


def _totals(counts: np.ndarray, smoothing: float) -> Floats:
    totals: Floats = counts.sum(axis=1, keepdims=True) + smoothing * counts.shape[1]
    return totals


def _log(sizes: np.ndarray) -> Floats:
    """Return ln sizes, minus infinity for 0: a label without texts is never chosen."""
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(sizes)
    return logs
