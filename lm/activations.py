"""The nonlinearities of an MLP."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

# gelu_tanh(x) = x sigmoid(x (LINEAR + CUBIC x^2)), whose derivative needs both.
LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = 0.044715 * LINEAR
TILE = 2**17  # elements; some tiles fit a processor's cache, and are large enough for its threads to share


def gelu_tanh(x: Tensor) -> Tensor:
    """x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016).

    On a CPU, where a tanh takes four times as long as a sigmoid, as x sigmoid(2 u), which is the same.
    """
    if x.device.type == "cpu" and torch.compiler.is_compiling():
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.sigmoid(wide * (LINEAR + CUBIC * wide * wide))).to(x.dtype)
    if x.device.type == "cpu" and torch.is_grad_enabled() and x.requires_grad:
        return _GeluTanh.apply(x)
    return F.gelu(x, approximate="tanh")


class _GeluTanh(torch.autograd.Function):
    """`gelu_tanh` that keeps its derivative instead of x, tile by tile while both are in the cache.

    With u = LINEAR x + CUBIC x^3 and s = sigmoid(u) it is x s, and its derivative s + (s - s^2) (3 u - 2 LINEAR x).
    In float32 or wider, rounded to the dtype of x at the end.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        value, slope = torch.empty_like(x), torch.empty_like(x)
        wide = torch.promote_types(x.dtype, torch.float32)
        tiles = (tensor.view(-1).split(TILE) for tensor in (x, value, slope))
        for given, value_tile, slope_tile in zip(*tiles, strict=True):
            x_tile = given.to(wide)
            u = (x_tile * x_tile).mul_(CUBIC).add_(LINEAR).mul_(x_tile)
            s = torch.sigmoid(u)
            torch.mul(x_tile, s, out=value_tile)
            third = u.sub_(x_tile, alpha=2.0 / 3.0 * LINEAR)
            torch.addcmul(s, torch.addcmul(s, s, s, value=-1.0), third, value=3.0, out=slope_tile)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return gradient * slope


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)."""
    if torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling():
        return _ReluSquared.apply(x)
    return F.relu(x).square()


class _ReluSquared(torch.autograd.Function):
    """`relu_squared` with its derivative 2 max(x, 0) by hand: autograd takes two passes more for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (gradient * positive).mul_(2.0)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": relu_squared,
    "swiglu": F.silu,
    "geglu": gelu_tanh,  # T5 1.1 approximates
}
