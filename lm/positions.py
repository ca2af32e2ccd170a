"""Positions: added to embeddings, rotated into queries and keys, or added to scores as a bias.

A kind is a value of `config.positions`. Each way has one class or function here that builds it: `PositionalEmbedding`,
`rotary_tables` and `score_bias`. Relative keys depend on queries, so they are part of `lm.mixers.attention`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.initialization import Initializer
from lm.layers import Component, Embedding

Rows = slice | Tensor
"""Positions: a slice if all sequences have the same, else (B, T) int64."""
Rotary = tuple[Tensor, Tensor] | None
"""Cosine and sine of the positions, (T, R) or (B, 1, T, R); None if positions are not rotary."""

YARN_FAST, YARN_SLOW = 32.0, 1.0  # turns within the original length: faster frequencies stay, slower ones are divided
LLAMA3_HIGH, LLAMA3_LOW = 4.0, 1.0


class PositionalEmbedding(Component):
    """Adds learned rows or fixed sinusoids to token embeddings x (B, T, width); other kinds add nothing.

    With sinusoids or `config.scaled_embedding`, x is scaled by the root of the width first.
    """

    component = "positions"
    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind = config.positions
        # Sinusoids of size 1 would drown an embedding that is not scaled.
        scaled = config.scaled_embedding or self.kind == "sinusoidal"
        self.scale = math.sqrt(config.width) if scaled else 1.0
        if self.kind == "learned":
            self.offset = config.position_offset
            self.learned = Embedding(self.offset + config.context_length, config.width)
        elif self.kind == "sinusoidal":
            table = sinusoidal_table(config.context_length, config.width)
            self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Rows) -> Tensor:
        if self.scale != 1.0:
            x = x * self.scale
        if self.kind == "learned":
            return x + self.learned.weight[self.offset :][positions]
        return x + self.table[positions] if self.kind == "sinusoidal" else x


def sinusoidal_table(length: int, width: int) -> Tensor:
    """Return (length, width) float32: sin(t / 10000^(2i / width)) at column 2i, the cosine at 2i + 1.

    Vaswani et al. 2017, section 3.5.
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float64), _frequencies(width, base=10000.0))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).float()


def with_resized_positions(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return `weights` (tensors by name) with learned positions resized to the context of `model`.

    For a shorter context, the table (old length, width) is cut. For a longer one, it is repeated (Beltagy et al. 2020,
    section 5), so positions keep their neighbours except where copies meet. The unused rows before it are kept.
    """
    resized = dict(weights)
    for name, module in model.named_modules():
        if isinstance(module, PositionalEmbedding) and module.kind == "learned":
            key, length = f"{name}.learned.weight", len(module.learned.weight) - module.offset
            unused, table = weights[key][: module.offset], weights[key][module.offset :]
            copies = -(-length // len(table))
            resized[key] = torch.cat((unused, table.repeat(copies, 1)[:length]))
    return resized


class RotaryTables(nn.Module):
    """Cosines and sines of all positions of the context, each (context, R) float32, for `rotate` (Su et al. 2021).

    The first R = `config.rotary_features` components of a head are rotated. Component i is paired with component
    i + R / 2, as in GPT-NeoX and Llama. The sine carries the sign of the rotation.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        frequencies, factor = rotary_frequencies(config)
        angles = torch.outer(torch.arange(config.context_length, dtype=torch.float64), frequencies)
        cosine, sine = angles.cos() * factor, angles.sin() * factor
        self.register_buffer("cosine", torch.cat((cosine, cosine), dim=-1).float(), persistent=False)
        self.register_buffer("sine", torch.cat((-sine, sine), dim=-1).float(), persistent=False)

    def forward(self, positions: Rows, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosine and sine in `dtype`: (T, R) for a slice, (B, 1, T, R) for positions (B, T)."""
        cosine, sine = self.cosine[positions].to(dtype), self.sine[positions].to(dtype)
        if isinstance(positions, Tensor):
            return cosine.unsqueeze(1), sine.unsqueeze(1)
        return cosine, sine


def rotary_tables(config: ModelConfig) -> RotaryTables | None:
    """Return the tables of rotary positions; None for other kinds."""
    return RotaryTables(config) if config.positions == "rotary" else None


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair of the first R components of x (B, H, T, D) by position x frequency, and keep the others.

    The tables, (T, R) or (B, 1, T, R), have the dtype of x.
    """
    width = cosine.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], cosine, sine), x[..., width:]), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((second, first), dim=-1) * sine


