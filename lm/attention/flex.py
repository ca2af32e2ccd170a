"""PyTorch's FlexAttention: a kernel compiled for a mask, which skips blocks of keys and never makes a T x S tensor.

The mask is a table of blocks of 128 x 128 scores, made from the first and last position (and segment) of each block,
and a function of indices for the blocks that are seen in part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from lm.attention.tiles import group_size
from lm.masks import Mask

BLOCK = 128
SHORTEST_ON_CPU = 512
NARROWEST_ON_GPU = 16  # components of a head: Triton's matrix products take no fewer
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_compiled = functools.cache(lambda: torch.compile(flex_attention))


def supported(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Whether there is a kernel that is worth its compilation.

    There is none for float64, on a GPU none for heads of fewer than 16 components, and on the CPU none with a backward
    pass; a new query over a KV cache would need one for each length, and short sequences on the CPU have no large
    tensor to avoid.
    """
    if q.dtype not in DTYPES or q.shape[-2] != k.shape[-2]:
        return False
    if q.device.type != "cpu":
        return min(q.shape[-1], v.shape[-1]) >= NARROWEST_ON_GPU
    wants_gradients = any(x is not None and x.requires_grad for x in (q, k, v, mask.bias))
    return q.shape[-2] >= SHORTEST_ON_CPU and not (wants_gradients and torch.is_grad_enabled())


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """q (B, H, T, D), k and v (B, G, T, D) to (B, H, T, D), compiled at the first call for a shape: 10 s and more."""
    if not torch.is_grad_enabled():
        q, k, v = q.detach(), k.detach(), v.detach()  # views of parameters still say that they require gradients
    options = {"scale": scale, "enable_gqa": group_size(q, k) > 1}
    blocks = block_mask(mask, q.shape[-2], k.shape[-2], q.device)
    return _compiled()(q, k, v, score_mod=score_modifier(mask), block_mask=blocks, **options)


def score_modifier(mask: Mask) -> Callable[..., Tensor] | None:
    """Adds `mask.bias` to a score, given by (score, sequence, head, query, key); None where there is none."""
    bias = mask.bias
    if bias is None:
        return None
    if len(bias) == 1:
        return lambda score, b, h, i, j: score + bias[0, h, i, j].to(score.dtype)
    return lambda score, b, h, i, j: score + bias[b, h, i, j].to(score.dtype)


def block_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask | None:
    """`mask` without its bias, as FlexAttention reads it; None where everything is seen."""
    if mask.segments is None and mask.present is None:
        return _by_position(mask.causal, mask.window, queries, keys, device)
    return _block_mask(mask, queries, keys, device)


@functools.lru_cache(maxsize=64)
def _by_position(causal: bool, window: int, queries: int, keys: int, device: torch.device) -> BlockMask | None:
    if not (causal or window):
        return None
    return _block_mask(Mask(causal=causal, window=window), queries, keys, device)


def _block_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask:
    mask.span(queries, keys)
    some, every = _blocks(mask, queries, keys, device)
    return BlockMask.from_kv_blocks(
        *_listed(some & ~every),
        *_listed(every),
        BLOCK_SIZE=BLOCK,
        mask_mod=_visible(mask, keys - queries),
        seq_lengths=(queries, keys),
    )


def _visible(mask: Mask, past: int) -> Callable[..., Tensor]:
    """bool of (sequence, head, query, key), all indices from 0."""
    causal, window, segments, present = mask.causal, mask.window, mask.segments, mask.present

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        position = i + past
        seen = j >= 0
        if causal:
            seen = seen & (j <= position)
        if window:
            seen = seen & (position - j < window) & (j - position < window)
        if segments is not None:
            seen = seen & (segments[b, position] == segments[b, j])
        if present is not None:
            seen = seen & present[b, j]
        return seen

    return visible


def _blocks(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """bool (1 or B, 1, rows, columns): blocks that may hold something visible, and blocks surely visible in full."""
    past = keys - queries
    first_query, first_key = (torch.arange(0, n, BLOCK, device=device) for n in (queries, keys))
    last_query, last_key = (
        (first + BLOCK).clamp(max=n) - 1 for first, n in ((first_query, queries), (first_key, keys))
    )
    nearest = (first_query + past)[:, None] - last_key  # the smallest distance query - key within a block
    farthest = (last_query + past)[:, None] - first_key
    some = torch.ones_like(nearest, dtype=torch.bool)
    every = (last_query - first_query == BLOCK - 1)[:, None] & (last_key - first_key == BLOCK - 1)
    if mask.causal:
        some, every = some & (farthest >= 0), every & (nearest >= 0)
    if mask.window:
        some = some & (nearest < mask.window) & (farthest > -mask.window)
        every = every & (farthest < mask.window) & (nearest > -mask.window)
    some, every = some[None, None], every[None, None]
    if mask.segments is not None:
        own_low, own_high = _extremes(mask.segments[:, past:])
        low, high = _extremes(mask.segments)
        meets = (own_low[:, :, None] <= high[:, None]) & (own_high[:, :, None] >= low[:, None])
        some, every = some & meets.unsqueeze(1), torch.zeros_like(every)
    if mask.present is not None:
        there = _extremes(mask.present.int())[1].bool()
        some, every = some & there[:, None, None], torch.zeros_like(every)
    return some, every.expand_as(some)


def _extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest number of each block of x (B, n), (B, blocks) each."""
    blocks = x.split(BLOCK, dim=1)
    return torch.stack([b.amin(1) for b in blocks], dim=1), torch.stack([b.amax(1) for b in blocks], dim=1)


def _listed(table: Tensor) -> tuple[Tensor, Tensor]:
    """How many columns of each row are True, and which, those first: int32."""
    order = torch.argsort(table.int(), dim=-1, descending=True, stable=True)
    return table.sum(dim=-1, dtype=torch.int32), order.int()
