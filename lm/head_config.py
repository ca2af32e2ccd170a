"""The configuration of the head of a task. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lm.config import ModelConfig

Pooling = Literal["first", "mean", "last"]
HeadKind = Literal["sequence", "token", "span", "choice"]
Loss = Literal["cross-entropy", "binary", "squared"]
HeadLayers = Literal["none", "tanh", "relu", "gelu-norm"]


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
    layers: HeadLayers | None = None
    """Layers before the output matrix: dense with its activation, and in gelu-norm a norm. None: `usual_layers`"""


def usual_layers(config: ModelConfig, kind: HeadKind, model_type: str = "") -> HeadLayers:
    """Return the layers that transformers has in a head for a model in the format `model_type`.

    An encoder with rotary positions and a norm of the embedding has the layers of ModernBERT, other encoders have
    the layers of BERT.
    """
    if config.architecture == "encoder" and config.positions == "rotary" and config.embedding_norm:
        return "gelu-norm"
    if config.architecture == "decoder" or kind in ("token", "span"):
        return "none"
    return "relu" if model_type == "distilbert" else "tanh"


def chosen_pooling(pooling: Pooling | Literal["auto"], architecture: str) -> Pooling:
    """Return the pooling of a head that reads a whole text. auto is mean for encoders, otherwise last."""
    if pooling != "auto":
        return pooling
    return "mean" if architecture == "encoder" else "last"
