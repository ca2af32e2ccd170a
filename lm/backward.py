"""Backward passes by hand: gradients of linear layers, norms, attention, the MLP and a pre-norm block.

A function takes a module, the input X of its forward pass, and the gradient dY of the loss with respect to its output
Y. It returns dX and the gradients of the parameters. It runs the forward pass again, without dropout. Training uses
autograd; these functions show its results as formulas, as `lm.attention.closed_form` does for attention.

X, dY and the weights have one dtype. Means are over the last axis. Sums are over all rows. With u = (x - mean) / s, the
activation f of an MLP and its derivative f':

    linear     Y = X A^T + b          dX = dY A                                   dA = dY^T X,   db = sum dY
    RMSNorm    Y = u w, no mean       dX = (g - u mean(g u)) / s,   g = dY w      dw = sum dY u
    LayerNorm  Y = u w + b            dX = (g - mean(g) - u mean(g u)) / s        dw = sum dY u, db = sum dY
    MLP        H = f(U)               dU = dH f'(U)
    gated      H = f(G) U             dU = dH f(G),   dG = dH U f'(G)
    residual   Y = X + F(X)           dX = dY + the gradient through F
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.attention import closed_form
from lm.blocks import MLP, Block, Norm
from lm.layers import LayerNorm, Linear, RMSNorm, gelu_tanh, relu_squared
from lm.masks import Mask
from lm.mixers.attention import Attention
from lm.positions import Rotary, rotate

Gradients = tuple[Tensor, dict[str, Tensor]]
"""dX, and the gradients of the parameters by their names in `named_parameters`."""


@torch.no_grad()
def linear_backward(layer: Linear, x: Tensor, upstream: Tensor) -> Gradients:
    """Return dX = dY A, dA = dY^T X and db = sum dY for x (..., inputs) and upstream (..., outputs)."""
    rows, d_rows = x.reshape(-1, x.shape[-1]), upstream.reshape(-1, upstream.shape[-1])
    gradients = {"weight": d_rows.T @ rows}
    if layer.bias is not None:
        gradients["bias"] = d_rows.sum(dim=0)
    return upstream @ layer.weight, gradients


@torch.no_grad()
def norm_backward(norm: nn.Module, x: Tensor, upstream: Tensor) -> Gradients:
    """Return the gradients of a norm over the last axis of x (..., width).

    A LayerNorm is an RMSNorm of x - mean. The matrix that subtracts the mean is symmetric, so dX also loses its mean.
    """
    if isinstance(norm, nn.Identity):
        return upstream, {}
    assert isinstance(norm, LayerNorm | RMSNorm)
    centred = x - x.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else x
    factor = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + norm.eps)
    unit, g = centred * factor, upstream * norm.weight
    dx = (g - unit * (g * unit).mean(dim=-1, keepdim=True)) * factor
    gradients = {"weight": _sum_rows(upstream * unit)}
    if isinstance(norm, LayerNorm):
        dx = dx - dx.mean(dim=-1, keepdim=True)
        if norm.bias is not None:
            gradients["bias"] = _sum_rows(upstream)
    return dx, gradients


@torch.no_grad()
def mlp_backward(mlp: MLP, x: Tensor, upstream: Tensor) -> Gradients:
    """Return the gradients of an MLP, plain or gated, for x (..., width)."""
    up, slope = mlp.up(x), DERIVATIVES[mlp.activation]
    if mlp.gate is None:
        d_hidden, of_down = linear_backward(mlp.down, mlp.activation(up), upstream)
        dx, of_up = linear_backward(mlp.up, x, d_hidden * slope(up))
        return dx, _joined(up=of_up, down=of_down)
    gate = mlp.gate(x)
    activated = mlp.activation(gate)
    d_hidden, of_down = linear_backward(mlp.down, activated * up, upstream)
    dx_up, of_up = linear_backward(mlp.up, x, d_hidden * activated)
    dx_gate, of_gate = linear_backward(mlp.gate, x, d_hidden * up * slope(gate))
    return dx_up + dx_gate, _joined(up=of_up, gate=of_gate, down=of_down)


@torch.no_grad()
def attention_backward(attention: Attention, x: Tensor, rotary: Rotary, mask: Mask, upstream: Tensor) -> Gradients:
    """Return the gradients of self-attention for x (B, T, width): `closed_form.backward` between the projections.

    The gradient of a rotation is the rotation by the negative angle.
    """
    layers = {"query": attention.query, "key": attention.key, "value": attention.value}
    norms = {"query": attention.query_norm, "key": attention.key_norm, "value": nn.Identity()}
    heads = {name: layer(x).unflatten(-1, (-1, attention.config.head_features)) for name, layer in layers.items()}
    q, k, v = (norms[name](split).transpose(1, 2) for name, split in heads.items())  # (B, H or G, T, D)
    if rotary is not None:
        q, k = rotate(q, *rotary), rotate(k, *rotary)
    scale = q.shape[-1] ** -0.5 if attention.config.scaled_attention else 1.0
    out = closed_form.closed_form(q, k, v, mask, scale=scale)
    d_merged, of_output = linear_backward(attention.output, out.transpose(1, 2).flatten(-2), upstream)
    d_out = d_merged.unflatten(-1, (attention.heads, -1)).transpose(1, 2)
    dq, dk, dv, _ = closed_form.backward(q, k, v, out, d_out, mask, scale, bias_needed=False)
    if rotary is not None:
        cosine, sine = rotary
        dq, dk = rotate(dq, cosine, -sine), rotate(dk, cosine, -sine)
    dx, parts = torch.zeros_like(x), {"output": of_output}
    for name, gradient in (("query", dq), ("key", dk), ("value", dv)):
        d_heads, parts[f"{name}_norm"] = norm_backward(norms[name], heads[name], gradient.transpose(1, 2))
        dx_part, parts[name] = linear_backward(layers[name], x, d_heads.flatten(-2))
        dx = dx + dx_part
    return dx, _joined(**parts)


@torch.no_grad()
def block_backward(block: Block, x: Tensor, rotary: Rotary, mask: Mask, upstream: Tensor) -> Gradients:
    """Return the gradients of a pre-norm block with attention and an MLP, for x (B, T, width).

    `rotary` is as in `Block.forward`. Raises ValueError for another kind of block.
    """
    attention, mlp, places = block.mixer, block.mlp, block.places
    supported = type(attention) is Attention and attention.relative_keys is None and attention.value_scale is None
    supported = supported and mlp is not None and block.cross_attention is None
    supported = supported and all(type(layer) is Linear for layer in block.modules() if isinstance(layer, Linear))
    if not (supported and places.before and not places.branch and block.residual == "sequential"):
        raise ValueError(
            "the block is not attention and an MLP in sequence, each after its norm: take a decoder or encoder with "
            "model.mixer='attention', model.norm_position='pre', model.residual='sequential' and model.mlp=true, "
            "but without model.positions='relative-keys', value embeddings or adapters"
        )
    assert isinstance(attention, Attention) and mlp is not None
    attention_norm, mlp_norm = block.mixer_norm, cast("Norm", block.get_submodule("mlp_norm"))
    read = attention_norm(x)
    middle = x + attention(read, rotary, partial(attention.parallel_form(mask), dropout=0.0))
    d_read, of_mlp = mlp_backward(mlp, mlp_norm(middle), upstream)
    d_update, of_mlp_norm = norm_backward(mlp_norm, middle, d_read)
    d_middle = upstream + d_update  # past the MLP, and through it
    d_read, of_attention = attention_backward(attention, read, rotary, mask, d_middle)
    d_update, of_attention_norm = norm_backward(attention_norm, x, d_read)
    gradients = _joined(attention_norm=of_attention_norm, attention=of_attention, mlp_norm=of_mlp_norm, mlp=of_mlp)
    return d_middle + d_update, gradients


def _joined(**parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of all parts in one dictionary, with names such as "attention.query.weight"."""
    return {f"{module}.{name}": gradient for module, found in parts.items() for name, gradient in found.items()}


