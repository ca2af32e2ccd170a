"""The layers with weights, and the one place that decides precision.

Weights are float32 masters; each layer casts them to the dtype of the activation that it is given, so the
dtype in which a model computes is decided once, where its embedding hands over: `LanguageModel.compute_dtype`.
Gradients come back through the cast in float32. Weights are allocated here, and filled by
`lm.initialization`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _RMSNorm.apply(x, self.weight, self.eps)
        return _unit(x, self.eps)[0] * self.weight.to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    """`RMSNorm` with its derivative by hand: on the CPU in a third less time than what autograd makes of the formula.

    With u = x / s, s = sqrt(mean(x^2) + eps) and g the gradient at u * weight, the gradients are the sum of g u over
    all rows for the weight, and (g weight - u mean(g weight u)) / s for x. A compiler does as well with the formula.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        unit, scale = _unit(x, eps)
        ctx.save_for_backward(unit, scale, weight)
        return unit * weight.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, scale, weight = ctx.saved_tensors
        d_weight = (gradient * unit).unsqueeze(0).sum(dim=tuple(range(unit.ndim)), dtype=weight.dtype)
        gradient = gradient * weight.to(gradient.dtype)
        mean = (gradient * unit).mean(dim=-1, keepdim=True)
        d_x = gradient.addcmul_(unit, mean, value=-1).mul_(scale)
        return d_x, d_weight, None


def _unit(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x over its root mean square, and what it was multiplied by for that, (..., 1)."""
    wide = torch.promote_types(x.dtype, torch.float32)  # squares of bfloat16 summed in it lose the norm
    scale = torch.rsqrt(x.to(wide).square().mean(dim=-1, keepdim=True) + eps).to(x.dtype)
    return x * scale, scale


def build_norm(config: ModelConfig) -> nn.Module:
    """The norm that the configuration names, over `config.width` components."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.width, config.norm_eps)
    return LayerNorm(config.width, config.norm_eps, config.bias)


def _cast(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parameter is None else parameter.to(dtype)
