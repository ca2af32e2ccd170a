"""Muon: momentum made orthogonal (Jordan et al. 2024), for the matrices between embedding and head."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from lm.blocks import Block
from lm.layers import Linear
from lm.optim.optimizer import ONE_PROCESS, Execution, Optimizer
from lm.optim.optimizer_settings import OptimizerSettings

# A quintic with a steep slope at 0: five rounds bring singular values from 1e-3 to between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
SMALLEST_NORM = 1e-7
ADAM_RMS = 0.2  # about the root mean square of AdamW's updates, so that its learning rates carry over


class Muon(Optimizer):
    """Moves each matrix (rows, columns) along the semi-orthogonal matrix nearest to its Nesterov momentum.

    buffer = momentum * buffer + (1 - momentum) * gradient;
    update = orthogonal((1 - momentum) * gradient + momentum * buffer) * 0.2 sqrt(max(rows, columns));
    weight = (1 - lr * weight_decay) * weight - lr * update.

    The factor gives every update the root mean square of AdamW's (Liu et al. 2025, equation 4), so one learning rate
    suits both. Matrices of one shape share a batch of products.
    """

    bound_by_products = True

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        execution: Execution = ONE_PROCESS,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon is for matrices: a parameter has shape {tuple(parameter.shape)}")
        function = torch.compile(orthogonal, dynamic=False) if execution.compiled else orthogonal
        self._orthogonal = partial(function, dtype=torch.bfloat16 if execution.narrow else torch.float32)
        self._spread = execution.spread

    @classmethod
    def build(
        cls, decayed: list[Tensor], undecayed: list[Tensor], settings: OptimizerSettings, execution: Execution
    ) -> Self:
        assert not undecayed, "matrices decay"
        lr = settings.muon_lr or settings.lr
        return cls(decayed, lr, settings.weight_decay, settings.muon_momentum, execution)

    @staticmethod
    def trains(model: nn.Module) -> list[Tensor]:
        """Return the weights of the linear layers inside blocks."""
        blocks = [block for block in model.modules() if isinstance(block, Block)]
        layers = [layer for block in blocks for layer in block.modules() if isinstance(layer, Linear)]
        return [layer.weight for layer in layers if layer.weight.requires_grad]

    @staticmethod
    def cost(parameter: Tensor) -> int:
        return parameter.numel() * min(parameter.shape)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                self._update(parameters, shape, **{key: group[key] for key in ("lr", "weight_decay", "momentum")})

    def _update(
        self, parameters: list[Tensor], shape: torch.Size, lr: float, weight_decay: float, momentum: float
    ) -> None:
        gradients = [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        buffers = [_local(self._buffer(parameter)) for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
        directions = torch._foreach_lerp(gradients, buffers, momentum)
        weights = [_local(parameter) for parameter in parameters]
        updates = self._spread(self._orthogonal, torch.stack(directions), shape[0]).to(weights[0].dtype)
        torch._foreach_mul_(weights, 1.0 - lr * weight_decay)
        torch._foreach_add_(weights, list(updates), alpha=-lr * ADAM_RMS * math.sqrt(max(shape)))

    def _buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum"]
        return buffer


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a sharded tensor, in the same memory; other tensors unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def orthogonal(matrices: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return about U V^T of each matrix U S V^T in (N, rows, columns), computed in `dtype`.

    Newton and Schulz's iteration X = P X with P = a + b A + c A^2 and A = X X^T, on the side with fewer rows. The
    singular values of the result lie between about 0.7 and 1.2, which trains as well as 1.
    """
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)).to(dtype)
    rows, columns = x.shape[-2:]
    rounds = _fused_rounds if dtype != torch.bfloat16 and columns >= 2 * rows else _plain_rounds
    x = rounds(x)
    return x.mT if tall else x


def _plain_rounds(x: Tensor) -> Tensor:
    a, b, c = COEFFICIENTS
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _fused_rounds(x: Tensor) -> Tensor:
    """`_plain_rounds` with a single product with the long side.

    All P and A are polynomials of the first A, so they commute, and the next A is P A P. With four times as many
    columns as rows this takes a bit over half the time. Singular values below 1e-3 of the largest lose digits, in
    bfloat16 all of them.
    """
    a, b, c = COEFFICIENTS
    gram = x @ x.mT
    product: Tensor | None = None
    for remaining in reversed(range(ROUNDS)):
        step = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        step.diagonal(dim1=-2, dim2=-1).add_(a)
        product = step if product is None else step @ product
        if remaining:
            gram = step @ gram @ step
    assert product is not None
    return product @ x


OPTIMIZER = Muon
