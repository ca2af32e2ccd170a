"""Cross-entropy of a linear output layer that never holds all logits.

With N rows and V entries, the logits of a step are N x V numbers: more than all other activations of a small model.
The forward pass takes a chunk of rows at a time, computes logits, loss and gradient (softmax minus one-hot), and
multiplies the gradient back. It saves no logits and recomputes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = {"cpu": 2**25, "cuda": 2**28}  # logits of a chunk, at most
# Rows of a chunk on a CPU, at most; for 16-bit logits, per core. Smaller chunks re-read the output matrix and its
# gradient too often; the logits of larger ones leave the cache.
CPU_ROWS, CPU_NARROW_ROWS = 512, 1024
CPU_SCORED_ROWS = 64  # rows of 16-bit logits scored in float32 at a time: they stay in the cache


class Variant(NamedTuple):
    """Options of the loss; by default it is the cross-entropy."""

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
) -> Tensor:
    """Return the sum over rows n of weights[n] * -ln softmax(z)[targets[n]], z = rows[n] W^T + b, in nats.

    rows (N, width); weight (V, width) and bias (V,) of any float dtype, cast to that of rows; targets (N,) int64 in
    [0, V); weights (N,) constants, 1 by default. Logits have the dtype of rows. Their log-sum-exp and the scalar result
    are float32, or float64 for float64 rows. Differentiable once, with respect to rows, weight and bias.

    With `soft_cap` c, z becomes c tanh(z / c) (Gemma Team 2024). With `label_smoothing` s, the target has probability
    1 - s + s / V and every other entry s / V (Szegedy et al. 2016). `z_loss` k adds k times the squared log-sum-exp of
    z (Chowdhery et al. 2023). The last two are for training: the result is no cross-entropy of the data.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    variant = Variant(soft_cap, label_smoothing, z_loss)
    if weights is None:
        weights = rows.new_ones(len(rows), dtype=wide)
    differentiable = rows.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and differentiable:
        loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows, weight, bias, targets, weights, variant
        )
        return loss
    total = rows.new_zeros((), dtype=wide)
    for chunk, nll, _ in _scored_chunks(rows, weight.to(rows.dtype), bias, targets, variant, graded=False):
        total += (nll * weights[chunk]).sum()
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradient of the loss with respect to logits is softmax - one_hot; the rest is two matrix products."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        variant: Variant,
    ) -> Tensor:
        wide = torch.promote_types(rows.dtype, torch.float32)
        matrix = weight.to(rows.dtype)
        rows_gradient = torch.empty_like(rows)
        weight_gradient = torch.zeros_like(weight, dtype=wide)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=wide)
        total = rows.new_zeros((), dtype=wide)
        for chunk, nll, gradient in _scored_chunks(rows, matrix, bias, targets, variant):
            scale = weights[chunk].to(wide)
            total += (nll * scale).sum()
            if bias_gradient is not None:
                bias_gradient += scale.to(rows.dtype) @ gradient
            # Scaling the narrow side of each product saves a pass over the logits.
            torch.mul(gradient @ matrix, scale.unsqueeze(-1), out=rows_gradient[chunk])
            weighted = (rows[chunk] * scale.unsqueeze(-1)).to(rows.dtype)
            if weighted.dtype == wide:
                weight_gradient.addmm_(gradient.T, weighted)
            elif chunk.start == 0:
                weight_gradient.copy_(gradient.T @ weighted)  # a third of the time of adding to zeros
            else:
                weight_gradient += gradient.T @ weighted
        ctx.save_for_backward(rows_gradient, weight_gradient, bias_gradient)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        if bias_gradient is not None:
            bias_gradient = (bias_gradient * upstream).to(bias_dtype)
        # As a vector, `upstream` keeps its dtype in the product, which is rounded once.
        rows_gradient = (rows_gradient * upstream.unsqueeze(0)).to(rows_gradient.dtype)
        return rows_gradient, (weight_gradient * upstream).to(weight_dtype), bias_gradient, None, None, None