def _sum_rows(x: Tensor) -> Tensor:
    """Return the sum of x (..., width) over all axes but the last."""
    return x.reshape(-1, x.shape[-1]).sum(dim=0)


def _gelu_slope(x: Tensor) -> Tensor:
    """Return Phi(x) + x phi(x), the derivative of x Phi(x) with the normal distribution function Phi."""
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    below: Tensor = torch.special.ndtr(x)
    return below + x * density


def _gelu_tanh_slope(x: Tensor) -> Tensor:
    """Return (1 + tanh u) / 2 + x (1 - tanh^2 u) u' / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    root = math.sqrt(2 / math.pi)
    tanh = torch.tanh(root * (x + 0.044715 * x**3))
    return (1 + tanh) / 2 + x * (1 - tanh.square()) * root * (1 + 3 * 0.044715 * x.square()) / 2


def _silu_slope(x: Tensor) -> Tensor:
    """Return s + x s (1 - s) with s = sigmoid(x)."""
    s = torch.sigmoid(x)
    return s + x * s * (1 - s)


DERIVATIVES: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    F.gelu: _gelu_slope,
    gelu_tanh: _gelu_tanh_slope,
    F.relu: lambda x: (x > 0).to(x.dtype),
    relu_squared: lambda x: 2 * F.relu(x),
    F.silu: _silu_slope,
}
"""The derivative of each function in `lm.layers.ACTIVATIONS`."""
