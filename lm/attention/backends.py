"""Attention backends: several implementations of one formula that agree to rounding.

    attention(Q, K, V) = softmax(Q K^T / sqrt(D) + mask) V        (Vaswani et al. 2017, equation 1)

Every backend maps q (B, H, T, D), k and v (B, G, S, D), all of one dtype, to (B, H, T, D). G divides H: query head h
reads key head h // (H / G) (Ainslie et al. 2023). The output of a fully masked query is zero. `scale` replaces
1 / sqrt(D), and `dropout` is the share of weights that are zeroed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lm.attention.closed_form import closed_form
from lm.attention.tiles import added_by_group, by_group, default_scale, group_size, row_blocks
from lm.masks import Mask

Backend = Callable[..., Tensor]

WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, *WITHOUT_CUDNN]
CUDNN_LENGTHS = 128  # older versions of cuDNN err at lengths that are no multiple of this
LONG = 512  # keys from which `closed_form` is faster than `blocked`
LONGEST_BLOCKED = 2048  # keys from which `blocked` keeps too much memory in T x T weights for the backward pass


def reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """The formula as in a textbook, in the dtype of its inputs: the oracle in tests."""
    weights = attention_weights(masked_scores(q, k, mask, scale), mask)
    return F.dropout(weights, dropout) @ v.repeat_interleave(group_size(q, v), dim=1)


def masked_scores(q: Tensor, k: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """Return the scores (B, H, T, S) with the mask's bias, and minus infinity at hidden keys."""
    scores = q @ k.repeat_interleave(group_size(q, k), dim=1).transpose(-2, -1) * default_scale(q, scale)
    return hide(scores, mask)


def hide(scores: Tensor, mask: Mask) -> Tensor:
    """Return scores (B, H, T, S) with the mask's bias, and minus infinity at hidden keys."""
    if mask.bias is not None:
        scores = scores + mask.bias.to(scores.dtype)
    visible = mask.visible(scores.shape[-2], scores.shape[-1], scores.device)
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def attention_weights(scores: Tensor, mask: Mask) -> Tensor:
    """Return the softmax of `masked_scores` over the keys; zeros for fully masked queries."""
    weights = torch.softmax(scores, dim=-1)
    if mask.present is None:
        return weights
    fully_masked = mask.fully_masked(mask.visible(scores.shape[-2], scores.shape[-1], scores.device))
    return weights if fully_masked is None else weights.masked_fill(fully_masked, 0.0)


def blocked(q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None = None, dropout: float = 0.0) -> Tensor:
    """Attention of a block of queries at a time, over the keys that at least one of them attends to.

    The first matrix product adds the mask and applies the scale. On the CPU in bfloat16 this takes half the time of
    `sdpa` at T = 256 and nine tenths at T = 1,024, forward and backward (heads of 64, 2 cores of Zen 4).
    """
    queries, keys = q.shape[-2], k.shape[-2]
    group_size(q, k)
    scale = default_scale(q, scale)
    outputs = []
    for rows, columns in row_blocks(mask, queries, keys, most=queries):
        additive, fully_masked = mask.for_softmax(queries, keys, q.dtype, q.device, rows, columns)
        out = _block(q[:, :, rows], k[:, :, columns], v[:, :, columns], additive, scale, dropout)
        outputs.append(out if fully_masked is None else out.masked_fill(fully_masked, 0.0))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-2)


def _block(q: Tensor, k: Tensor, v: Tensor, additive: Tensor | None, scale: float, dropout: float) -> Tensor:
    """Attention of q (B, H, t, D) over k and v (B, G, s, D)."""
    batch, heads, rows, _ = q.shape
    groups = k.shape[1]
    q, k, v = (by_group(x, groups) for x in (q, k, v))
    if additive is None:
        scores = torch.baddbmm(q.new_zeros(1), q, k.mT, beta=0.0, alpha=scale)
    else:
        scores = torch.baddbmm(added_by_group(additive, batch, heads, groups, rows), q, k.mT, alpha=scale)
    weights = F.dropout(torch.softmax(scores, dim=-1), dropout)
    return torch.bmm(weights, v).view(batch, heads, rows, -1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None = None, dropout: float = 0.0) -> Tensor:
    """PyTorch's fused kernels, which keep no T x S weights."""
    queries, keys = q.shape[-2], k.shape[-2]
    if mask.plain_causal(queries, keys):
        return _fused(q, k, v, None, scale, dropout, causal=True)
    mask, columns = mask.crop(queries, keys)
    k, v = k[:, :, columns], v[:, :, columns]
    keys = k.shape[-2]
    attn_mask = mask.visible(queries, keys, q.device)
    fully_masked = mask.fully_masked(attn_mask)
    if attn_mask is not None and fully_masked is not None:
        attn_mask = attn_mask | fully_masked  # kernels disagree about fully masked queries
    if mask.bias is not None:
        bias = mask.bias.to(q.dtype)
        attn_mask = bias if attn_mask is None else bias.masked_fill(~attn_mask, -math.inf)
    out = _fused(q, k, v, attn_mask, scale, dropout)
    return out if fully_masked is None else out.masked_fill(fully_masked, 0.0)


