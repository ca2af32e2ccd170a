"""MLP and the block: the parts of all three architectures.

Axes: B sequences, T positions.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from lm.config import GATED, ModelConfig
from lm.layers import ACTIVATIONS, Component, LayerNorm, Linear, RMSNorm, build_norm
from lm.mixers.attention import Attention, CrossAttend
from lm.mixers.mixer import Mix, Mixer, mixer_class, select_rows
from lm.positions import Rotary

Norm = LayerNorm | RMSNorm | nn.Identity


class MLP(Component):
    """Two matrices around an activation; gated activations multiply the first by a third (Shazeer 2020)."""

    component = "mlp"

    def __init__(self, config: ModelConfig, residual_writes: int = 1) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = Linear(config.width, config.hidden_width, config.bias)
        self.gate = Linear(config.width, config.hidden_width, config.bias) if config.activation in GATED else None
        self.down = Linear(config.hidden_width, config.width, config.bias, residual_writes)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) to (..., width), in the dtype of x."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of `rows` positions."""
        gate = 0 if self.gate is None else self.gate.flops(rows)
        return self.up.flops(rows) + gate + self.down.flops(rows)


class Block(Component):
    """Mixer, cross-attention in a decoder with an encoder, and MLP, each added to the residual stream.

    With `config.residual` parallel, the MLP reads the stream before the mixer (Wang and Komatsuzaki 2021). The mixer
    and its norm are registered, and saved, under the mixer's name: `attention` and `attention_norm`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        cross: bool,
        skip: float,
        value_embedding: bool,
        residual_writes: int = 1,
        normalized: bool = False,
    ) -> None:
        """`skip`: the probability that a sequence skips a sub-layer in training.

        `normalized`: whether the stream comes from a norm, so that the mixer of a pre-norm block needs none.
        """
        super().__init__()
        self.pre_norm = config.norm_position == "pre"
        self.parallel = config.residual == "parallel"
        self.mixer_name = config.mixer
        unneeded = normalized and self.pre_norm
        self.add_module(f"{config.mixer}_norm", nn.Identity() if unneeded else build_norm(config))
        self.add_module(config.mixer, mixer_class(config)(config, residual_writes, value_embedding))
        self.cross_norm = build_norm(config) if cross else None
        self.cross_attention = Attention(config, residual_writes) if cross else None
        self.mlp_norm = build_norm(config) if config.mlp else None
        self.mlp = MLP(config, residual_writes) if config.mlp else None
        self.dropout = nn.Dropout(config.dropout)
        self.skip = skip

    @property
    def mixer(self) -> Mixer:
        """The sub-layer in which positions read one another."""
        return cast("Mixer", getattr(self, self.mixer_name))

    @property
    def mixer_norm(self) -> Norm:
        """The norm before the mixer, or after it in post-norm models."""
        return cast("Norm", getattr(self, f"{self.mixer_name}_norm"))

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
        norm = self.mixer_norm
        update = self.mixer(self._normalize(x, norm), rotary, mix, value_embedding, self_rows)
        before = select_rows(x, self_rows)
        x = self._add_residual(before, update, norm)
        if self.cross_attention is not None:
            assert self.cross_norm is not None and cross_attend is not None
            update = self.cross_attention.cross(self._normalize(x, self.cross_norm), cross_attend, rows)
            x = self._add_residual(select_rows(x, rows), update, self.cross_norm)
        if self.mlp is not None:
            assert self.mlp_norm is not None
            read = before if self.parallel else x
            x = self._add_residual(x, self.mlp(self._normalize(read, self.mlp_norm)), self.mlp_norm)
        return x

    def _normalize(self, x: Tensor, norm: Norm) -> Tensor:
        """Return x as a sub-layer reads it: normalized with pre-norm, else unchanged."""
        return norm(x) if self.pre_norm else x

    def _add_residual(self, x: Tensor, update: Tensor, norm: Norm) -> Tensor:
        """Return the residual stream after a sub-layer's update."""
        x = x + self._drop(update)
        return x if self.pre_norm else norm(x)

    def _drop(self, update: Tensor) -> Tensor:
        """Apply dropout and stochastic depth (Huang et al. 2016).

        Stochastic depth zeroes the whole update of some sequences and enlarges the others, so that the mean stays.
        """
        update = self.dropout(update)
        if self.skip == 0.0 or not self.training:
            return update
        survives = torch.rand(len(update), 1, 1, device=update.device) >= self.skip
        return update * (survives / (1.0 - self.skip)).to(update.dtype)

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
