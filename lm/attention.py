"""One meaning of attention, several backends that agree to rounding.

    attention(Q, K, V) = softmax(Q K^T / sqrt(D) + mask) V        (Vaswani et al. 2017, equation 1)

Every backend maps q (B, H, T, D), k and v (B, H, S, D), all of one dtype, to (B, H, T, D). With `causal`
the T queries are the last T of the S positions: query i sees keys 0 to S - T + i.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Backend = Callable[..., Tensor]

QUERY_BLOCK = 128  # queries handled together by `blocked`; at 64 and 256 it is slower on the CPU
LONGEST_BLOCKED = 2048  # from here on the T x T weights kept for the backward pass cost too much memory


def causal_mask(queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(queries, keys): 0 where a query sees a key, minus infinity where the key is in its future."""
    future = torch.full((queries, keys), -math.inf, device=device, dtype=dtype)
    return future.triu(diagonal=keys - queries + 1)


def reference(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
    """The formula as in a textbook, in the dtype of its inputs: the oracle in tests."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + causal_mask(q.shape[-2], k.shape[-2], q.device, q.dtype)
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
    return weights @ v


def blocked(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
    """The same for a block of queries at a time, which leaves out the keys that no query of the block sees.

    Scale and mask ride along in the first matrix product. On the CPU in bfloat16 this takes half the time
    of `sdpa` at T = 256 and nine tenths at T = 1,024, forward and backward (heads of 64, 2 cores of Zen 4).
    """
    batch, heads, length, width = q.shape
    keys = k.shape[-2]
    q, k, v = (x.reshape(batch * heads, -1, width) for x in (q, k, v))
    scale = 1.0 / math.sqrt(width)
    if not causal:
        scores = torch.baddbmm(q.new_zeros(1), q, k.transpose(1, 2), beta=0.0, alpha=scale)
        weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
        return torch.bmm(weights, v).view(batch, heads, length, width)
    mask = causal_mask(length, keys, q.device, q.dtype)
    outputs = []
    for start in range(0, length, QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, length)
        seen = keys - length + stop
        bias = mask[start:stop, :seen].expand(batch * heads, -1, -1)
        scores = torch.baddbmm(bias, q[:, start:stop], k[:, :seen].transpose(1, 2), alpha=scale)
        weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
        outputs.append(torch.bmm(weights, v[:, :seen]))
    return torch.cat(outputs, dim=1).view(batch, heads, length, width)


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
    """PyTorch's fused kernel: no T x T tensor is kept."""
    queries, keys = q.shape[-2], k.shape[-2]
    if not causal or queries == 1:  # a last query alone sees every key
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    mask = causal_mask(queries, keys, q.device, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def auto(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
    """The fastest of the others for this device, dtype and length.

    On the CPU in bfloat16 matrix products have their own instructions, which the fused kernel makes little
    use of; for a single query (generation) there is no T x T tensor to avoid, and it wins.
    """
    on_cpu_in_bfloat16 = q.device.type == "cpu" and q.dtype == torch.bfloat16
    if on_cpu_in_bfloat16 and 1 < q.shape[-2] < LONGEST_BLOCKED:
        return blocked(q, k, v, causal=causal, dropout=dropout)
    return sdpa(q, k, v, causal=causal, dropout=dropout)


BACKENDS: dict[str, Backend] = {"auto": auto, "sdpa": sdpa, "blocked": blocked, "reference": reference}
