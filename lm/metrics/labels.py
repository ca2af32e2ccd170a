"""Metrics of labels and numbers that a model predicts, in numpy: float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

Array = np.ndarray
BINS = 15  # of the calibration error, as in `lm.metrics.predictions`


def log_softmax(logits: Array) -> Array:
    """Return ln p, float64, along the last axis of logits."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def f1_scores(targets: Array, predictions: Array, labels: int) -> Array:
    """Return F1 = 2 TP / (2 TP + FP + FN) of each label, (labels,); nan for a label in neither.

    targets and predictions (N,) int64, or (N, labels) bool where each text may have several labels.
    """
    if targets.ndim == 1:
        targets, predictions = (np.arange(labels) == given[:, None] for given in (targets, predictions))
    correct = (targets & predictions).sum(axis=0)
    occurrences = targets.sum(axis=0) + predictions.sum(axis=0)
    with np.errstate(invalid="ignore"):
        scores: Array = 2 * correct / occurrences
    return scores


def macro_f1(targets: Array, predictions: Array, labels: int) -> float:
    """Return the unweighted mean of `f1_scores` over the labels in targets or predictions; 0 if there are none."""
    scores = f1_scores(targets, predictions, labels)
    return float(np.nanmean(scores)) if np.isfinite(scores).any() else 0.0


def micro_f1(targets: Array, predictions: Array) -> float:
    """Return F1 over all pairs of a text and a label, (N, labels) bool; 0 if there are none."""
    occurrences = targets.sum() + predictions.sum()
    return float(2 * (targets & predictions).sum() / occurrences) if occurrences else 0.0


def matthews(targets: Array, predictions: Array, labels: int) -> float:
    """Return Matthews' correlation of targets and predictions (N,) int64 (Gorodkin 2004, equation 8).

    0 if all targets, or all predictions, are one label.
    """
    n, correct = len(targets), int((targets == predictions).sum())
    true, said = np.bincount(targets, minlength=labels), np.bincount(predictions, minlength=labels)
    covariance = n * correct - float(true @ said)
    spread = (n * n - float(said @ said)) * (n * n - float(true @ true))
    return covariance / math.sqrt(spread) if spread else 0.0


def calibration_error(confidences: Array, correct: Array) -> float:
    """Return the expected gap between confidence and accuracy over BINS equal bins of confidence (Guo et al. 2017)."""
    bins = np.minimum((confidences * BINS).astype(np.int64), BINS - 1)
    sums = np.bincount(bins, correct - confidences, minlength=BINS)
    return float(np.abs(sums).sum() / max(1, len(confidences)))


def by_label(labels: Sequence[object], probabilities: Array) -> dict[str, float]:
    """Return probabilities (L,) by label, the highest first."""
    order = np.argsort(-probabilities, kind="stable").tolist()
    return {str(labels[i]): float(probabilities[i]) for i in order}


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` cases (Wilson 1927).

    Unlike the standard error, its width is above 0 even if all cases are alike.
    """
    z = NormalDist().inv_cdf(0.975)
    centre = share + z * z / (2 * count)
    margin = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    scale = 1 + z * z / count
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def most_confused(targets: Array, predictions: Array, most: int = 10) -> list[tuple[int, int, int]]:
    """Return (target, prediction, count) of the most frequent mistakes, most frequent first, ties by label."""
    wrong = targets != predictions
    pairs, counts = np.unique(np.stack((targets[wrong], predictions[wrong]), axis=1), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return [(int(pairs[i, 0]), int(pairs[i, 1]), int(counts[i])) for i in order]


def pearson(targets: Array, predictions: Array) -> float | None:
    """Return Pearson's correlation (N,); None if one side is constant."""
    if any(np.ptp(values) == 0 for values in (targets, predictions)):  # their mean may be rounded
        return None
    x, y = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (targets, predictions))
    spread = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return float(x @ y) / spread if spread else None


def spearman(targets: Array, predictions: Array) -> float | None:
    """Return Spearman's correlation: Pearson's of the ranks; equal values have their mean rank."""
    return pearson(_ranks(targets), _ranks(predictions))


def _ranks(values: Array) -> Array:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
