"""What counts of tokens tell about a label: the baseline that a text classifier should beat. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SMOOTHINGS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


class NaiveBayes:
    """Multinomial naive Bayes (Manning, Raghavan and Schütze 2008, equations 13.3 and 13.7): with c(w, y) occurrences
    of token w in the texts of label y, and n(y) texts of it,

        ln p(y | text) = ln n(y) + sum over tokens w of ln (c(w, y) + a) / (sum_v c(v, y) + a V) + constant.

    The book's a is 1. Here it is the one of `SMOOTHINGS` under which most training texts would be labelled right,
    each by the counts of all others.
    """

    def __init__(self, counts: np.ndarray, texts: np.ndarray, smoothing: float) -> None:
        """counts (L, V): how often each token occurs in the texts of each label; texts (L,): how many there are."""
        self.smoothing = smoothing
        self._log_prior = _log(texts)
        self._log_likelihood = np.log(counts + smoothing) - np.log(_totals(counts, smoothing))

    @classmethod
    def fit(cls, texts: Sequence[np.ndarray], labels: np.ndarray, label_count: int, vocab_size: int) -> NaiveBayes:
        """Count the ids of `texts`, each (T,), whose labels are `labels` (N,) in [0, label_count)."""
        counts = np.zeros((label_count, vocab_size))
        bags = [np.unique(text, return_counts=True) for text in texts]
        for (tokens, times), label in zip(bags, labels, strict=True):
            counts[label, tokens] += times
        sizes = np.bincount(labels, minlength=label_count)
        right = [_right_when_left_out(counts, sizes, bags, labels, smoothing) for smoothing in SMOOTHINGS]
        return cls(counts, sizes, SMOOTHINGS[int(np.argmax(right))])

    def log_posteriors(self, texts: Sequence[np.ndarray]) -> np.ndarray:
        """ln p(label | text) in nats, (N, L) float64."""
        scores = np.stack([self._log_prior + self._log_likelihood[:, text].sum(axis=1) for text in texts])
        highest = scores.max(axis=1, keepdims=True)
        return scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))


def _right_when_left_out(
    counts: np.ndarray,
    sizes: np.ndarray,
    bags: Sequence[tuple[np.ndarray, np.ndarray]],
    labels: np.ndarray,
    smoothing: float,
) -> int:
    """How many texts are labelled right by counts without their own."""
    log_counts, totals, log_prior = np.log(counts + smoothing), _totals(counts, smoothing)[:, 0], _log(sizes)
    right = 0
    for (tokens, times), label in zip(bags, labels, strict=True):
        length = times.sum()
        scores = log_prior + log_counts[:, tokens] @ times - length * np.log(totals)
        own = np.log(counts[label, tokens] - times + smoothing) @ times - length * np.log(totals[label] - length)
        scores[label] = _log(sizes[label] - 1) + own
        right += int(scores.argmax()) == label
    return right


def _totals(counts: np.ndarray, smoothing: float) -> np.ndarray:
    return counts.sum(axis=1, keepdims=True) + smoothing * counts.shape[1]


def _log(sizes: np.ndarray) -> np.ndarray:
    """ln, minus infinity for 0: a label without texts is never chosen."""
    with np.errstate(divide="ignore"):
        return np.log(sizes)
