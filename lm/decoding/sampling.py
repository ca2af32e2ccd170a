"""Sampling as pure functions: filters map logits to logits; `greedy`, `draw` and `sample` map logits to ids.

Logits are (..., V) of any float dtype. A filter sets excluded entries to minus infinity, so filters compose and the
softmax in `draw` renormalises the rest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST = 1e-30
"""Smaller temperatures and top_p are replaced by this one, because they would overflow or become 0 in float32."""


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature: below 1 sharper, above 1 flatter, near 0 all on the largest."""
    if not temperature > 0.0:
        raise ValueError(f"temperature is {temperature}: give a positive number, or choose greedily")
    return logits / max(temperature, LEAST)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits (Fan et al. 2018), and all that equal the smallest of them."""
    if k < 1:
        raise ValueError(f"top_k is {k}: keep at least 1 token")
    smallest_kept = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < smallest_kept, -math.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the nucleus: the fewest most likely tokens whose probability reaches p (Holtzman et al. 2020)."""
    if not 0.0 < p <= 1.0:
        raise ValueError(f"top_p is {p}: give a probability above 0 and up to 1")
    if p == 1.0:
        return logits  # rounding makes the sum reach 1 before the last token
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ordered.float(), dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # sum over higher ranks; 0 for the first
    excluded = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= max(p, LEAST))
    return logits.masked_fill(excluded, -math.inf)


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens at least p times as probable as the likeliest (Nguyen et al. 2024)."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"min_p is {p}: give a share of the largest probability, from 0 to 1")
    if p == 0.0:
        return logits
    # p(token) >= p * p(best) bounds the difference of their logits; the softmax cancels out.
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(p), -math.inf)


def penalize_repetition(logits: Tensor, ids: Tensor, penalty: float, present: Tensor | None = None) -> Tensor:
    """Lower the logits (B, V) of tokens that occur in ids (B, T) int64, once however often they occur.

    A positive logit is divided by the penalty, a negative one multiplied. (Keskar et al. 2019, 4.1, always divide,
    which rewards a negative logit.) A penalty of 1 changes nothing. `present` (B, T) bool is False at ids to ignore.
    """
    if not penalty > 0.0:
        raise ValueError(f"repetition_penalty is {penalty}: give a positive number such as 1.2, or 1 for none")
    present = torch.ones_like(ids, dtype=torch.bool) if present is None else present
    # amax: an id that occurs both at padding and elsewhere counts
    occurs = torch.zeros_like(logits, dtype=torch.uint8).scatter_reduce(-1, ids, present.to(torch.uint8), "amax").bool()
    return torch.where(occurs, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_allowed(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """Keep the ids for which `allowed` (V,) bool is True, or all if it is None."""
    return logits if allowed is None else logits.masked_fill(~allowed, -math.inf)


def greedy(logits: Tensor) -> Tensor:
    """Return the likeliest id, the first of equals: (..., V) to (...) int64."""
    wide = torch.promote_types(logits.dtype, torch.float32)  # argmax in bfloat16 takes four times as long
    return logits.to(wide).argmax(dim=-1)


def draw(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return an id drawn from softmax(logits): (..., V) to (...) int64. The generator is on the logits' device."""
    probabilities = torch.softmax(logits.float(), dim=-1)
    ids = torch.multinomial(probabilities.reshape(-1, logits.shape[-1]), num_samples=1, generator=generator)
    return ids.view(logits.shape[:-1])


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Apply temperature, top-k, top-p and min-p in this order, then draw an id: (..., V) to (...) int64.

    Temperature 0 is greedy.
    """
    if temperature == 0.0:
        return greedy(logits)
    logits = apply_temperature(logits.float(), temperature)
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)
    if min_p is not None:
        logits = keep_min_p(logits, min_p)
    return draw(logits, generator)
