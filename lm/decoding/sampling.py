"""From logits to a token: pure functions. Filters map logits to logits, `greedy` and `draw` choose ids.

Logits are (..., V) of any float dtype; a filter sets what it excludes to minus infinity, so that filters
compose and what is left is renormalised by the softmax of `draw`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def temperature(logits: Tensor, value: float) -> Tensor:
    """logits / value: below 1 sharper, above 1 flatter; near 0 the largest takes all."""
    if not value > 0.0:
        raise ValueError(f"temperature is {value}: give a positive number, or choose greedily")
    return logits / value


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits (Fan et al. 2018); of equal ones at the edge, all."""
    if k < 1:
        raise ValueError(f"top_k is {k}: keep at least 1 token")
    smallest_kept = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest_kept, -math.inf)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the nucleus: the fewest most likely tokens whose probability reaches p (Holtzman et al. 2020)."""
    if not 0.0 < p <= 1.0:
        raise ValueError(f"top_p is {p}: give a probability above 0 and up to 1")
    if p == 1.0:
        return logits  # sums of many probabilities round up to it before the last
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ordered.float(), dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # of all that rank higher; 0 for the first
    excluded = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= p)
    return logits.masked_fill(excluded, -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens at least p times as probable as the likeliest (Nguyen et al. 2024): few where it is sure."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"min_p is {p}: give a share of the largest probability, from 0 to 1")
    if p == 0.0:
        return logits
    # p(token) >= p * p(best) is a distance between their logits: the softmax cancels out
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(p), -math.inf)


def repetition_penalty(logits: Tensor, ids: Tensor, penalty: float, present: Tensor | None = None) -> Tensor:
    """Make what has been said less likely: of each of `ids`, a positive logit is divided by the penalty and a
    negative one multiplied (Keskar et al. 2019, 4.1, who divide, which for a negative logit would reward).

    logits (B, V), ids (B, T) int64; however often a token was said, it is penalised once. `present` (B, T) bool
    is False at padding, which counts as not said. A penalty of 1 changes nothing.
    """
    if not penalty > 0.0:
        raise ValueError(f"repetition_penalty is {penalty}: give a positive number such as 1.2, or 1 for none")
    said = torch.ones_like(ids, dtype=torch.bool) if present is None else present
    # amax: where padding holds an id that was also said, the latter wins
    said = torch.zeros_like(logits, dtype=torch.uint8).scatter_reduce(-1, ids, said.to(torch.uint8), "amax").bool()
    return torch.where(said, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def only(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Keep the ids for which `allowed` (V,) bool is True; all where it is None."""
    return logits if allowed is None else logits.masked_fill(~allowed, -math.inf)


def greedy(logits: Tensor) -> Tensor:
    """The most likely id, the first of equals: (..., V) to (...) int64."""
    wide = torch.promote_types(logits.dtype, torch.float32)  # the search in bfloat16 takes four times as long
    return logits.to(wide).argmax(dim=-1)


def draw(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """An id from softmax(logits): (..., V) to (...) int64. The generator lives on the logits' device."""
    probabilities = torch.softmax(logits.float(), dim=-1)
    ids = torch.multinomial(probabilities.reshape(-1, logits.shape[-1]), num_samples=1, generator=generator)
    return ids.view(logits.shape[:-1])


def choose(
    logits: Tensor,
    *,
    temperature_value: float = 1.0,
    k: int | None = None,
    p: float | None = None,
    smallest_share: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Temperature, top-k, top-p, min-p (each of what the one before left), then a draw; temperature 0 is greedy.

    (..., V) to (...) int64. `smallest_share` is `min_p`'s p.
    """
    if temperature_value == 0.0:
        return greedy(logits)
    logits = temperature(logits.float(), temperature_value)
    if k is not None:
        logits = top_k(logits, k)
    if p is not None:
        logits = top_p(logits, p)
    if smallest_share is not None:
        logits = min_p(logits, smallest_share)
    return draw(logits, generator)