def _fused(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float | None, dropout: float, causal: bool = False
) -> Tensor:
    """PyTorch's attention; on a GPU grouped keys and values are repeated if no fused kernel reads them.

    Only Flash reads groups there, and it takes neither a mask nor float32. The fallback keeps T x S scores.
    """
    group = group_size(q, k)
    if group > 1 and q.device.type == "cuda" and (attn_mask is not None or q.dtype == torch.float32):
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        group = 1
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=group > 1
    )


def fused_kernels(device: torch.device, plain: bool, length: int) -> AbstractContextManager[None]:
    """Return a context in which `sdpa` on a GPU prefers cuDNN's kernels, or leaves them out.

    They are the fastest for `plain` attention: no mask but causality, and the same `length` T in every call. They save
    GPT-2 124M 10 ms of a step compared with FlashAttention 2 (64 blocks of 1,024 tokens, H100). All other attention
    leaves them out: cuDNN plans each new shape for a second, and its gradients with some masks are reported to be
    wrong. So do deterministic training, and lengths that are no multiple of CUDNN_LENGTHS.
    """
    if device.type in ("cpu", "mps"):
        return nullcontext()
    if plain and length % CUDNN_LENGTHS == 0 and not torch.are_deterministic_algorithms_enabled():
        return sdpa_kernel(CUDNN_FIRST, set_priority=True)
    return sdpa_kernel(WITHOUT_CUDNN)


def flex(q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None = None, dropout: float = 0.0) -> Tensor:
    """PyTorch's FlexAttention if it has a kernel worth compiling; else `sdpa`, as in training on the CPU."""
    assert dropout == 0.0, "a configuration with dropout has another backend"
    from lm.attention import flex as kernel  # imports the compiler's front end, which no other backend needs

    if not kernel.is_supported(q, k, v, mask):
        return sdpa(q, k, v, mask, scale=scale)
    return kernel.attend(q, k, v, mask, default_scale(q, scale))


def auto(q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None = None, dropout: float = 0.0) -> Tensor:
    """The fastest other backend for this device, dtype, length and mask."""
    compiled = torch.compiler.is_compiling()
    name = fastest(q.device.type, q.dtype, q.shape[-2], k.shape[-2], mask.window, dropout > 0.0, compiled)
    return BACKENDS[name](q, k, v, mask, scale=scale, dropout=dropout)


def fastest(
    device: str, dtype: torch.dtype, queries: int, keys: int, window: int, dropout: bool, compiled: bool
) -> str:
    """Return the name of the fastest backend that supports the arguments, measured in benchmarks/results/attention.

    On a CPU, the fused kernel uses little of the instructions for bfloat16 products, and reads all keys whatever the
    window. It is fastest for a single query (generation). On a GPU it is always chosen: nothing else was measured
    there. `flex` is never chosen, because it compiles for each shape.
    """
    narrow_window = 0 < 2 * window <= keys
    if device != "cpu" or queries == 1 or not (narrow_window or dtype == torch.bfloat16):
        return "sdpa"
    if keys < LONG:
        return "blocked"
    if not (dropout or compiled):
        return "closed_form"
    return "blocked" if narrow_window or keys < LONGEST_BLOCKED else "sdpa"


BACKENDS: dict[str, Backend] = {
    "auto": auto,
    "sdpa": sdpa,
    "blocked": blocked,
    "closed_form": closed_form,
    "flex": flex,
    "reference": reference,
}
