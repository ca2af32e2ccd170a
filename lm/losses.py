"""Cross-entropy of a linear output layer, without ever holding all of its logits.

With N rows and V entries the logits of one step are N x V numbers, more than the rest of a small model's
activations together. Here a chunk of rows at a time is multiplied out, scored, turned into its gradient
(softmax minus one-hot) and multiplied back, all in the forward pass: nothing is kept, nothing recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# logits at a time: on the CPU few enough for its cache, on a GPU enough to keep it busy
CHUNK_ELEMENTS = {"cpu": 2**21, "cuda": 2**28}


class Variant(NamedTuple):
    """What is scored instead of the plain cross-entropy of the plain logits."""

    soft_cap: float = 0.0
    label_smoothing: float = 0.0
    z_loss: float = 0.0


def linear_cross_entropy(
    rows: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    soft_cap: float = 0.0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    compiled: bool = False,
) -> Tensor:
    """Sum over rows n of weights[n] * -ln softmax(z)[targets[n]], z = rows[n] W^T + b, in nats.

    rows (N, width); weight (V, width) and bias (V,) of any float dtype, cast to that of rows; targets (N,)
    int64 in [0, V); weights (N,) constants, 1 where None. Logits have the dtype of rows, their log-sum-exp and the sum
    are float32 (float64 for float64 rows): a scalar of that dtype. Differentiable once, with respect to
    rows, weight and bias.

    With `soft_cap` c, z becomes c tanh(z / c) (Gemma Team 2024). With `label_smoothing` s, the target has probability
    1 - s + s / V and every other entry s / V (Szegedy et al. 2016). With `z_loss` k, k times the squared log-sum-exp
    of z is added (Chowdhery et al. 2023). The last two are for training: they are no cross-entropy of the data.

    `compiled`: what happens between the matrix products is made one pass by torch.compile, where there is a gradient.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    variant = Variant(soft_cap, label_smoothing, z_loss)
    if weights is None:
        weights = rows.new_ones(len(rows), dtype=wide)
    differentiable = rows.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and differentiable:
        score = _compiled_score() if compiled else _Score()
        return _LinearCrossEntropy.apply(rows, weight, bias, targets, weights, variant, score)
    total, buffers = rows.new_zeros((), dtype=wide), _Score()
    for chunk, logits in _chunks(rows, weight, bias):
        log_sum_exp, _ = buffers.softmax(logits, soft_cap)
        total += (_nats(logits, log_sum_exp, targets[chunk], variant) * weights[chunk]).sum()
    return total