def _scored_chunks(
    rows: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor, variant: Variant, graded: bool = True
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows of the chunk, their losses (n,) in nats, the gradient with respect to their logits (n, V)).

    The gradient has the dtype of rows, is valid only if `graded`, and lives in a buffer that the next chunk overwrites:
    on the CPU, fresh pages from the operating system would take longer than the softmax.
    """
    size, at_once = _chunk_size(rows, len(matrix))
    wide = torch.promote_types(rows.dtype, torch.float32)
    same = wide == rows.dtype
    offset = None if bias is None else bias.to(rows.dtype)
    all_logits = rows.new_empty(size, len(matrix))
    all_probabilities = rows.new_empty(at_once, len(matrix), dtype=wide)
    all_wide = all_logits if same else torch.empty_like(all_probabilities)
    for start in range(0, len(rows), size or 1):
        chunk = slice(start, min(start + size, len(rows)))
        logits = all_logits[: chunk.stop - chunk.start]
        if offset is None:
            torch.mm(rows[chunk], matrix.T, out=logits)
        else:
            torch.addmm(offset, rows[chunk], matrix.T, out=logits)
        losses = []
        for part, part_targets in zip(logits.split(at_once), targets[chunk].split(at_once), strict=True):
            exact = part if same else all_wide[: len(part)].copy_(part)
            probabilities = all_probabilities[: len(part)]
            if variant.soft_cap:
                exact.div_(variant.soft_cap).tanh_().mul_(variant.soft_cap)
            torch.softmax(exact, dim=-1, out=probabilities)
            log_sum_exp = _log_sum_exp(exact, probabilities)
            losses.append(_nll(exact, log_sum_exp, part_targets, variant))
            if graded:
                gradient = _gradient(exact, probabilities, log_sum_exp, part_targets, variant)
                if not same:
                    part.copy_(gradient)  # the rounded gradient overwrites the logits
        yield chunk, torch.cat(losses), all_probabilities[: len(logits)] if same else logits


def _chunk_size(rows: Tensor, entries: int) -> tuple[int, int]:
    """Return the rows of a chunk, and the rows scored at a time."""
    kind = "cuda" if rows.device.type == "cuda" else "cpu"
    size = max(1, CHUNK_ELEMENTS[kind] // entries)
    narrow = rows.dtype.itemsize < torch.float32.itemsize
    if kind == "cpu":
        size = min(size, torch.get_num_threads() * CPU_NARROW_ROWS if narrow else CPU_ROWS)
    size = min(size, len(rows))
    return size, min(size, CPU_SCORED_ROWS) if kind == "cpu" and narrow else size


def _log_sum_exp(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Return ln sum exp(logits) of each row, in the dtype of `probabilities`, their softmax.

    The largest probability is exp(largest logit - log-sum-exp) and at least 1 / V. Its logarithm gives the log-sum-exp
    without underflow and without a second pass of exponentials.
    """
    return logits.amax(dim=-1).to(probabilities.dtype) - probabilities.amax(dim=-1).log()


def _nll(logits: Tensor, log_sum_exp: Tensor, targets: Tensor, variant: Variant) -> Tensor:
    """Return the loss of each row in nats, in the dtype of `log_sum_exp`."""
    wide = log_sum_exp.dtype
    expected = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1).to(wide)
    if variant.label_smoothing:
        mean = logits.mean(dim=-1, dtype=wide)
        expected = (1.0 - variant.label_smoothing) * expected + variant.label_smoothing * mean
    nll = log_sum_exp - expected
    return nll + variant.z_loss * log_sum_exp.square() if variant.z_loss else nll


def _gradient(logits: Tensor, probabilities: Tensor, log_sum_exp: Tensor, targets: Tensor, variant: Variant) -> Tensor:
    """Return the gradient of `_nll` with respect to the logits before the soft cap, in place of `probabilities`.

    With softmax p, smoothing s and z-loss k it is (1 + 2 k lse) p - (1 - s) one_hot - s / V, and a soft cap c
    multiplies it by 1 - (z / c)^2.
    """
    gradient, target = probabilities, targets.unsqueeze(-1)
    if variant.z_loss:
        gradient *= (1.0 + 2.0 * variant.z_loss * log_sum_exp).unsqueeze(-1)
    gradient.scatter_add_(-1, target, gradient.new_full(target.shape, variant.label_smoothing - 1.0))
    if variant.label_smoothing:
        gradient -= variant.label_smoothing / gradient.shape[-1]
    if variant.soft_cap:
        gradient *= 1.0 - (logits.to(gradient.dtype) / variant.soft_cap).square()
    return gradient
