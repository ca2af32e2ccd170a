"""An encoder that tells which of some labels a text has, and the numbers that such a model is judged by."""

from __future__ import annotations

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
    """The body of a language model, with a classification head in the place of its own (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, labels: int, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.config = config
        self.body = LanguageModel(config)
        self.body.head = nn.Identity()
        self.head = SequenceClassificationHead(config, labels, pooling)

    def forward(self, ids: Tensor, present: Tensor | None = None) -> Tensor:
        """ids (B, T) int64, `present` (B, T) bool where they are not padding, to logits (B, labels) float32."""
        return self.head(self.body(ids, present=present), present).float()


def build_classifier(
    config: ModelConfig, labels: int, seed: int, pooling: Pooling = "mean", pretrained: LanguageModel | None = None
) -> Classifier:
    """A float32 classifier on the CPU: a function of (config, seed) alone, but for its body where that is
    `pretrained`, a model of the same shape."""
    model = Classifier(config, labels, pooling)
    model.initialize(Initializer(config, torch.Generator().manual_seed(seed)))
    if pretrained is not None:
        weights = pretrained.state_dict()
        model.body.load_state_dict({name: weights[name] for name in model.body.state_dict()})
    return model


def macro_f1(targets: Tensor, predictions: Tensor) -> float:
    """The mean over labels of F1 = 2 TP / (2 TP + FP + FN), each label weighing the same however frequent it is.

    targets and predictions (N,) int64; the labels that occur in either.
    """
    labels = int(torch.cat((targets, predictions)).max()) + 1
    right = torch.bincount(targets[targets == predictions], minlength=labels).double()
    occurrences = torch.bincount(targets, minlength=labels) + torch.bincount(predictions, minlength=labels)
    there = occurrences > 0
    return (2.0 * right[there] / occurrences[there]).mean().item()


def most_confused(targets: Tensor, predictions: Tensor, most: int = 10) -> list[tuple[int, int, int]]:
    """(target, prediction, how often) of the most frequent mistakes, the most frequent first, ties by label."""
    wrong = targets != predictions
    pairs = torch.stack((targets[wrong], predictions[wrong]), dim=1)
    if not len(pairs):
        return []
    distinct, counts = pairs.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:most]
    return [(*distinct[i].tolist(), int(counts[i])) for i in order]
