"""Cross-entropy of a linear output layer, without ever holding all of its logits.

With N rows and V entries the logits of one step are N x V numbers, more than the rest of a small model's
activations together. Here a chunk of rows at a time is multiplied out, scored, turned into its gradient
(softmax minus one-hot) and multiplied back, all in the forward pass: nothing is kept, nothing recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# logits at a time: on the CPU few enough for its cache, on a GPU enough to keep it busy
CHUNK_ELEMENTS = {"cpu": 2**21, "cuda": 2**28}


def linear_cross_entropy(
    rows: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:
    """Sum over rows n of weights[n] * -ln softmax(rows[n] W^T + b)[targets[n]], in nats.

    rows (N, width); weight (V, width) and bias (V,) of any float dtype, cast to that of rows; targets (N,)
    int64 in [0, V); weights (N,) constants, 1 where None. Logits have the dtype of rows, their log-sum-exp and the sum
    are float32 (float64 for float64 rows): a scalar of that dtype. Differentiable once, with respect to
    rows, weight and bias.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    if weights is None:
        weights = rows.new_ones(len(rows), dtype=wide)
    differentiable = rows.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and differentiable:
        return _LinearCrossEntropy.apply(rows, weight, bias, targets, weights)
    total = rows.new_zeros((), dtype=wide)
    for chunk, logits, probabilities in _scored_chunks(rows, weight, bias):
        total += (_nats(logits, probabilities, targets[chunk]) * weights[chunk]).sum()
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradient of nats with respect to logits is softmax - one_hot; the rest is two matrix products."""

    @staticmethod
    def forward(ctx, rows, weight, bias, targets, weights):
        wide = torch.promote_types(rows.dtype, torch.float32)
        matrix = weight.to(rows.dtype)
        rows_gradient = torch.empty_like(rows)
        weight_gradient = torch.zeros_like(weight, dtype=wide)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=wide)
        total = rows.new_zeros((), dtype=wide)
        for chunk, logits, probabilities in _scored_chunks(rows, weight, bias):
            scale = weights[chunk].to(wide)
            total += (_nats(logits, probabilities, targets[chunk]) * scale).sum()
            target = targets[chunk].unsqueeze(-1)
            gradient = probabilities.scatter_add_(-1, target, -torch.ones_like(target, dtype=wide))
            # Weights scale the narrow side of each product: a pass over the logits less.
            if bias_gradient is not None:
                bias_gradient += scale @ gradient
            gradient = logits.copy_(gradient)  # the logits are spent: their memory takes the rounded gradient
            narrow = scale.to(rows.dtype).unsqueeze(-1)
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
        return rows_gradient, (weight_gradient * upstream).to(weight_dtype), bias_gradient, None, None


def _scored_chunks(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(rows of the chunk, their logits, their softmax in float32 or wider), in buffers used again and again.

    Fresh ones for every chunk would come from the operating system page by page, which on the CPU takes
    longer than the softmax.
    """
    elements = CHUNK_ELEMENTS.get(rows.device.type, CHUNK_ELEMENTS["cpu"])
    size = min(max(1, elements // len(weight)), len(rows))
    matrix, offset = weight.to(rows.dtype).T, None if bias is None else bias.to(rows.dtype)
    all_logits = rows.new_empty(size, len(weight))
    all_probabilities = torch.empty_like(all_logits, dtype=torch.promote_types(rows.dtype, torch.float32))
    all_wide = torch.empty_like(all_probabilities)
    for start in range(0, len(rows), size or 1):
        chunk = slice(start, min(start + size, len(rows)))
        count = chunk.stop - chunk.start
        logits, wide, probabilities = all_logits[:count], all_wide[:count], all_probabilities[:count]
        if offset is None:
            torch.mm(rows[chunk], matrix, out=logits)
        else:
            torch.addmm(offset, rows[chunk], matrix, out=logits)
        torch.softmax(wide.copy_(logits), dim=-1, out=probabilities)
        yield chunk, logits, probabilities


def _nats(logits: Tensor, probabilities: Tensor, targets: Tensor) -> Tensor:
    """-ln softmax(logits)[target] of each row, from logits and their softmax, in the latter's dtype.

    The largest probability is exp(largest logit - log-sum-exp) and at least 1 / V, so its logarithm gives
    the log-sum-exp without underflow and without a second pass of exponentials.
    """
    wide = probabilities.dtype
    log_sum_exp = logits.amax(dim=-1).to(wide) - probabilities.amax(dim=-1).log()
    return log_sum_exp - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1).to(wide)
