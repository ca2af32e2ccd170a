"""The configuration of the head of a task. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["first", "mean", "last"]
HeadKind = Literal["sequence", "token", "span", "choice"]
Loss = Literal["cross-entropy", "binary", "squared"]


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """A head that replaces the head of a language model.

    | kind     | outputs of B examples of T tokens                                          |
    |----------|----------------------------------------------------------------------------|
    | sequence | (B, 1, outputs) logits of labels; (B, outputs, 1) if the loss is not a cross-entropy |
    | token    | (B, T, outputs) logits of the labels of each position                      |
    | span     | (B, 2, T) logits of the first and of the last position of the span         |
    | choice   | (B, 1, C) logits of the choices of examples (B, C, T)                      |
    """

    kind: HeadKind
    outputs: int = 1
    """Number of labels, or of numbers to predict"""
    pooling: Pooling = "mean"
    """Input of a sequence or choice head: the first position, the mean over all positions, or the last"""
    loss: Loss = "cross-entropy"
    """cross-entropy: one label of several. binary: each label by itself. squared: numbers."""
    class_weights: tuple[float, ...] = ()
    """Weight of each label in the loss; empty: 1"""


def usual_pooling(architecture: str) -> Pooling:
    """Return the default pooling of a head that reads a whole text: mean for encoders, otherwise last."""
    return "mean" if architecture == "encoder" else "last"
