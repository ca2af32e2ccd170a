"""Heads of tasks: from hidden states to logits of labels, spans or choices, and to the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.head_config import HeadConfig, HeadLayers, Pooling, usual_layers
from lm.layers import Component, Linear, build_norm

NEVER = -1e30  # logit of what is absent: a span in padding, a choice that an example lacks
ACTIVATIONS: dict[HeadLayers, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "gelu-norm": F.gelu}
"""Activation of the dense layer"""


class TaskHead(Component):
    """Outputs of every position: the layers that `HeadConfig.layers` names, dropout and an output matrix.

    Without layers it is the head of named entities (Devlin et al. 2019); ModernBERT has a dense layer, GELU and a norm
    (Warner et al. 2024). A trainer treats a head of a task like the head of a language model.
    """

    component = "head"
    selected_only = False

    def __init__(self, config: ModelConfig, head: HeadConfig, bias: bool = True) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.output = Linear(config.width, head.outputs, bias)
        layers = head.layers or usual_layers(config, head.kind)
        self.activation = ACTIVATIONS.get(layers)
        biased = config.bias or layers != "gelu-norm"
        self.dense = None if layers == "none" else Linear(config.width, config.width, biased)
        self.norm = build_norm(config) if layers == "gelu-norm" else None

    def forward(self, hidden: Tensor, present: Tensor | None = None) -> Tensor:
        """hidden (..., width) to outputs (..., outputs), in the dtype of hidden."""
        if self.dense is not None and self.activation is not None:
            hidden = self.activation(self.dense(hidden))
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.output(self.dropout(hidden))

    def compile_loss(self) -> None:
        """Do nothing: the loss of a few labels needs no compilation."""

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of `rows` positions."""
        return self.output.flops(rows) + (0.0 if self.dense is None else self.dense.flops(rows))


class TokenHead(TaskHead):
    """Label logits of every position (B, T, outputs)."""


class SpanHead(TaskHead):
    """Logits (B, 2, T) of the first and of the last position of a span (Devlin et al. 2019, 4.2)."""

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        super().__init__(config, replace(head, outputs=2))

    def forward(self, hidden: Tensor, present: Tensor | None = None) -> Tensor:
        """hidden (B, T, width) to logits (B, 2, T); `present` (B, T) bool is False at padding."""
        logits = super().forward(hidden).transpose(1, 2)
        return logits if present is None else logits.masked_fill(~present.unsqueeze(1), NEVER)


class SequenceHead(TaskHead):
    """Outputs of a sequence, from its first position (BERT's <|cls|>), the mean of all, or the last.

    BERT and T5 have a dense layer and tanh before dropout and output (Devlin et al. 2019); T5 also has a dropout before
    the dense layer. A decoder has an output matrix alone, without a bias, as in transformers.
    """

    def __init__(self, config: ModelConfig, head: HeadConfig) -> None:
        super().__init__(config, head, bias=config.architecture != "decoder")
        self.pooling = head.pooling
        self.apart = head.loss != "cross-entropy"
        """Whether each output has its own target"""
        self.first_dropout = nn.Dropout(config.dropout if config.architecture == "encoder-decoder" else 0.0)

    def forward(self, hidden: Tensor, present: Tensor | None = None) -> Tensor:
        """hidden (B, T, width) to (B, 1, outputs), or (B, outputs, 1); `present` (B, T) bool is False at padding."""
        pooled = self.first_dropout(pool(hidden, present, self.pooling))
        return super().forward(pooled).unsqueeze(-1 if self.apart else 1)


def pool(hidden: Tensor, present: Tensor | None, pooling: Pooling) -> Tensor:
    """Pool hidden (B, T, width) to (B, width): the first position, the last, or the mean over all positions.

    `present` (B, T) bool is False at padding. Padding is at the end.
    """
    if pooling == "first":
        return hidden[:, 0]
    if present is None:
        return hidden.mean(dim=1) if pooling == "mean" else hidden[:, -1]
    if pooling == "last":
        last = present.shape[1] - 1 - present.int().flip(1).argmax(dim=1)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    weights = present.to(hidden.dtype).unsqueeze(-1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


HEADS: dict[str, type[TaskHead]] = {"sequence": SequenceHead, "token": TokenHead, "span": SpanHead}


def task_loss(
    head: HeadConfig, outputs: Tensor, targets: Tensor, weights: Tensor | None, label_smoothing: float
) -> Tensor:
    """Return the sum over N targets of weight times loss, a float32 scalar: nats, or squared errors.

    outputs (N, L) float32; targets (N,) int64 for a cross-entropy, otherwise float32 with L = 1; `weights` (N,), 1 by
    default. In a cross-entropy, `label_smoothing` is the probability that is spread evenly over the labels. Absent
    labels get none of it.
    """
    if head.loss == "cross-entropy":
        balance = outputs.new_tensor(head.class_weights) if head.class_weights else None
        absent = head.kind in ("span", "choice")  # may be among the outputs
        smoothing = 0.0 if absent else label_smoothing
        losses = F.cross_entropy(outputs, targets, balance, reduction="none", label_smoothing=smoothing)
        if absent and label_smoothing:
            there = outputs > NEVER / 2
            nats = -outputs.log_softmax(dim=-1).where(there, 0.0).sum(dim=-1) / there.sum(dim=-1)
            losses = (1 - label_smoothing) * losses + label_smoothing * nats
    elif head.loss == "binary":
        losses = F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets, reduction="none")
    else:
        losses = (outputs.squeeze(-1) - targets).square()
    return losses.sum() if weights is None else losses @ weights
