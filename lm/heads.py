"""What stands on a stack: from hidden states to what is predicted.

The two language heads give what the output matrix multiplies, so that a loss can apply it in chunks; the two
classification heads give logits.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.layers import Linear, build_norm


class NextTokenHead(nn.Module):
    """Hidden states (..., width) go to the output matrix as they are, or divided by the root of the width (T5)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = config.width**-0.5 if config.scaled_head else 1.0
        self.weight = None if config.tied_head else nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.bias = None

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden if self.scale == 1.0 else hidden * self.scale


class MaskedTokenHead(nn.Module):
    """BERT's transform of hidden states (..., width), which keeps their shape and dtype, before the output matrix:
    dense, exact GELU, norm; and a bias for each entry (Devlin et al. 2019, released code)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Linear(config.width, config.width, config.bias)
        self.norm = build_norm(config)
        self.weight = None if config.tied_head else nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if config.bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(hidden)))


class SequenceClassificationHead(nn.Module):
    """One label for a sequence, from its first position (BERT's <|cls|>) or the mean of all: dense, tanh, dropout,
    output (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, labels: int, pooling: Literal["first", "mean"] = "first") -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = Linear(config.width, config.width, bias=True)
        self.dropout = nn.Dropout(config.dropout)
        self.output = Linear(config.width, labels, bias=True)

    def forward(self, hidden: Tensor, present: Tensor | None = None) -> Tensor:
        """hidden (B, T, width), `present` (B, T) bool where positions are not padding, to logits (B, labels)."""
        return self.output(self.dropout(torch.tanh(self.dense(self._pooled(hidden, present)))))

    def _pooled(self, hidden: Tensor, present: Tensor | None) -> Tensor:
        if self.pooling == "first":
            return hidden[:, 0]
        if present is None:
            return hidden.mean(dim=1)
        weights = present.to(hidden.dtype).unsqueeze(-1)
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


class TokenClassificationHead(nn.Module):
    """A label for every position: dropout and an output matrix (Devlin et al. 2019, named entities)."""

    def __init__(self, config: ModelConfig, labels: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.output = Linear(config.width, labels, bias=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (B, T, width) to logits (B, T, labels)."""
        return self.output(self.dropout(hidden))
