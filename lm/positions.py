"""How order gets into a transformer: added to embeddings, turning queries and keys, or added to scores."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.layers import Embedding

Rows = slice | Tensor
"""Positions: a slice where all sequences stand at the same ones, else (B, T) int64."""
Rotary = tuple[Tensor, Tensor] | None
"""Cosine and sine, (T, D) or (B, 1, T, D), of the positions read, where positions are rotary."""

YARN_FAST, YARN_SLOW = 32.0, 1.0  # turns within the original length: above, kept; below, interpolated
LLAMA3_HIGH, LLAMA3_LOW = 4.0, 1.0


class PositionalEmbedding(nn.Module):
    """What is added to the token embedding x (B, T, width), in its dtype: learned rows, fixed sinusoids (to x times the
    root of the width), or nothing."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.positions
        if self.kind == "learned":
            self.learned = Embedding(config.context_length, config.width)
        elif self.kind == "sinusoidal":
            self.scale = math.sqrt(config.width)  # else the unit-sized sinusoids drown the embedding
            table = sinusoidal_table(config.context_length, config.width)
            self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Rows) -> Tensor:
        if self.kind == "learned":
            return x + self.learned.weight[positions]
        if self.kind == "sinusoidal":
            return x * self.scale + self.table[positions]
        return x


def sinusoidal_table(length: int, width: int) -> Tensor:
    """(length, width) float32: sin(t / 10000^(2i / width)) at component 2i, the cosine at 2i + 1.

    Vaswani et al. 2017, section 3.5.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float64), _frequencies(width, base=10000.0))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()


class RotaryTables(nn.Module):
    """Cosines and sines of all positions of the context, each (context, D) float32, that `rotate` multiplies by.

    Su et al. 2021. Component i is paired with component i + D / 2, as in GPT-NeoX and Llama; the sign of the
    rotation is in the sine.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        frequencies, factor = rotary_frequencies(config)
        angles = torch.outer(torch.arange(config.context_length, dtype=torch.float64), frequencies)
        cosine, sine = angles.cos() * factor, angles.sin() * factor
        self.register_buffer("cosine", torch.cat((cosine, cosine), dim=-1).float(), persistent=False)
        self.register_buffer("sine", torch.cat((-sine, sine), dim=-1).float(), persistent=False)

    def forward(self, positions: Rows, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of those positions in `dtype`: (T, D) of a slice, (B, 1, T, D) of positions (B, T)."""
        cosine, sine = self.cosine[positions].to(dtype), self.sine[positions].to(dtype)
        if isinstance(positions, Tensor):
            return cosine.unsqueeze(1), sine.unsqueeze(1)
        return cosine, sine


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x (B, H, T, D), tables (T, D) or (B, 1, T, D) of its dtype: each pair turned by position x its frequency."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((second, first), dim=-1) * sine


def rotary_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Radians a position, (D / 2,) float64, and the factor on cosine and sine, as `rotary_scaling` says.

    linear divides all by the factor s (Chen et al. 2023). llama3 divides those of fewer than 1 turn within the
    original length, keeps those of more than 4, and blends between (Llama 3.1). yarn blends by the component
    between 32 turns and 1, and scales scores by (0.1 ln s + 1)^2 (Peng et al. 2024).
    """
    plain = _frequencies(config.head_width, config.rotary_base)
    slow, factor = plain / config.rotary_factor, 1.0
    if config.rotary_scaling == "linear":
        return slow, factor
    turns = config.rotary_original_length * plain / (2 * math.pi)
    if config.rotary_scaling == "llama3":
        kept = ((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)).clamp(0, 1)
    elif config.rotary_scaling == "yarn":
        kept = 1 - _yarn_ramp(config)
        factor = 0.1 * math.log(config.rotary_factor) + 1.0
    else:
        return plain, factor
    return kept * plain + (1 - kept) * slow, factor


def _yarn_ramp(config: ModelConfig) -> Tensor:
    """(D / 2,): 0 for components of YARN_FAST turns and more, 1 from YARN_SLOW turns down, a line between."""

    def component(turns: float) -> float:
        wavelengths = config.rotary_original_length / (turns * 2 * math.pi)
        return config.head_width * math.log(wavelengths) / (2 * math.log(config.rotary_base))

    first = max(math.floor(component(YARN_FAST)), 0)
    last = min(math.ceil(component(YARN_SLOW)), config.head_width - 1)
    steps = torch.arange(config.head_width // 2, dtype=torch.float64) - first
    return (steps / max(last - first, 0.001)).clamp(0, 1)


class RelativeBias(nn.Module):
    """A learned number for each head and bucket of distances, added to the scores (Raffel et al. 2020, 2.1)."""

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.farthest = config.relative_distance
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.heads))

    def forward(self, queries: slice, keys: int) -> Tensor:
        """The bias (1, H, T, S) of the queries at those positions and the keys at positions 0 to S - 1."""
        device = self.weight.device
        rows = torch.arange(queries.start, queries.stop, device=device)
        offsets = torch.arange(keys, device=device) - rows.unsqueeze(-1)
        buckets = relative_buckets(offsets, len(self.weight), self.farthest, self.causal)
        return F.embedding(buckets, self.weight).permute(2, 0, 1).unsqueeze(0)


def relative_buckets(offsets: Tensor, buckets: int, farthest: int, causal: bool) -> Tensor:
    """The bucket of each offset (key position - query position), int64 of the same shape.

    Half of a direction's buckets hold one distance each, the others widen logarithmically up to `farthest`. Looking
    both ways, each direction has half of the buckets; a causal stack has all of them for the past.
    """
    future = torch.zeros_like(offsets)
    if causal:
        distances = (-offsets).clamp(min=0)
    else:
        buckets //= 2
        future = (offsets > 0) * buckets
        distances = offsets.abs()
    exact = buckets // 2
    ratio = (distances.clamp(min=1).float() / exact).log() / math.log(farthest / exact)
    wide = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return future + torch.where(distances < exact, distances, wide)


def _frequencies(width: int, base: float) -> Tensor:
    """(width / 2,) float64: base^(-2i / width)."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
