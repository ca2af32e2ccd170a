"""Cross-entropy of a linear output layer that never holds all logits.

With N rows and V entries, the logits of a step are N x V numbers: more than all other activations of a small model.
The forward pass takes a chunk of rows at a time, computes logits, loss and gradient (softmax minus one-hot), and
multiplies the gradient back. It saves no logits and recomputes none. `scores` computes losses and gradients of logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lm.logit_loss import FusedScore, Scorer, Variant

CHUNK_ELEMENTS = {"cpu": 2**25, "cuda": 2**28}  # logits of a chunk, at most
FUSED_CHUNK = 4  # factor of the chunk size for a fused score on a GPU, which needs no float32 copies
ALIGNMENT = 64  # rows of logits start at multiples of this many entries: products are slower with other strides
# Rows of a chunk on a CPU, at most; for 16-bit logits, per core. Smaller chunks re-read the output matrix and its
# gradient too often; the logits of larger ones leave the cache.
CPU_ROWS, CPU_NARROW_ROWS = 512, 1024


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
    fused: FusedScore | None = None,
) -> Tensor:
    """Return the sum over rows n of weights[n] * -ln softmax(z)[targets[n]], z = rows[n] W^T + b, in nats.

    rows (N, width); weight (V, width) and bias (V,) of any float dtype, cast to that of rows; targets (N,) int64 in
    [0, V); weights (N,) constants, 1 by default. Logits have the dtype of rows. Their log-sum-exp and the scalar result
    are float32, or float64 for float64 rows. Differentiable once, with respect to rows, weight and bias.

    With `soft_cap` c, z becomes c tanh(z / c) (Gemma Team 2024). With `label_smoothing` s, the target has probability
    1 - s + s / V and every other entry s / V (Szegedy et al. 2016). `z_loss` k adds k times the squared log-sum-exp of
    z (Chowdhery et al. 2023). The last two are for training: the result is no cross-entropy of the data.

    `fused` is a compiled `fused_score` or its Triton kernel, which take fewer passes over the logits than eager
    operations.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    variant = Variant(soft_cap, label_smoothing, z_loss)
    if weights is None:
        weights = rows.new_ones(len(rows), dtype=wide)
    differentiable = rows.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and differentiable:
        loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows, weight, bias, targets, weights, variant, fused
        )
        return loss
    total = rows.new_zeros((), dtype=wide)
    buffer = _buffer(rows, len(weight), fused is not None)
    matrix = weight.to(rows.dtype)
    for chunk, nll, _ in _scored_chunks(rows, matrix, buffer, bias, targets, variant, fused, graded=False):
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
        fused: FusedScore | None,
    ) -> Tensor:
        wide = torch.promote_types(rows.dtype, torch.float32)
        buffer, matrix = _buffer(rows, len(weight), fused is not None), weight.to(rows.dtype)
        rows_gradient = torch.empty_like(rows)
        weight_gradient = torch.zeros_like(weight, dtype=wide)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=wide)
        total = rows.new_zeros((), dtype=wide)
        for chunk, nll, gradient in _scored_chunks(rows, matrix, buffer, bias, targets, variant, fused):
            scale = weights[chunk].to(wide)
            total += (nll * scale).sum()
            if bias_gradient is not None:
                bias_gradient += scale.to(rows.dtype) @ gradient
            # Scaling the narrow side of each product saves a pass over the logits.
            weighted = (rows[chunk] * scale.unsqueeze(-1)).to(rows.dtype)
            if weighted.dtype == wide:
                weight_gradient.addmm_(gradient.T, weighted)
            elif chunk.start == 0:
                weight_gradient.copy_(gradient.T @ weighted)  # a third of the time of adding to zeros
            else:
                weight_gradient += gradient.T @ weighted
            torch.mul(gradient @ matrix, scale.unsqueeze(-1), out=rows_gradient[chunk])
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
        # `upstream` as a vector keeps its dtype in the product, so the gradient is rounded once.
        rows_gradient = (rows_gradient * upstream.unsqueeze(0)).to(rows_gradient.dtype)
        return rows_gradient, (weight_gradient * upstream).to(weight_dtype), bias_gradient, None, None, None, None


def _scored_chunks(
    rows: Tensor,
    matrix: Tensor,
    buffer: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    variant: Variant,
    fused: FusedScore | None,
    graded: bool = True,
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows of the chunk, their losses (n,) in nats, the gradient with respect to their logits (n, V)).

    The gradient has the dtype of `buffer` (rows of a chunk, P) and is valid only if `graded`. The next chunk overwrites
    it.
    """
    entries = len(matrix)
    offset = None if bias is None else bias.to(buffer.dtype)
    scorer = Scorer(buffer, entries, variant) if fused is None else None
    for start in range(0, len(targets), len(buffer) or 1):
        chunk = slice(start, min(start + len(buffer), len(targets)))
        logits, chunk_targets = buffer[: chunk.stop - chunk.start], targets[chunk]
        if offset is None or fused is not None:
            torch.mm(rows[chunk], matrix.T, out=logits[:, :entries])
        else:
            torch.addmm(offset, rows[chunk], matrix.T, out=logits[:, :entries])
        if scorer is not None:
            nll, gradient = scorer(logits, chunk_targets, graded)
        else:
            assert fused is not None
            for tensor in (logits, chunk_targets):  # one compilation serves all chunks
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            nll, gradient = fused(logits, offset, chunk_targets, entries, variant, graded), logits
        yield chunk, nll, gradient[:, :entries]


def _buffer(rows: Tensor, entries: int, fused: bool) -> Tensor:
    """Return an uninitialized buffer (n, P) for the logits of a chunk, with P >= V = `entries` a multiple of ALIGNMENT.

    If the caller is being compiled, P is V: the compiler does not trace products into a part of the columns. On a GPU,
    the rows of a chunk are a multiple of ALIGNMENT, so that the next chunk is aligned too.
    """
    if rows.device.type == "cpu":
        narrow = rows.dtype.itemsize < torch.float32.itemsize
        most = torch.get_num_threads() * CPU_NARROW_ROWS if narrow else CPU_ROWS
        size = max(1, min(CHUNK_ELEMENTS["cpu"] // entries, most))
    else:
        size = CHUNK_ELEMENTS["cuda"] * (FUSED_CHUNK if fused else 1) // entries
        size = max(ALIGNMENT, size // ALIGNMENT * ALIGNMENT)
    columns = entries if torch.compiler.is_compiling() else -(-entries // ALIGNMENT) * ALIGNMENT
    return rows.new_empty(min(size, len(rows)), columns)
