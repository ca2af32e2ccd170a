"""Text classification: an encoder with a classification head, and its metrics."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.heads import SequenceClassificationHead
from lm.initialization import Initializer
from lm.layers import Component
from lm.model import LanguageModel

Pooling = Literal["first", "mean"]


class Classifier(Component):
    """A language model whose head is replaced by a classification head (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, labels: int, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.config = config
        self.body = LanguageModel(config, seed=None)
        self.body.head = nn.Identity()  # type: ignore[assignment]  # the body gives hidden states only
        self.head = SequenceClassificationHead(config, labels, pooling)

    def forward(self, ids: Tensor, present: Tensor | None = None) -> Tensor:
        """ids (B, T) int64 to logits (B, labels) float32; `present` (B, T) bool is False at padding."""
        return self.head(self.body(ids, present=present), present).float()


def build_classifier(
    config: ModelConfig, labels: int, seed: int, pooling: Pooling = "mean", pretrained: LanguageModel | None = None
) -> Classifier:
    """Return a float32 classifier on the CPU, initialized from (config, seed) alone.

    The body is copied from `pretrained`, a model of the same shape, if given.
    """
    model = Classifier(config, labels, pooling)
    model.initialize(Initializer(config, torch.Generator().manual_seed(seed)))
    if pretrained is not None:
        weights = pretrained.state_dict()
        model.body.load_state_dict({name: weights[name] for name in model.body.state_dict()})
    return model


def macro_f1(targets: Tensor, predictions: Tensor) -> float:
    """Return the unweighted mean of F1 = 2 TP / (2 TP + FP + FN) over the labels in targets or predictions.

    targets and predictions (N,) int64.
    """
    labels = int(torch.cat((targets, predictions)).max()) + 1
    correct = torch.bincount(targets[targets == predictions], minlength=labels).double()
    occurrences = torch.bincount(targets, minlength=labels) + torch.bincount(predictions, minlength=labels)
    present = occurrences > 0
    return (2.0 * correct[present] / occurrences[present]).mean().item()


def accuracy_interval(accuracy: float, texts: int) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy on `texts` texts (Wilson 1927).

    Unlike the standard error, its width is above 0 even if every text is classified correctly.
    """
    z = NormalDist().inv_cdf(0.975)
    centre = accuracy + z * z / (2 * texts)
    margin = z * math.sqrt(accuracy * (1 - accuracy) / texts + (z / (2 * texts)) ** 2)
    scale = 1 + z * z / texts
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def most_confused(targets: Tensor, predictions: Tensor, most: int = 10) -> list[tuple[int, int, int]]:
    """Return (target, prediction, count) of the most frequent mistakes, most frequent first, ties by label."""
    wrong = targets != predictions
    pairs = torch.stack((targets[wrong], predictions[wrong]), dim=1)
    if not len(pairs):
        return []
    distinct, counts = pairs.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:most]
    return [(*distinct[i].tolist(), int(counts[i])) for i in order]