def rotary_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Return radians per position, (R / 2,) float64, and the factor on cosine and sine, by `rotary_scaling`.

    linear divides every frequency by `rotary_factor` s (Chen et al. 2023). llama3 divides frequencies of fewer than 1
    turn within the original length, keeps those of more than 4, and interpolates between (Llama 3.1). yarn interpolates
    from 32 turns to 1, and scales scores by (0.1 ln s + 1)^2 (Peng et al. 2024).
    """
    plain = _frequencies(config.rotary_features, config.rotary_base)
    divided, factor = plain / config.rotary_factor, 1.0
    if config.rotary_scaling == "linear":
        return divided, factor
    turns = config.rotary_original_length * plain / (2 * math.pi)
    if config.rotary_scaling == "llama3":
        share = ((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW)).clamp(0, 1)
    elif config.rotary_scaling == "yarn":
        share = 1 - _yarn_ramp(config)
        factor = 0.1 * math.log(config.rotary_factor) + 1.0
    else:
        return plain, factor
    return share * plain + (1 - share) * divided, factor


def _yarn_ramp(config: ModelConfig) -> Tensor:
    """Return (R / 2,): 0 from YARN_FAST turns up, 1 from YARN_SLOW turns down, linear between."""

    def component(turns: float) -> float:
        wavelengths = config.rotary_original_length / (turns * 2 * math.pi)
        return config.rotary_features * math.log(wavelengths) / (2 * math.log(config.rotary_base))

    first = max(math.floor(component(YARN_FAST)), 0)
    last = min(math.ceil(component(YARN_SLOW)), config.rotary_features - 1)
    steps = torch.arange(config.rotary_features // 2, dtype=torch.float64) - first
    return (steps / max(last - first, 0.001)).clamp(0, 1)


class RelativeBias(Component):
    """A learned number per head and bucket of offsets, added to the scores (Raffel et al. 2020, 2.1)."""

    component = "positions"

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.farthest = config.relative_distance
        self.weight = nn.Parameter(torch.empty(config.relative_buckets, config.heads))

    def forward(self, queries: slice | Tensor, keys: int) -> Tensor:
        """Return the bias (1, H, T, S) of queries at these positions and keys at 0 to S - 1."""
        offsets = key_offsets(queries, keys, self.weight.device)
        buckets = relative_buckets(offsets, len(self.weight), self.farthest, self.causal)
        return F.embedding(buckets, self.weight).permute(2, 0, 1).unsqueeze(0)

    def reset_parameters(self, initializer: Initializer) -> None:
        initializer.table(self.weight)


def relative_buckets(offsets: Tensor, buckets: int, farthest: int, causal: bool) -> Tensor:
    """Return the bucket of each offset (key position - query position), int64 of the same shape.

    Half of a direction's buckets hold one distance each; the others widen logarithmically up to `farthest`. A causal
    stack uses all buckets for the past; any other splits them between both directions.
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


class LinearBias(Component):
    """ALiBi: minus slope x distance, added to the scores (Press et al. 2022, https://arxiv.org/abs/2108.12409).

    The paper defines it for causal stacks. An encoder uses the symmetric form: it depends on the distance only, so the
    encoder cannot tell a text from its mirror image.
    """

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self, queries: slice | Tensor, keys: int) -> Tensor:
        """Return the bias (1, H, T, S) of queries at these positions and keys at 0 to S - 1."""
        distances = key_offsets(queries, keys, self.slopes.device).abs()
        return (-self.slopes[:, None, None] * distances).unsqueeze(0)


def alibi_slopes(heads: int) -> Tensor:
    """Return (heads,) float32: 2^(-8 i / heads) for i from 1, if `heads` is a power of two.

    Other numbers take the slopes of the next smaller power n, then every second slope of 2n.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return torch.tensor(slopes)


def key_offsets(queries: slice | Tensor, keys: int, device: torch.device) -> Tensor:
    """Return key position - query position, (T, S) int64, of queries at a slice or at (T,) int64."""
    if isinstance(queries, slice):
        queries = torch.arange(queries.start, queries.stop, device=device)
    return torch.arange(keys, device=device) - queries.unsqueeze(-1)


def score_bias(config: ModelConfig, causal: bool) -> RelativeBias | LinearBias | None:
    """Return the module that maps positions of queries and keys to a bias on scores; None for other kinds."""
    if config.positions == "alibi":
        return LinearBias(config.heads)
    return RelativeBias(config, causal) if config.positions == "relative" else None


def _frequencies(width: int, base: float) -> Tensor:
    """Return (width / 2,) float64: base^(-2i / width)."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
