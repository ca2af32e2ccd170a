"""Norms taken apart: a linear part, a division by the scale of each position, and a bias."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lm.layers import LayerNorm, RMSNorm


def centred(norm: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """Return x (..., width) as the norm divides it: minus the mean for LayerNorm, unchanged for RMSNorm."""
    return x - x.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else x


def linear_part(norm: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """Return the norm of x (..., width) without its division by `scale_of` and its bias: linear in x."""
    return centred(norm, x) * norm.weight.to(x.dtype)


def scale_of(norm: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """Return the divisor of the norm for x (..., width): (..., 1)."""
    return (centred(norm, x).square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()


def bias_of(module: nn.Module, like: Tensor) -> Tensor:
    """Return the module's bias, or zeros, in the shape and dtype of `like` (..., width)."""
    bias = getattr(module, "bias", None)
    return torch.zeros_like(like) if bias is None else bias.to(like.dtype).expand_as(like)
