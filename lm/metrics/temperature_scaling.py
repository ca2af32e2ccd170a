"""Find the temperature that calibrates a model best (Guo et al. 2017, section 4.2)."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from lm.metrics.predictions import Softmax, tiles

LOWEST, HIGHEST = 0.05, 20.0
STEPS = 30

Chunks = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Function that returns the same pairs of logits (N, V) and targets (N,) int64 at every call"""


def best_temperature(chunks: Chunks) -> tuple[float, float]:
    """Return (T, gain): the T that minimises the mean of -ln softmax(logits / T)[target], and its gain.

    The gain is the mean loss at T = 1 minus the mean loss at the best T, in nats per token. The loss is convex in
    1 / T: Newton's method inside a bracket finds its minimum for T from 0.05 to 20. Equal logits give (1, 0), as do
    predictions of probability 1 that are all right.
    """
    low, high, inverse = 1 / HIGHEST, 1 / LOWEST, 1.0
    start, slope, curvature = _loss(chunks, inverse)
    best = start
    for _ in range(STEPS):
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        on_a_line = math.inf if slope else inverse  # the loss is a line where all probabilities round to 0 or 1
        following = inverse - slope / curvature if curvature > 0 else on_a_line
        if not low <= following <= high:
            following = math.sqrt(low * high)
        if abs(following - inverse) < 1e-4 * inverse:
            break
        inverse = following
        best, slope, curvature = _loss(chunks, inverse)
    return 1 / inverse, start - best


@torch.no_grad()
def _loss(chunks: Chunks, inverse: float) -> tuple[float, float, float]:
    """Return the mean loss at temperature 1 / `inverse`, and its first two derivatives with respect to `inverse`."""
    sums, count = torch.zeros(3, dtype=torch.float64), 0
    for all_logits, all_targets in chunks():
        for logits, target in tiles(all_logits, all_targets.unsqueeze(-1)):
            z = logits.float()
            softmax = Softmax.of(inverse * (z - z.amax(dim=-1, keepdim=True)))
            scaled = softmax.centred  # inverse times z, at most 0
            p = softmax.rest.mul_((-softmax.excess).exp().to(z.dtype).unsqueeze(-1))  # 0 where `scaled` is 0
            mean = p.mul_(scaled).sum(dim=-1).double()
            mean_square = p.mul_(scaled).sum(dim=-1).double()
            expected = scaled.gather(-1, target).squeeze(-1).double()
            parts = (softmax.excess - expected, mean - expected, mean_square - mean.square())
            sums += torch.stack([part.sum() for part in parts]).cpu()
            count += len(target)
    loss, slope, curvature = (sums / count).tolist()
    return loss, slope / inverse, curvature / inverse**2
