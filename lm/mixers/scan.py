"""The scan of linear attention and of all mixers whose state decays by one factor a head and position.

Axes: B sequences, T positions, H heads, N features of queries and keys, P features of values, C positions of a chunk.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm.mixers.scan_costs import CHUNK


def chunked_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    segments: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return y_t = q_t S_t (B, H, T, P), where S_t = a_t S_(t-1) + k_t v_t^T, and the state after T positions.

    q and k are (B, H, T, N), or (B, 1, T, N) if all heads share them, and v is (B, H, T, P). `log_decay` ln(a_t)
    (B or 1, H, T), not above 0; a_t is 1 without it. `state` (B, H, N, P) is S before the first position. Without it
    S starts at 0, and no state is returned.

    Within a chunk, y_t sums exp(l_t - l_s) (q_t k_s) v_s over s <= t, with l the cumulative sum of ln(a): two matrix
    products. Between chunks only S is carried. So T positions cost T C + T N, not T^2 (Yang et al. 2024, 4; Dao and
    Gu 2024, 6). The differences of l are at most 0, so no exponential overflows.

    With `segments` (B, T), S starts at 0 where the segment changes; a segment that has ended does not come back.
    """
    length, wanted = q.shape[-2], state is not None
    outputs = []
    last: Tensor | None = None  # segment of the state
    for start in range(0, length, CHUNK):
        part = slice(start, min(start + CHUNK, length))
        own = None if segments is None else segments[:, part]
        decay = None if log_decay is None else log_decay[..., part].cumsum(-1)
        queries, keys, values = q[:, :, part], k[:, :, part], v[:, :, part]
        mixed = _weights(queries @ keys.transpose(-1, -2), decay, own) @ values
        if state is not None:
            seen = queries if decay is None else queries * decay.exp().unsqueeze(-1)
            mixed = mixed + _erase_others(seen, own, last) @ state
        outputs.append(mixed)
        if wanted or part.stop < length:
            state = _next_state(state, keys, values, decay, own, last)
            last = None if own is None else own[:, -1:]
    return torch.cat(outputs, dim=-2) if len(outputs) > 1 else outputs[0], state if wanted else None


def _weights(scores: Tensor, decay: Tensor | None, segments: Tensor | None) -> Tensor:
    """Return the weights (B, H, C, C) of the values, from `scores` (B, 1 or H, C, C) and the cumulative `decay`."""
    size = scores.shape[-1]
    hidden = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
    if segments is not None:
        hidden = hidden | (segments[:, None, :, None] != segments[:, None, None, :])
    if decay is None:
        return scores.masked_fill(hidden, 0.0)
    between = decay.unsqueeze(-1) - decay.unsqueeze(-2)
    return scores * between.masked_fill(hidden, -math.inf).exp()


def _next_state(
    state: Tensor | None,
    keys: Tensor,
    values: Tensor,
    decay: Tensor | None,
    segments: Tensor | None,
    last: Tensor | None,
) -> Tensor:
    """Return the state after a chunk; `last` (B, 1) is the segment of `state`."""
    if decay is not None:
        keys = keys * (decay[..., -1:] - decay).exp().unsqueeze(-1)
    if segments is not None:
        keys = _erase_others(keys, segments, segments[:, -1:])
    added = keys.transpose(-1, -2) @ values
    if state is None:
        return added
    if decay is not None:
        state = state * decay[..., -1:, None].exp()
    if segments is not None and last is not None:
        state = state * (segments[:, -1:] == last).to(state.dtype)[:, :, None, None]
    return state + added


def _erase_others(x: Tensor, segments: Tensor | None, segment: Tensor | None) -> Tensor:
    """Return x (B, H, C, N) with zeros where `segments` (B, C) is not `segment` (B, 1)."""
    if segments is None or segment is None:
        return x
    return x * (segments == segment).to(x.dtype)[:, None, :, None]
