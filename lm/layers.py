"""The layers with weights, and the one place that decides precision.

Weights are float32 masters; each layer casts them to the dtype of the activation that it is given, so the
dtype in which a model computes is decided once, where its embedding hands over: `LanguageModel.compute_dtype`.
Gradients come back through the cast in float32. Weights are allocated here, and filled by
`lm.initialization`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig


class Linear(nn.Module):
    """x (..., inputs) to x W^T + b (..., outputs), in the dtype of x."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), _cast(self.bias, x.dtype))


class Embedding(nn.Module):
    """ids (...) int64 to rows (..., width), in the dtype of the weights.

    Rows are cast after the look-up: cast before, the gradients of a frequent token would add up in bfloat16.
    """

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(entries, width))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al. 2016)."""

    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), _cast(self.bias, x.dtype)
        return F.layer_norm(x, self.weight.shape, weight, bias, self.eps)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019).

    Written out: in eager mode on the CPU, `F.rms_norm` takes about 1.4 times as long in bfloat16.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)  # squares of bfloat16 summed in it lose the norm
        mean_square = x.to(wide).square().mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps).to(x.dtype) * self.weight.to(x.dtype)


def build_norm(config: ModelConfig) -> nn.Module:
    """The norm that the configuration names, over `config.width` components."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.width, config.norm_eps)
    return LayerNorm(config.width, config.norm_eps, config.bias)


def _cast(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parameter is None else parameter.to(dtype)
