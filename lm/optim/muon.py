"""Muon: momentum made orthogonal (Jordan et al. 2024), for the matrices between embedding and head."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from inspect import unwrap

import torch
from torch import Tensor

# A quintic with a steep slope at 0: five rounds bring singular values from 1e-3 to between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
SMALLEST_NORM = 1e-7
ADAM_RMS = 0.2  # about the root mean square of AdamW's updates, so that its learning rates carry over

Spread = Callable[[Callable[[Tensor], Tensor], Tensor, int], Tensor]
"""Maps (function, matrices (N, local rows, columns), rows) to the local rows of `function` of the full matrices."""


def _one_process(function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
    return function(matrices)


class Muon(torch.optim.Optimizer):
    """Moves each matrix (rows, columns) along the semi-orthogonal matrix nearest to its Nesterov momentum.

    buffer = momentum * buffer + (1 - momentum) * gradient;
    update = orthogonal((1 - momentum) * gradient + momentum * buffer) * 0.2 sqrt(max(rows, columns));
    weight = (1 - lr * weight_decay) * weight - lr * update.

    The factor gives every update the root mean square of AdamW's (Liu et al. 2025, equation 4), so one learning rate
    suits both. Matrices of one shape share a batch of products.

    `narrow` computes in bfloat16, which is precise enough but slow on a CPU without bfloat16 instructions; otherwise in
    float32. `compiled` fuses the products with torch.compile, which takes seconds and pays on a GPU. `spread` divides
    the work among ranks, and gathers the rows of sharded parameters.
    """

    # Without decorators that import torch.compile: that takes 2 s of CPU time.
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        narrow: bool = True,
        compiled: bool = False,
        spread: Spread = _one_process,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim != 2:
                    raise ValueError(f"Muon is for matrices: a parameter has shape {tuple(parameter.shape)}")
        function = torch.compile(orthogonal, dynamic=False) if compiled else orthogonal
        self._orthogonal = partial(function, dtype=torch.bfloat16 if narrow else torch.float32)
        self._spread = spread

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
