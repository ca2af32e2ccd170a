"""PyTorch's FlexAttention: a kernel compiled for a mask that skips blocks of keys and allocates no T x S tensor.

The mask is a table of blocks of 128 x 128 scores, from the first and last position and segment of each block, and a
function of indices for partly visible blocks.
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
NARROWEST_ON_GPU = 16  # features of a head: the minimum of Triton's matrix products
Pattern = Callable[[Tensor, Tensor], Tensor]
"""As `Mask.pattern`."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_compiled = functools.cache(lambda: torch.compile(flex_attention))


def is_supported(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> bool:
    """Return whether a kernel exists and is worth its compilation.

    None exists for float64, for heads of fewer than 16 features on a GPU, or with a backward pass on the CPU. A query
    over a KV cache would need a kernel for each length. Short sequences on the CPU have no large tensor to avoid.
    """
    if q.dtype not in DTYPES or q.shape[-2] != k.shape[-2]:
        return False
    if q.device.type != "cpu":
        return min(q.shape[-1], v.shape[-1]) >= NARROWEST_ON_GPU
    wants_gradients = any(x is not None and x.requires_grad for x in (q, k, v, mask.bias))
    return q.shape[-2] >= SHORTEST_ON_CPU and not (wants_gradients and torch.is_grad_enabled())


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    """q (B, H, T, D), k and v (B, G, T, D) to (B, H, T, D). The first call for a shape compiles: 10 s and more."""
    if not torch.is_grad_enabled():
        q, k, v = q.detach(), k.detach(), v.detach()  # views of parameters still require gradients
    blocks = block_mask(mask, q.shape[-2], k.shape[-2], q.device)
    grouped = group_size(q, k) > 1
    out = _compiled()(q, k, v, score_mod=score_modifier(mask), block_mask=blocks, scale=scale, enable_gqa=grouped)
    assert isinstance(out, Tensor)
    return out


def score_modifier(mask: Mask) -> Callable[..., Tensor] | None:
    """Return a function of (score, sequence, head, query, key) that adds `mask.bias`; None without a bias."""
    bias = mask.bias
    if bias is None:
        return None
    if len(bias) == 1:
        return lambda score, b, h, i, j: score + bias[0, h, i, j].to(score.dtype)
    return lambda score, b, h, i, j: score + bias[b, h, i, j].to(score.dtype)


def block_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask | None:
    """Return `mask` without its bias in FlexAttention's form; None if nothing is hidden."""
    if mask.segments is None and mask.present is None and mask.shift is None and mask.causal_rows is None:
        return _by_position(mask.causal, mask.window, mask.pattern, queries, keys, device)
    return _block_mask(mask, queries, keys, device)


@functools.lru_cache(maxsize=64)
def _by_position(
    causal: bool, window: int, pattern: Pattern | None, queries: int, keys: int, device: torch.device
) -> BlockMask | None:
    if not (causal or window or pattern):
        return None
    with torch.inference_mode(False):  # autograd cannot save inference tensors, and training reuses this table
        return _block_mask(Mask(causal=causal, window=window, pattern=pattern), queries, keys, device)


def _block_mask(mask: Mask, queries: int, keys: int, device: torch.device) -> BlockMask:
    mask.span(queries, keys)
    some, every = _blocks(mask, queries, keys, device)
    return BlockMask.from_kv_blocks(
        *_list_columns(some & ~every),
        *_list_columns(every),
        BLOCK_SIZE=BLOCK,
        mask_mod=_visible(mask, keys - queries),
        seq_lengths=(queries, keys),
    )


def _visible(mask: Mask, past: int) -> Callable[..., Tensor]:
    """Return a function of the indices (sequence, head, query, key), True where the query attends to the key."""
    causal, window, segments, present = mask.causal, mask.window, mask.segments, mask.present
    pattern, shift, causal_rows = mask.pattern, mask.shift, mask.causal_rows

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        position = i + past
        visible = j >= 0
        if causal:
            visible = visible & (j <= position)
        if causal_rows is not None:
            visible = visible & ((j <= position) | ~causal_rows[b])
        if window:
            visible = visible & (position - j < window) & (j - position < window)
        if pattern is not None:
            before = 0 if shift is None else shift[b] if len(shift) > 1 else shift[0]
            visible = visible & pattern(position - before, j - before)
        if segments is not None:
            visible = visible & (segments[b, position] == segments[b, j])
        if present is not None:
            visible = visible & present[b, j]
        return visible

    return mask_mod


def _blocks(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return bool (1 or B, 1, rows, columns) twice: blocks that may be visible in part, and blocks surely in full."""
    past = keys - queries
    first_query, first_key = (torch.arange(0, n, BLOCK, device=device) for n in (queries, keys))
    last_query, last_key = (
        (first + BLOCK).clamp(max=n) - 1 for first, n in ((first_query, queries), (first_key, keys))
    )
    nearest = (first_query + past)[:, None] - last_key  # smallest distance query - key in a block
    farthest = (last_query + past)[:, None] - first_key
    some = torch.ones_like(nearest, dtype=torch.bool)
    every = (last_query - first_query == BLOCK - 1)[:, None] & (last_key - first_key == BLOCK - 1)
    if mask.causal:
        some, every = some & (farthest >= 0), every & (nearest >= 0)
    if mask.window:
        some = some & (nearest < mask.window) & (farthest > -mask.window)
        every = every & (farthest < mask.window) & (nearest > -mask.window)
    some, every = some[None, None], every[None, None]
    if mask.pattern is not None:
        some_seen, all_seen = _pattern_blocks(mask, queries, keys, device)
        some, every = some & some_seen, every & all_seen
    if mask.segments is not None:
        query_low, query_high = _extremes(mask.segments[:, past:])
        low, high = _extremes(mask.segments)
        meets = (query_low[:, :, None] <= high[:, None]) & (query_high[:, :, None] >= low[:, None])
        some, every = some & meets.unsqueeze(1), torch.zeros_like(every)
    if mask.causal_rows is not None:
        some = some & ((farthest >= 0) | ~mask.causal_rows[:, None, None, None])
        every = every & ((nearest >= 0) | ~mask.causal_rows[:, None, None, None])
    if mask.present is not None:
        present = _extremes(mask.present.int())[1].bool()
        some, every = some & present[:, None, None], torch.zeros_like(every)
    return some, every.expand_as(some)


def _pattern_blocks(mask: Mask, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return bool (1 or B, 1, rows, columns) twice: blocks of which the pattern shows a part, and all of the block."""
    alone, some, every = Mask(pattern=mask.pattern, shift=mask.shift), [], []
    for first in range(0, queries, BLOCK):
        visible = alone.visible(queries, keys, device, rows=slice(first, first + BLOCK))
        assert visible is not None
        parts = visible.split(BLOCK, dim=-1)
        some.append(torch.stack([part.any(-1).any(-1) for part in parts], dim=-1))
        every.append(torch.stack([part.all(-1).all(-1) for part in parts], dim=-1))
    return torch.stack(some, dim=-2), torch.stack(every, dim=-2)


def _extremes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of each block of x (B, n): (B, blocks) each."""
    blocks = x.split(BLOCK, dim=1)
    return torch.stack([b.amin(1) for b in blocks], dim=1), torch.stack([b.amax(1) for b in blocks], dim=1)


def _list_columns(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of True columns in each row, and all columns with the True ones first: int32."""
    order = torch.argsort(table.int(), dim=-1, descending=True, stable=True)
    return table.sum(dim=-1, dtype=torch.int32), order.int()
