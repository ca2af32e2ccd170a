"""Cross-entropy of a linear output layer, without ever holding all of its logits.

With N rows and V entries the logits of one step are N x V numbers, more than the rest of a small model's
activations together. Here a chunk of rows at a time is multiplied out, scored, turned into its gradient
(softmax minus one-hot) and multiplied back, all in the forward pass: nothing is kept, nothing recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Logits at a time, at most.
CHUNK_ELEMENTS = {"cpu": 2**25, "cuda": 2**28}
# And rows of them on a CPU, or of narrow ones on each of its cores: of fewer, products read the whole output matrix for
# too little, and the sum of its gradient is read and written too often; of more, passes over the logits read memory.
CPU_ROWS, CPU_NARROW_ROWS = 512, 1024
# Narrow ones are scored in float32 so many rows at a time that these stay in the cache.
CPU_SCORED_ROWS = 64


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
) -> Tensor:
    """Sum over rows n of weights[n] * -ln softmax(z)[targets[n]], z = rows[n] W^T + b, in nats.

    rows (N, width); weight (V, width) and bias (V,) of any float dtype, cast to that of rows; targets (N,)
    int64 in [0, V); weights (N,) constants, 1 where None. Logits have the dtype of rows, their log-sum-exp and the sum
    are float32 (float64 for float64 rows): a scalar of that dtype. Differentiable once, with respect to
    rows, weight and bias.

    With `soft_cap` c, z becomes c tanh(z / c) (Gemma Team 2024). With `label_smoothing` s, the target has probability
    1 - s + s / V and every other entry s / V (Szegedy et al. 2016). With `z_loss` k, k times the squared log-sum-exp
    of z is added (Chowdhery et al. 2023). The last two are for training: they are no cross-entropy of the data.
    """
    wide = torch.promote_types(rows.dtype, torch.float32)
    variant = Variant(soft_cap, label_smoothing, z_loss)
    if weights is None:
        weights = rows.new_ones(len(rows), dtype=wide)
    differentiable = rows.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and differentiable:
        return _LinearCrossEntropy.apply(rows, weight, bias, targets, weights, variant)
    total = rows.new_zeros((), dtype=wide)
    for chunk, nats, _ in _scored_chunks(rows, weight.to(rows.dtype), bias, targets, variant, graded=False):
        total += (nats * weights[chunk]).sum()
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradient of nats with respect to logits is softmax - one_hot; the rest is two matrix products."""

    @staticmethod
    def forward(ctx, rows, weight, bias, targets, weights, variant):
        wide = torch.promote_types(rows.dtype, torch.float32)
        matrix = weight.to(rows.dtype)
        rows_gradient = torch.empty_like(rows)
        weight_gradient = torch.zeros_like(weight, dtype=wide)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=wide)
        total = rows.new_zeros((), dtype=wide)
        for chunk, nats, gradient in _scored_chunks(rows, matrix, bias, targets, variant):
            scale = weights[chunk].to(wide)
            total += (nats * scale).sum()
            # Weights scale the narrow side of each product: a pass over the logits less.
            narrow = scale.to(rows.dtype)
            if bias_gradient is not None:
                bias_gradient += narrow @ gradient
            rows_gradient[chunk] = (gradient @ matrix) * narrow.unsqueeze(-1)
            weighted = rows[chunk] * narrow.unsqueeze(-1)
            if weighted.dtype == wide:
                weight_gradient.addmm_(gradient.T, weighted)
            elif chunk.start == 0:
                weight_gradient.copy_(gradient.T @ weighted)  # in a third of the time that adding it to zeros takes
            else:
                weight_gradient += gradient.T @ weighted
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
        return rows_gradient, (weight_gradient * upstream).to(weight_dtype), bias_gradient, None, None, None


def _scored_chunks(
    rows: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor, variant: Variant, graded: bool = True
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(rows of the chunk, what each costs in nats (n,), the gradient of that with respect to its logits (n, V) in the
    dtype of rows), the last in a buffer that is used again and again, and worked out only where `graded`.

    Fresh ones for every chunk would come from the operating system page by page, which on the CPU takes
    longer than the softmax.
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
        nats = []
        for some, scored in zip(logits.split(at_once), targets[chunk].split(at_once), strict=True):
            exact = some if same else all_wide[: len(some)].copy_(some)
            probabilities = all_probabilities[: len(some)]
            if variant.soft_cap:
                exact.div_(variant.soft_cap).tanh_().mul_(variant.soft_cap)
            torch.softmax(exact, dim=-1, out=probabilities)
            log_sum_exp = _log_sum_exp(exact, probabilities)
            nats.append(_nats(exact, log_sum_exp, scored, variant))
            if graded:
                gradient = _gradient(exact, probabilities, log_sum_exp, scored, variant)
                if not same:
                    some.copy_(gradient)  # the logits are spent: their memory takes the rounded gradient
        yield chunk, torch.cat(nats), all_probabilities[: len(logits)] if same else logits


def _chunk_size(rows: Tensor, entries: int) -> tuple[int, int]:
    """How many rows are multiplied out at a time, and of these scored."""
    kind = "cuda" if rows.device.type == "cuda" else "cpu"
    size = max(1, CHUNK_ELEMENTS[kind] // entries)
    narrow = rows.dtype.itemsize < torch.float32.itemsize
    if kind == "cpu":
        size = min(size, torch.get_num_threads() * CPU_NARROW_ROWS if narrow else CPU_ROWS)
    size = min(size, len(rows))
    return size, min(size, CPU_SCORED_ROWS) if kind == "cpu" and narrow else size


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
    gradient.scatter_add_(-1, target, gradient.new_full(target.shape, variant.label_smoothing - 1.0))
    if variant.label_smoothing:
        gradient -= variant.label_smoothing / gradient.shape[-1]
    if variant.soft_cap:
        gradient *= 1.0 - (logits.to(gradient.dtype) / variant.soft_cap).square()
    return gradient
