"""Layers with weights, activations, and the base class of all modules.

Weights are float32 masters. Each layer casts them to the dtype of its input, so `LanguageModel.compute_dtype` alone
decides the dtype of a forward pass. Gradients return through the cast in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lm.config import ModelConfig
from lm.initialization import Initializer


class Component(nn.Module):
    """A module that initializes its parameters and names its row in the parameter table.

    Modules that multiply by matrices also have a method `flops`: training FLOPs, two operations a weight forward and
    four backward.
    """

    component: ClassVar[str | None] = None
    """Row of the parameter table for this module and everything inside it; None: the modules inside have their own."""
    own_component: ClassVar[str | None] = None
    """Row for the parameters that a module with component None holds itself."""
    __call__: Callable[..., Tensor]

    def initialize(self, initializer: Initializer) -> None:
        """Fill the parameters of this module and all inside it, in the order of `named_parameters`."""
        filled: set[Tensor] = set()
        with torch.no_grad():
            for module in self.modules():
                own = set(module.parameters(recurse=False))
                if own and own <= filled:  # shared with an earlier module
                    continue
                filled |= own
                if isinstance(module, Component):
                    module.reset_parameters(initializer)
                else:
                    assert not own, f"{type(module).__name__} is no Component"

    def reset_parameters(self, initializer: Initializer) -> None:
        """Fill the parameters that this module holds itself, in the order in which they are registered."""
        assert not list(self.parameters(recurse=False)), f"{type(self).__name__} does not fill its parameters"


class Linear(Component):
    """x (..., inputs) to x W^T + b (..., outputs), in the dtype of x."""

    operations = 6
    """Operations a weight and row in training: two forward, two for the gradient of x, two for that of the weight"""

    def __init__(self, inputs: int, outputs: int, bias: bool, residual_writes: int = 0, gain: float = 1.0) -> None:
        """`residual_writes` and `gain`: as in `Initializer.matrix`."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.residual_writes, self.gain = residual_writes, gain

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), _cast(self.bias, x.dtype))

    @property
    def matrix(self) -> Tensor:
        """The matrix (outputs, inputs) by which the layer multiplies, with its adapter if it has one."""
        return self.weight

    def reset_parameters(self, initializer: Initializer) -> None:
        initializer.matrix(self.weight, self.residual_writes, self.gain)
        if self.bias is not None:
            self.bias.zero_()

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of `rows` rows."""
        return self.operations * self.weight.numel() * rows


class Embedding(Component):
    """ids (...) int64 to rows (..., width), in the dtype of the weights.

    Callers cast the rows, not the table: in a bfloat16 table the gradients of a frequent token would lose digits.
    """

    component = "embedding"

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(entries, width))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)

    def reset_parameters(self, initializer: Initializer) -> None:
        initializer.embedding(self.weight)


class LayerNorm(Component):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis (Ba et al. 2016)."""

    component = "norms"

    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.to(x.dtype), _cast(self.bias, x.dtype)
        return F.layer_norm(x, self.weight.shape, weight, bias, self.eps)

    def reset_parameters(self, initializer: Initializer) -> None:
        self.weight.fill_(1.0)
        if self.bias is not None:
            self.bias.zero_()


class RMSNorm(Component):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang and Sennrich 2019)."""

    component = "norms"

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            normalized: Tensor = _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
            return normalized
        return _normalize(x, self.eps)[0] * self.weight.to(x.dtype)

    def reset_parameters(self, initializer: Initializer) -> None:
        self.weight.fill_(1.0)


class _RMSNorm(torch.autograd.Function):
    """`RMSNorm` with a hand-written derivative: on the CPU a third faster than autograd of the formula.

    With u = x / s, s = sqrt(mean(x^2) + eps) and g the gradient at u * weight, the gradients are the sum of g u over
    all rows for the weight, and (g weight - u mean(g weight u)) / s for x. A compiler needs no help with the formula.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        unit, scale = _normalize(x, eps)
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


def _normalize(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x over its root mean square, and the factor 1 / root mean square (..., 1)."""
    wide = torch.promote_types(x.dtype, torch.float32)  # a sum of squares in bfloat16 loses the norm
    scale = torch.rsqrt(x.to(wide).square().mean(dim=-1, keepdim=True) + eps).to(x.dtype)
    return x * scale, scale


def build_norm(config: ModelConfig) -> LayerNorm | RMSNorm:
    """Return the norm that `config.norm` names, over `config.width` features."""
    if config.norm == "rmsnorm":
        return RMSNorm(config.width, config.norm_eps)
    return LayerNorm(config.width, config.norm_eps, config.bias)


def _cast(parameter: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parameter is None else parameter.to(dtype)


# gelu_tanh(x) = x sigmoid(x (LINEAR + CUBIC x^2)); its derivative uses both constants.
LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = 0.044715 * LINEAR
TILE = 2**17  # elements: a few tiles fit the CPU cache, and one is large enough to share among threads


def gelu_tanh(x: Tensor) -> Tensor:
    """x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel 2016).

    The CPU computes the equal x sigmoid(2 u), because a tanh takes four times as long as a sigmoid.
    """
    if x.device.type == "cpu" and torch.compiler.is_compiling():
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.sigmoid(wide * (LINEAR + CUBIC * wide * wide))).to(x.dtype)
    if x.device.type == "cpu" and torch.is_grad_enabled() and x.requires_grad:
        activated: Tensor = _GeluTanh.apply(x)  # type: ignore[no-untyped-call]
        return activated
    return F.gelu(x, approximate="tanh")


class _GeluTanh(torch.autograd.Function):
    """`gelu_tanh` that saves its derivative instead of x, computed tile by tile while both are in the cache.

    With u = LINEAR x + CUBIC x^3 and s = sigmoid(u) it is x s, and its derivative s + (s - s^2) (3 u - 2 LINEAR x).
    Computes in float32 or wider and rounds to the dtype of x at the end.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        value, slope = torch.empty_like(x), torch.empty_like(x)
        wide = torch.promote_types(x.dtype, torch.float32)
        tiles = (tensor.view(-1).split(TILE) for tensor in (x, value, slope))
        for x_tile, value_tile, slope_tile in zip(*tiles, strict=True):
            x_tile = x_tile.to(wide)
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
        slope: Tensor = ctx.saved_tensors[0]
        return gradient * slope


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)."""
    if torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling():
        activated: Tensor = _ReluSquared.apply(x)  # type: ignore[no-untyped-call]
        return activated
    return F.relu(x).square()


class _ReluSquared(torch.autograd.Function):
    """`relu_squared` with its derivative 2 max(x, 0) written out: saves two passes over autograd's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        positive: Tensor = ctx.saved_tensors[0]
        return (gradient * positive).mul_(2.0)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": relu_squared,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
}
