"""How order gets into a transformer: tables of sines and cosines, added to embeddings or rotating queries."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoidal_table(length: int, width: int) -> Tensor:
    """(length, width) float32: sin(t / 10000^(2i / width)) at component 2i, the cosine at 2i + 1.

    Vaswani et al. 2017, section 3.5.
    """
    angles = _angles(length, width, base=10000.0)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()


def rotary_tables(length: int, head_width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (length, head_width) float32, that `rotate` multiplies by (Su et al. 2021).

    Component i is paired with component i + head_width / 2, as in GPT-NeoX and Llama; the sign of the
    rotation is in the sine.
    """
    angles = _angles(length, head_width, base)
    cosine = torch.cat((angles.cos(), angles.cos()), dim=-1)
    sine = torch.cat((-angles.sin(), angles.sin()), dim=-1)
    return cosine.float(), sine.float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x (B, H, T, D), tables (T, D) of its dtype: each pair turned by position x its frequency."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((second, first), dim=-1) * sine


def _angles(length: int, width: int, base: float) -> Tensor:
    """(length, width / 2) float64: position / base^(2i / width)."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
