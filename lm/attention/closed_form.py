"""Attention with a hand-written gradient that keeps no T x S weights.

With S = scale Q K^T + mask, P = softmax(S) row by row, O = P V, and a gradient dO of the loss with respect to O:

    dV = P^T dO            dP = dO V^T                                           (O is linear in P and in V)
    dS = P * (dP - r 1^T), r = rowsum(dP * P)                                    (a row's Jacobian: diag(p) - p p^T)
    dQ = scale dS K        dK = scale dS^T Q        dbias = dS

Q and dQ are (T, D), K, V, dK and dV (S, D), S, P and their gradients (T, S), r (T, 1). rowsum(dP * P) sums
dO_t . v_s p_ts over s, so it equals rowsum(dO * O), of size (T, D). The forward pass therefore keeps only Q, K, V and
O. The backward pass recomputes P tile by tile in one buffer that stays in the CPU cache. A mask is a constant: where it
hides a key, P and dS are 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

from lm.attention.tiles import added_by_group, by_group, default_scale, group_size, row_blocks
from lm.masks import Mask

CPU_TILE = 8 << 20  # bytes of scores in a tile: larger tiles leave the cache, smaller ones cost more calls
GPU_TILE = 256 << 20


def closed_form(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """q (B, H, T, D), k and v (B, G, S, D) to (B, H, T, D)."""
    assert dropout == 0.0, "a configuration with dropout has another backend"
    group_size(q, k)
    unbiased = replace(mask, bias=None)
    out: Tensor = _ClosedForm.apply(q, k, v, mask.bias, unbiased, default_scale(q, scale))  # type: ignore[no-untyped-call]
    return out


def projected_attention(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] = (None, None, None, None),
    *,
    heads: int,
    mask: Mask,
    scale: float | None = None,
) -> Tensor:
    """The whole sub-layer: project x (B, T, W), attend, project back to (B, T, W).

    weights: query (H D, W), key and value (G D, W), output (W, H D); biases likewise. With Y = X A^T + b for each
    projection, dX gains dY A, dA = dY^T X and db = the sum of the rows of dY.
    """
    scale = (weights[0].shape[0] // heads) ** -0.5 if scale is None else scale
    out: Tensor = _ProjectedAttention.apply(x, *weights, *biases, heads, mask, scale)  # type: ignore[no-untyped-call]
    return out


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask: Mask, scale: float) -> Tensor:
        out = _forward(q, k, v, replace(mask, bias=bias), scale)
        ctx.save_for_backward(q, k, v, bias, out)
        ctx.mask, ctx.scale = mask, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out = ctx.saved_tensors
        mask = replace(ctx.mask, bias=bias)
        gradients = backward(q, k, v, out, upstream, mask, ctx.scale, ctx.needs_input_grad[3])
        return (*gradients, None, None)


class _ProjectedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        wq: Tensor,
        wk: Tensor,
        wv: Tensor,
        wo: Tensor,
        bq: Tensor | None,
        bk: Tensor | None,
        bv: Tensor | None,
        bo: Tensor | None,
        heads: int,
        mask: Mask,
        scale: float,
    ) -> Tensor:
        width = wq.shape[0] // heads
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (-1, width)).transpose(1, 2)
            for weight, bias in ((wq, bq), (wk, bk), (wv, bv))
        )
        mixed = _forward(q, k, v, mask, scale)
        ctx.save_for_backward(x, q, k, v, mixed, wq, wk, wv, wo)
        ctx.mask, ctx.scale = mask, scale
        return F.linear(mixed.transpose(1, 2).flatten(-2), wo, bo)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, q, k, v, mixed, *inputs, wo = ctx.saved_tensors
        dy = upstream.flatten(0, 1)
        dwo, dbo = dy.T @ mixed.transpose(1, 2).flatten(-2).flatten(0, 1), dy.sum(0)
        dmixed = (upstream @ wo).unflatten(-1, (-1, q.shape[-1])).transpose(1, 2)
        by_head = backward(q, k, v, mixed, dmixed, ctx.mask, ctx.scale, bias_needed=False)[:3]
        dqkv = [gradient.transpose(1, 2).flatten(-2).flatten(0, 1) for gradient in by_head]
        dx = sum(gradient @ weight for gradient, weight in zip(dqkv, inputs, strict=True)).view_as(x)
        rows = x.flatten(0, 1)
        dweights = [gradient.T @ rows for gradient in dqkv]
        dbiases = [gradient.sum(0) for gradient in dqkv]
        biases = zip((*dbiases, dbo), ctx.needs_input_grad[5:9], strict=True)
        return dx, *dweights, dwo, *(gradient if needed else None for gradient, needed in biases), None, None, None


@dataclass(frozen=True)
class _Tile:
    """Some queries of some sequences, and the keys that at least one of them attends to."""

    batch: slice
    rows: slice
    columns: slice
    additive: Tensor | None
    """Mask (B G, H / G t, s) to add to the scores, if any."""
    fully_masked: Tensor | None
    """(1 or B, 1, 1 or t, 1) bool, as `Mask.fully_masked`."""


def _tiles(q: Tensor, k: Tensor, mask: Mask) -> Iterator[_Tile]:
    """Yield tiles whose scores fit CPU_TILE or GPU_TILE bytes."""
    batch, heads, queries, _ = q.shape
    groups, keys = k.shape[1:3]
    size = CPU_TILE if q.device.type == "cpu" else GPU_TILE
    most = max(1, size // (heads * keys * q.element_size()))
    for rows, columns in row_blocks(mask, queries, keys, most):
        height = rows.stop - rows.start
        together = max(1, size // (heads * height * (columns.stop - columns.start) * q.element_size()))
        additive, fully_masked = mask.for_softmax(queries, keys, q.dtype, q.device, rows, columns)
        for start in range(0, batch, together):
            part = slice(start, min(start + together, batch))
            grouped = None
            if additive is not None:
                grouped = added_by_group(_sequences(additive, part), part.stop - start, heads, groups, height)
            masked = None if fully_masked is None else _sequences(fully_masked, part)
            yield _Tile(part, rows, columns, grouped, masked)


def _sequences(x: Tensor, part: slice) -> Tensor:
    """Return the sequences `part` of x (1 or B, ...)."""
    return x if x.shape[0] == 1 else x[part]


class _Buffer:
    """Memory reused for each tile: allocating it afresh would cost as much as the product that fills it."""

    def __init__(self, like: Tensor) -> None:
        self.memory = like.new_empty(0)

    def tensor(self, *shape: int) -> Tensor:
        """Return a tensor of this shape in the memory, which grows if needed."""
        size = shape[0] * shape[1] * shape[2]
        if self.memory.numel() < size:
            self.memory = self.memory.new_empty(size)
        return self.memory[:size].view(shape)


def _weights(q: Tensor, k: Tensor, additive: Tensor | None, scale: float, buffer: _Buffer) -> Tensor:
    """Return P of a tile, (B G, H / G t, s), from q (B G, H / G t, D) and k (B G, s, D)."""
    weights = buffer.tensor(q.shape[0], q.shape[1], k.shape[1])
    beta = 0.0 if additive is None else 1.0
    torch.baddbmm(weights if additive is None else additive, q, k.mT, beta=beta, alpha=scale, out=weights)
    return torch.softmax(weights, dim=-1, out=weights)


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    batch, heads, queries, _ = q.shape
    groups, buffer = k.shape[1], _Buffer(q)
    out = q.new_empty(batch, queries, heads, v.shape[-1]).transpose(1, 2)
    for tile in _tiles(q, k, mask):
        q_tile = by_group(q[tile.batch, :, tile.rows], groups)
        k_tile, v_tile = (by_group(x[tile.batch, :, tile.columns], groups) for x in (k, v))
        target = out[tile.batch, :, tile.rows]
        target.copy_(torch.bmm(_weights(q_tile, k_tile, tile.additive, scale, buffer), v_tile).view(target.shape))
        if tile.fully_masked is not None:
            target.masked_fill_(tile.fully_masked, 0.0)
    return out


def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, upstream: Tensor, mask: Mask, scale: float, bias_needed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return dQ, dK, dV, and dbias if `bias_needed`."""
    groups, weights_buffer, scores_buffer = k.shape[1], _Buffer(q), _Buffer(q)
    dq, dk, dv = (torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v))
    dbias = torch.zeros_like(mask.bias) if mask.bias is not None and bias_needed else None
    for tile in _tiles(q, k, mask):
        do = upstream[tile.batch, :, tile.rows]
        if tile.fully_masked is not None:
            do = do.masked_fill(tile.fully_masked, 0.0)
        rowsum = (do * out[tile.batch, :, tile.rows]).sum(dim=-1, keepdim=True)
        q_tile, do, rowsum = (by_group(x, groups) for x in (q[tile.batch, :, tile.rows], do, rowsum))
        k_tile, v_tile = (by_group(x[tile.batch, :, tile.columns], groups) for x in (k, v))
        weights = _weights(q_tile, k_tile, tile.additive, scale, weights_buffer)
        ds = scores_buffer.tensor(*weights.shape)
        torch.baddbmm(rowsum.expand_as(ds), do, v_tile.mT, beta=-1.0, out=ds).mul_(weights)
        target = dq[tile.batch, :, tile.rows]
        target.copy_(torch.bmm(ds, k_tile).mul_(scale).view(target.shape))
        _add(dk[tile.batch, :, tile.columns], ds.mT, q_tile, scale)
        _add(dv[tile.batch, :, tile.columns], weights.mT, do, 1.0)
        if dbias is not None:
            by_head = ds.view(-1, q.shape[1], tile.rows.stop - tile.rows.start, ds.shape[-1])
            part = _sequences(dbias, tile.batch)[:, :, tile.rows, tile.columns]
            part += by_head.sum(dim=0, keepdim=True) if len(dbias) == 1 else by_head
    return dq, dk, dv, dbias


def _add(total: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """total (B, G, s, D) += scale a b, for a (B G, s, n) and b (B G, n, D)."""
    total.add_(torch.bmm(a, b).view(total.shape), alpha=scale)
