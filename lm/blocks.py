"""MLP and the block: the parts of all three architectures.

Axes: B sequences, T positions.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from lm.config import GATED, CrossKind, ModelConfig
from lm.initialization import Initializer, deepnorm_scales
from lm.layers import ACTIVATIONS, Component, LayerNorm, Linear, RMSNorm, build_norm
from lm.mixers.additive import AdditiveAttention
from lm.mixers.attention import Attention, CrossAttend
from lm.mixers.bidirectional import build_mixer
from lm.mixers.mixer import Mix, Mixer, select_rows
from lm.norm_places import NormPlaces
from lm.positions import Rotary

Norm = LayerNorm | RMSNorm | nn.Identity

CROSS: dict[CrossKind, type[Attention]] = {"dot": Attention, "additive": AdditiveAttention}


class MLP(Component):
    """Two matrices around an activation; gated activations multiply the first by a third (Shazeer 2020)."""

    component = "mlp"

    def __init__(self, config: ModelConfig, residual_writes: int = 1, gain: float = 1.0) -> None:
        """`residual_writes` and `gain`: as in `Initializer.matrix`."""
        super().__init__()
        width, hidden = config.width, config.hidden_width
        self.activation = ACTIVATIONS[config.activation]
        self.up = Linear(width, hidden, config.bias, gain=gain)
        self.gate = Linear(width, hidden, config.bias, gain=gain) if config.activation in GATED else None
        self.down = Linear(config.hidden_width, config.width, config.bias, residual_writes, gain)
        self.dropout = nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) to (..., width), in the dtype of x."""
        hidden = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of `rows` positions."""
        gate = 0 if self.gate is None else self.gate.flops(rows)
        return self.up.flops(rows) + gate + self.down.flops(rows)


class Block(Component):
    """Mixer, cross-attention in a decoder with an encoder, and MLP, each added to the residual stream.

    `config.norm_position` places the norms (`lm.config.NormPlaces`). With `config.residual` parallel, the MLP reads the
    stream before the mixer (Wang and Komatsuzaki 2021). A sub-layer's parts are registered, and saved, under its name:
    `attention`, `attention_norm`, and with some norm positions `attention_branch_norm` or `attention_scale`.
    """

    own_component = "norms"  # ReZero has scales instead

    def __init__(
        self,
        config: ModelConfig,
        *,
        causal: bool,
        cross: bool,
        skip: float,
        value_embedding: bool,
        index: int = 0,
        residual_writes: int = 1,
        normalized: bool = False,
    ) -> None:
        """`causal`: whether positions read no later ones. `index`: position of the block in its stack.

        `skip`: the probability that a sequence skips a sub-layer in training.

        `normalized`: whether the stream comes from a norm, so that the mixer needs none before it.
        """
        super().__init__()
        self.places = config.norm_places
        self.residual = config.residual
        self.stream_scale, gain = deepnorm_scales(config, cross)
        self.mixer_name = config.mixer_of(index).replace("-", "_")
        self._add_norms(config, self.mixer_name, self.places._replace(before=self.places.before and not normalized))
        mixer = build_mixer(
            config,
            index,
            causal=causal,
            residual_writes=residual_writes,
            value_embedding=value_embedding,
            gain=gain,
        )
        self.add_module(self.mixer_name, mixer)
        self.cross_attention = self.mlp = None
        if cross:
            self._add_norms(config, "cross", self.places)
            self.cross_attention = CROSS[config.cross](config, residual_writes, gain=gain, cross=True)
        if config.mlp:
            self._add_norms(config, "mlp", self.places if config.mlp_norm else NormPlaces())
            self.mlp = MLP(config, residual_writes, gain)
        self.dropout = nn.Dropout(config.dropout)
        self.skip = skip

    def _add_norms(self, config: ModelConfig, name: str, places: NormPlaces) -> None:
        """Register the norms of a sub-layer, which may have fewer `places` than others, and its scale."""
        second = places.branch and self.places.before
        first = places.before or places.after or (places.branch and not second)
        self.add_module(f"{name}_norm", build_norm(config) if first else nn.Identity())
        self.add_module(f"{name}_branch_norm", build_norm(config) if second else nn.Identity())
        rezero = config.norm_position == "rezero"
        self.register_parameter(f"{name}_scale", nn.Parameter(torch.empty(1)) if rezero else None)

    @property
    def mixer(self) -> Mixer:
        """The sub-layer in which positions read one another."""
        return cast("Mixer", getattr(self, self.mixer_name))

    @property
    def mixer_norm(self) -> Norm:
        """The norm before the mixer, or the norm that its position gives instead."""
        return cast("Norm", getattr(self, f"{self.mixer_name}_norm"))

    @property
    def random(self) -> bool:
        """Whether training draws random numbers in this block, for stochastic depth or any dropout.

        Attention drops weights without an nn.Dropout, at the rate of the block's `dropout`.
        """
        return self.skip > 0 or any(part.p > 0 for part in self.modules() if isinstance(part, nn.Dropout))

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        cross_attend: CrossAttend | None = None,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Residual stream x (B, T, width) to the stream after the block, in the dtype of x.

        `rotary`, `mix` and `value_embedding` as in `Mixer.forward`; `cross_attend` as in `Attention.cross`. With `rows`
        (N,) int64, indices of the B x T positions, returns (N, width): all positions are read, and later sub-layers run
        on `rows` only.
        """
        if rows is not None and self.skip and self.training:  # stochastic depth needs whole sequences
            # Not self(...): FSDP would gather the block once more, out of step with the other ranks.
            return select_rows(self.forward(x, rotary, mix, cross_attend, value_embedding), rows)
        self_rows = rows if self.cross_attention is None else None
        update = self.mixer(self._normalize(x, self.mixer_name), rotary, mix, value_embedding, self_rows)
        before = select_rows(x, self_rows)
        x = self.add_residual(before, update, self.mixer_name)
        if self.cross_attention is not None:
            assert cross_attend is not None
            update = self.cross_attention.cross(self._normalize(x, "cross"), cross_attend, rows)
            x = self.add_residual(select_rows(x, rows), update, "cross")
        if self.mlp is not None:
            read = before if self.residual == "parallel" else x
            x = self.add_residual(x, self.mlp(self._normalize(read, "mlp")), "mlp")
        return x

    def _normalize(self, x: Tensor, name: str) -> Tensor:
        """Return x as the sub-layer reads it: with its norm, or unchanged."""
        return getattr(self, f"{name}_norm")(x) if self.places.before else x

    def add_residual(self, x: Tensor, update: Tensor, name: str) -> Tensor:
        """Return the residual stream after a sub-layer's update."""
        if self.places.branch:
            update = getattr(self, f"{name}_branch_norm" if self.places.before else f"{name}_norm")(update)
        update = self._drop(update)
        scale = getattr(self, f"{name}_scale")
        if scale is not None:
            update = scale.to(update.dtype) * update
        if self.stream_scale != 1.0:
            x = self.stream_scale * x
        x = update if self.residual == "none" else x + update
        return getattr(self, f"{name}_norm")(x) if self.places.after else x

    def _drop(self, update: Tensor) -> Tensor:
        """Apply dropout and stochastic depth (Huang et al. 2016).

        Stochastic depth zeroes the whole update of some sequences and enlarges the others, so that the mean stays.
        """
        update = self.dropout(update)
        if self.skip == 0.0 or not self.training:
            return update
        survives = torch.rand(len(update), 1, 1, device=update.device) >= self.skip
        return update * (survives / (1.0 - self.skip)).to(update.dtype)

    def reset_parameters(self, initializer: Initializer) -> None:
        for scale in self.parameters(recurse=False):  # ReZero starts as the identity (Bachlechner et al. 2020)
            scale.zero_()

    def flops(self, length: float, visible: float, source_length: float, outputs: float) -> float:
        """Return the training FLOPs of one sequence of `length` positions, of which each sees `visible`.

        Cross-attention reads `source_length` positions. Only `outputs` positions leave the block.
        """
        if self.cross_attention is None:
            flops = self.mixer.flops(length, visible, outputs)
        else:
            flops = self.mixer.flops(length, visible, length)
            flops += self.cross_attention.flops(length, source_length, outputs, keys=source_length)
        return flops + (0 if self.mlp is None else self.mlp.flops(outputs))
