"""Find the temperature that calibrates a model best (Guo et al. 2017, section 4.2)."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

LOWEST, HIGHEST = 0.05, 20.0
STEPS = 30

Chunks = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Function that returns the same pairs of logits (N, V) and targets (N,) int64 at every call"""


def best_temperature(chunks: Chunks) -> tuple[float, float]:
    """Return (T, gain): the T that minimises the mean of -ln softmax(logits / T)[target], and its gain.

    The gain is the mean loss at T = 1 minus the mean loss at the best T, in nats per token. The loss is convex in
    1 / T: Newton's method inside a bracket finds its minimum for T from 0.05 to 20. Equal logits give (1, 0).
    """
    low, high, inverse = 1 / HIGHEST, 1 / LOWEST, 1.0
    start, slope, curvature = _loss(chunks, inverse)
    best = start
    for _ in range(STEPS):
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        following = inverse - slope / curvature if curvature > 0 else inverse
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
    for logits, targets in chunks():
        z = logits.float() - logits.float().amax(dim=-1, keepdim=True)
        log_p = torch.log_softmax(inverse * z, dim=-1)
        p, target = log_p.exp(), targets.unsqueeze(-1)
        mean = (p * z).sum(dim=-1, keepdim=True)
        variance = (p * (z - mean).square()).sum(dim=-1)
        parts = (-log_p.gather(-1, target), mean - z.gather(-1, target), variance)
        sums += torch.stack([part.double().sum() for part in parts]).cpu()
        count += len(targets)
    loss, slope, curvature = (sums / count).tolist()
    return loss, slope, curvature
