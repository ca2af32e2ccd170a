"""Heads of language models: hidden states to logits and loss."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.initialization import Initializer
from lm.layers import Component, Embedding, Linear, build_norm
from lm.logit_loss import FusedScore, Variant, fused_score
from lm.losses import linear_cross_entropy
from lm.warn import warn


@cache
def gpu_score(device: torch.device) -> FusedScore | None:
    """Return the Triton kernel of `fused_score` if it runs on this device, else None.

    Triton comes with PyTorch for NVIDIA and AMD GPUs on Linux, and needs a C compiler.
    """
    if device.type != "cuda":
        return None
    try:
        from lm.logit_loss_triton import triton_score

        logits = torch.zeros(1, 16, device=device)
        triton_score(logits, None, torch.zeros(1, dtype=torch.int64, device=device), 16, Variant(), True)
    except (ImportError, RuntimeError) as error:
        warn(f"the loss has no kernel of its own on this GPU, and is slower: {error}")
        return None
    return triton_score


class LanguageHead(Component):
    """The output matrix, soft cap and loss that both language heads share.

    Calling a head transforms hidden states (..., width) for the output matrix; shape and dtype stay.
    """

    component = "head"
    selected_only: ClassVar[bool]
    """Whether training predicts only the positions that the objective selects."""

    def __init__(self, config: ModelConfig, embedding: Embedding, bias: bool) -> None:
        """`embedding` holds the output matrix if `config.tied_head`; `bias`: whether each entry has one."""
        super().__init__()
        self.fused: FusedScore | None = None
        self._embedding = (embedding,)  # a tuple hides the module: the matrix is counted and saved once
        self.soft_cap = config.soft_cap
        self.scale = config.width**-0.5 if config.scaled_head else 1.0
        self.weight = None if config.tied_head else nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.bias = nn.Parameter(torch.empty(config.vocab_size)) if bias else None

    @property
    def output_weight(self) -> Tensor:
        """The output matrix (V, width), float32."""
        return self._embedding[0].weight if self.weight is None else self.weight

    def compile_loss(self) -> None:
        """Let `loss` compute the passes over the logits with torch.compile, which the first calls take seconds for."""
        self.fused = torch.compile(fused_score)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., width) to unnormalised log-probabilities (..., V), in the dtype of hidden."""
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return self.cap(F.linear(self(hidden), self.output_weight.to(hidden.dtype), bias))

    def scaled(self, hidden: Tensor) -> Tensor:
        """Return hidden states divided by the root of the width if `config.scaled_head`, as in T5."""
        return hidden if self.scale == 1.0 else hidden * self.scale

    def cap(self, logits: Tensor) -> Tensor:
        """Return soft_cap * tanh(logits / soft_cap); a cap of 0 changes nothing."""
        return self.soft_cap * torch.tanh(logits / self.soft_cap) if self.soft_cap else logits

    def loss(
        self, rows: Tensor, targets: Tensor, weights: Tensor | None, label_smoothing: float, z_loss: float
    ) -> Tensor:
        """As `LanguageModel.loss`."""
        return linear_cross_entropy(
            self(rows),
            self.output_weight,
            targets,
            self.bias,
            weights,
            soft_cap=self.soft_cap,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            fused=self._score(rows),
        )

    def _score(self, rows: Tensor) -> FusedScore | None:
        """Return the fastest score of logits of these rows, other than eager operations."""
        kernel = None
        if rows.dtype != torch.float64 and not torch.compiler.is_compiling():
            kernel = gpu_score(rows.device)
        return kernel or self.fused

    def reset_parameters(self, initializer: Initializer) -> None:
        if self.weight is not None:
            initializer.table(self.weight)
        if self.bias is not None:
            self.bias.zero_()

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of predicting `rows` positions."""
        return (6 if self.output_weight.requires_grad else 4) * self.output_weight.numel() * rows


class NextTokenHead(LanguageHead):
    """Passes hidden states on, unchanged or scaled."""

    selected_only = False

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__(config, embedding, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scaled(hidden)


class MaskedTokenHead(LanguageHead):
    """BERT's transform: dense, exact GELU and norm, then a bias per entry (Devlin et al. 2019, released code)."""

    selected_only = True

    def __init__(self, config: ModelConfig, embedding: Embedding) -> None:
        super().__init__(config, embedding, bias=True)
        self.dense = Linear(config.width, config.width, config.bias)
        self.norm = build_norm(config)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scaled(self.norm(F.gelu(self.dense(hidden))))

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of predicting `rows` positions."""
        return super().flops(rows) + self.dense.flops(rows)
