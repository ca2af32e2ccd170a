"""Compute the loss of logits, and overwrite the logits with its gradient.

`Scorer` runs eagerly; its buffers and tiles fit in the cache of a CPU. `fused_score` is the same formula for
torch.compile, and `lm.logit_loss_triton` the same as a kernel for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

CPU_SCORED_ROWS = 64  # rows of 16-bit logits scored in float32 at a time: they stay in the cache


class Variant(NamedTuple):
    """Options of the loss; by default it is the cross-entropy."""

    soft_cap: float = 0.0
    label_smoothing: float = 0.0
    z_loss: float = 0.0


FusedScore = Callable[[Tensor, Tensor | None, Tensor, int, Variant, bool], Tensor]
"""The type of `fused_score`"""


def fused_score(
    logits: Tensor, bias: Tensor | None, targets: Tensor, entries: int, variant: Variant, graded: bool
) -> Tensor:
    """Return the losses (n,) of logits (n, P) plus bias (V,) in nats; if `graded`, the gradient replaces the logits.

    Only the first V = `entries` columns count; the gradient of the others is 0. Compile this function: in eager mode,
    each line allocates a float32 tensor as large as the logits.
    """
    target, columns = targets.unsqueeze(-1), torch.arange(logits.shape[-1], device=logits.device)
    padding = columns >= entries if entries < len(columns) else None
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        z = z + F.pad(bias, (0, len(columns) - entries))
    if variant.soft_cap:
        z = variant.soft_cap * torch.tanh(z / variant.soft_cap)
    mean = _fill(z, padding, 0.0).sum(dim=-1) / entries if variant.label_smoothing else None
    z = _fill(z, padding, -torch.inf)
    # The compiler recognises the next two lines as a softmax and computes both reductions in one pass.
    largest = z.amax(dim=-1, keepdim=True)
    excess = (z - largest).exp().sum(dim=-1, keepdim=True).log()
    log_sum_exp = largest + excess
    nll = _nll(z.gather(-1, target).squeeze(-1), mean, largest.squeeze(-1), excess.squeeze(-1), variant)
    if graded:
        gradient = (z - log_sum_exp).exp() * (1.0 + 2.0 * variant.z_loss * log_sum_exp)
        gradient = gradient - torch.where(columns == target, 1.0 - variant.label_smoothing, 0.0)
        gradient = gradient - variant.label_smoothing / entries
        if variant.soft_cap:
            gradient = gradient * (1.0 - (z / variant.soft_cap).square())
        logits.copy_(_fill(gradient, padding, 0.0))
    return nll


def _fill(z: Tensor, padding: Tensor | None, value: float) -> Tensor:
    return z if padding is None else z.masked_fill(padding, value)


class Scorer:
    """Computes losses and gradients of chunks of logits, in buffers that all chunks share.

    On a CPU, new memory pages from the operating system would take longer than the softmax.
    """

    def __init__(self, logits: Tensor, entries: int, variant: Variant) -> None:
        """Allocate buffers for chunks of at most the size of `logits` (n, P); the first V = `entries` columns count."""
        wide = torch.promote_types(logits.dtype, torch.float32)
        on_cpu, narrow = logits.device.type == "cpu", logits.dtype.itemsize < wide.itemsize
        self._entries, self._variant, self._on_cpu = entries, variant, on_cpu
        self._at_once = min(len(logits), CPU_SCORED_ROWS) if on_cpu and narrow else len(logits)
        self._probabilities = logits.new_empty(self._at_once, logits.shape[-1], dtype=wide)
        # Without a soft cap, a GPU's softmax widens the logits itself.
        self._wide = torch.empty_like(self._probabilities) if narrow and (on_cpu or variant.soft_cap) else None

    def __call__(self, logits: Tensor, targets: Tensor, graded: bool) -> tuple[Tensor, Tensor]:
        """Return the losses (n,) of logits (n, P) in nats and the gradient (n, P), in the dtype of the logits.

        The gradient is valid only if `graded`, and only until the next call. The logits are overwritten.
        """
        losses, gradients = [], logits if logits.dtype != self._probabilities.dtype else self._probabilities
        for part, part_targets in zip(logits.split(self._at_once), targets.split(self._at_once), strict=True):
            exact = part if self._wide is None else self._wide[: len(part)].copy_(part)
            probabilities = self._probabilities[: len(part)]
            if self._variant.soft_cap:
                exact.div_(self._variant.soft_cap).tanh_().mul_(self._variant.soft_cap)
            if self._entries < exact.shape[-1]:
                exact[:, self._entries :] = -torch.inf
            torch.softmax(exact, dim=-1, dtype=probabilities.dtype, out=probabilities)
            largest, excess = self._log_sum_exp(exact, probabilities)
            losses.append(self._losses(exact, largest, excess, part_targets))
            if graded:
                gradient = self._gradient(exact, probabilities, largest + excess, part_targets)
                if gradients is logits:
                    part.copy_(gradient)  # the rounded gradient overwrites the logits
        return torch.cat(losses), gradients[: len(logits)]

    def _log_sum_exp(self, logits: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest logit of each row, and ln sum exp(logits) minus it, in the dtype of `probabilities`.

        `probabilities` are the softmax of the logits. The largest one is exp(largest logit - log-sum-exp) and at least
        1 / V. Its logarithm gives the log-sum-exp without underflow and without a second pass of exponentials.
        """
        if self._on_cpu:  # amax is far faster there than max with indices
            largest = logits.amax(dim=-1).to(probabilities.dtype)
            # On a CPU, softmax adds small exponentials to a large one and loses digits; `sum` adds pairwise.
            return largest, probabilities.sum(dim=-1).log() - probabilities.amax(dim=-1).log()
        largest, place = logits.max(dim=-1, keepdim=True)
        return largest.squeeze(-1).to(probabilities.dtype), -probabilities.gather(-1, place).log().squeeze(-1)

    def _losses(self, logits: Tensor, largest: Tensor, excess: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row in nats, in the dtype of `excess`."""
        expected = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1).to(excess.dtype)
        smoothed = self._variant.label_smoothing > 0.0
        mean = logits[:, : self._entries].mean(dim=-1, dtype=excess.dtype) if smoothed else None
        return _nll(expected, mean, largest, excess, self._variant)

    def _gradient(self, logits: Tensor, probabilities: Tensor, log_sum_exp: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient of the loss with respect to the logits before the cap, in place of `probabilities`.

        With softmax p, smoothing s and z-loss k it is (1 + 2 k lse) p - (1 - s) one_hot - s / V, and a soft cap c
        multiplies it by 1 - (z / c)^2.
        """
        soft_cap, smoothing, z_loss = self._variant
        gradient, target = probabilities, targets.unsqueeze(-1)
        if z_loss:
            gradient *= (1.0 + 2.0 * z_loss * log_sum_exp).unsqueeze(-1)
        gradient.scatter_add_(-1, target, gradient.new_full(target.shape, smoothing - 1.0))
        if smoothing:
            gradient -= smoothing / self._entries
        if soft_cap:
            gradient *= 1.0 - (logits.to(gradient.dtype) / soft_cap).square()
        if self._entries < gradient.shape[-1]:
            gradient[:, self._entries :] = 0.0
        return gradient


def _nll(expected: Tensor, mean: Tensor | None, largest: Tensor, excess: Tensor, variant: Variant) -> Tensor:
    """Return the loss of rows in nats, from the target's logit, the mean logit, the largest logit and the excess.

    All are (n,). The excess is the log-sum-exp minus the largest logit. Added last, it keeps its digits if the logits
    are far from 0.
    """
    if mean is not None:
        expected = (1.0 - variant.label_smoothing) * expected + variant.label_smoothing * mean
    nll = largest - expected + excess
    return nll + variant.z_loss * (largest + excess).square() if variant.z_loss else nll