Scored = tuple[Tensor, Tensor]
"""The weighted sum of nats of a chunk, and of its gradients with respect to the logits (V,)."""


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradient of nats with respect to logits is softmax - one_hot; the rest is two matrix products."""

    @staticmethod
    def forward(ctx, rows, weight, bias, targets, weights, variant, score):
        wide = torch.promote_types(rows.dtype, torch.float32)
        matrix = weight.to(rows.dtype)
        rows_gradient = torch.empty_like(rows)
        weight_gradient = torch.zeros_like(weight, dtype=wide)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=wide)
        total = rows.new_zeros((), dtype=wide)
        for chunk, logits in _chunks(rows, matrix, bias):
            scale = weights[chunk].to(wide)
            nats, bias_part = score(logits, targets[chunk], scale, variant, bias is not None)
            total += nats
            if bias_gradient is not None:
                bias_gradient += bias_part
            # Weights scale the narrow side of each product: a pass over the logits less.
            gradient, narrow = logits, scale.to(rows.dtype).unsqueeze(-1)
            rows_gradient[chunk] = (gradient @ matrix) * narrow
            weight_gradient += gradient.T @ (rows[chunk] * narrow)
        ctx.save_for_backward(rows_gradient, weight_gradient, bias_gradient)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        rows_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        if bias_gradient is not None:
            bias_gradient = (bias_gradient * upstream).to(bias_dtype)
        rows_gradient = rows_gradient * upstream.to(rows_gradient.dtype)
        return rows_gradient, (weight_gradient * upstream).to(weight_dtype), bias_gradient, None, None, None, None


def _chunks(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """(rows of the chunk, their logits), in a buffer used again and again.

    A fresh one for every chunk would come from the operating system page by page, which on the CPU takes
    longer than the softmax.
    """
    elements = CHUNK_ELEMENTS.get(rows.device.type, CHUNK_ELEMENTS["cpu"])
    size = min(max(1, elements // len(weight)), len(rows))
    matrix, offset = weight.to(rows.dtype).T, None if bias is None else bias.to(rows.dtype)
    buffer = rows.new_empty(size, len(weight))
    for start in range(0, len(rows), size or 1):
        chunk = slice(start, min(start + size, len(rows)))
        logits = buffer[: chunk.stop - chunk.start]
        if offset is None:
            torch.mm(rows[chunk], matrix, out=logits)
        else:
            torch.addmm(offset, rows[chunk], matrix, out=logits)
        yield chunk, logits


class _Score:
    """What happens to a chunk between the matrix products, one operation after the other in buffers."""

    def __init__(self) -> None:
        self._buffers: tuple[Tensor, Tensor] | None = None

    def __call__(self, logits: Tensor, targets: Tensor, scale: Tensor, variant: Variant, with_bias: bool) -> Scored:
        """The nats and gradients of logits (n, V), which become their own gradient, unweighted."""
        log_sum_exp, probabilities = self.softmax(logits, variant.soft_cap)
        nats = (_nats(logits, log_sum_exp, targets, variant) * scale).sum()
        gradient = _gradient(logits, probabilities, log_sum_exp, targets, variant)
        bias_part = scale @ gradient if with_bias else nats
        logits.copy_(gradient)
        return nats, bias_part

    def softmax(self, logits: Tensor, soft_cap: float) -> Scored:
        """Log-sum-exp (n,) and softmax (n, V) in float32 or wider, after the soft cap, which logits get in place."""
        if self._buffers is None:
            like = torch.empty_like(logits, dtype=torch.promote_types(logits.dtype, torch.float32))
            self._buffers = like, torch.empty_like(like)
        wide, probabilities = (buffer[: len(logits)] for buffer in self._buffers)
        wide.copy_(logits)
        if soft_cap:
            logits.copy_(wide.div_(soft_cap).tanh_().mul_(soft_cap))
        torch.softmax(wide, dim=-1, out=probabilities)
        return _log_sum_exp(logits, probabilities), probabilities


@cache
def _compiled_score() -> Callable[..., Scored]:
    return torch.compile(_plain_score)


def _plain_score(logits: Tensor, targets: Tensor, scale: Tensor, variant: Variant, with_bias: bool) -> Scored:
    """`_Score` without a thought for buffers, to be compiled."""
    capped = logits.to(scale.dtype)
    if variant.soft_cap:
        capped = variant.soft_cap * torch.tanh(capped / variant.soft_cap)
    log_sum_exp = torch.logsumexp(capped, dim=-1)
    nats = (_nats(capped, log_sum_exp, targets, variant) * scale).sum()
    probabilities = torch.exp(capped - log_sum_exp.unsqueeze(-1))
    gradient = _gradient(capped, probabilities, log_sum_exp, targets, variant)
    bias_part = (scale.unsqueeze(-1) * gradient).sum(dim=0) if with_bias else nats
    logits.copy_(gradient)
    return nats, bias_part


def _log_sum_exp(logits: Tensor, probabilities: Tensor) -> Tensor:
    """ln sum exp(logits) of each row, from logits and their softmax, in the latter's dtype.

    The largest probability is exp(largest logit - log-sum-exp) and at least 1 / V, so its logarithm gives
    the log-sum-exp without underflow and without a second pass of exponentials.
    """
    return logits.amax(dim=-1).to(probabilities.dtype) - probabilities.amax(dim=-1).log()


def _nats(logits: Tensor, log_sum_exp: Tensor, targets: Tensor, variant: Variant) -> Tensor:
    """What each row costs, in the dtype of `log_sum_exp`."""
    wide = log_sum_exp.dtype
    expected = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1).to(wide)
    if variant.label_smoothing:
        mean = logits.mean(dim=-1, dtype=wide)
        expected = (1.0 - variant.label_smoothing) * expected + variant.label_smoothing * mean
    nats = log_sum_exp - expected
    return nats + variant.z_loss * log_sum_exp.square() if variant.z_loss else nats


def _gradient(logits: Tensor, probabilities: Tensor, log_sum_exp: Tensor, targets: Tensor, variant: Variant) -> Tensor:
    """Of `_nats` with respect to the logits before the soft cap, in the memory of `probabilities`.

    With softmax p, smoothing s and z-loss k it is (1 + 2 k lse) p - (1 - s) one_hot - s / V, and a soft cap c
    multiplies it by 1 - (z / c)^2.
    """
    gradient, target = probabilities, targets.unsqueeze(-1)
    if variant.z_loss:
        gradient *= (1.0 + 2.0 * variant.z_loss * log_sum_exp).unsqueeze(-1)
    if torch.compiler.is_compiling():  # a comparison is fused with its surroundings, a scatter is not
        hit = torch.arange(gradient.shape[-1], device=target.device) == target
        gradient = gradient - torch.where(hit, 1.0 - variant.label_smoothing, 0.0)
    else:
        gradient.scatter_add_(-1, target, gradient.new_full(target.shape, variant.label_smoothing - 1.0))
    if variant.label_smoothing:
        gradient -= variant.label_smoothing / gradient.shape[-1]
    if variant.soft_cap:
        gradient *= 1.0 - (logits.to(gradient.dtype) / variant.soft_cap).square()
    return gradient
