"""Recurrent mixers in encoders: one reads the text forwards, another backwards (Schuster and Paliwal 1997)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.masks import Mask
from lm.mixers.mixer import Mix, Mixer, mixer_class
from lm.mixers.recurrent import RecurrentMixer
from lm.positions import Rotary


class Bidirectional(Mixer):
    """y = f(x) + reverse(g(reverse(x))) with two mixers f and g of one kind.

    Each has its own output matrix. Their sum equals one matrix times both concatenated states, the annotations of
    Bahdanau et al. (2015, 3.2). The second mixer starts at the last token of a text, without its padding.
    """

    bidirectional = True

    def __init__(
        self, kind: type[RecurrentMixer], config: ModelConfig, residual_writes: int = 1, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.forwards = kind(config, residual_writes, gain=gain)
        self.backwards = kind(config, residual_writes, gain=gain)

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        return mix(x, rotary, rows)

    def parallel_form(self, mask: Mask) -> Mix:
        return partial(self._read, replace(mask, causal=True))

    def _read(self, mask: Mask, x: Tensor, rotary: Rotary, rows: Tensor | None) -> Tensor:
        order = None if mask.present is None else _last_first(mask.present)
        segments, present = (None if each is None else _reorder(each, order) for each in (mask.segments, mask.present))
        turned = replace(mask, segments=segments, present=present)
        back = None if order is None else order.argsort(dim=1)  # undoes the order
        places = None if rows is None else _places(rows, x, back)
        forwards = self.forwards(x, rotary, self.forwards.parallel_form(mask), rows=rows)
        backwards = self.backwards(_reorder(x, order), rotary, self.backwards.parallel_form(turned), rows=places)
        return forwards + (_reorder(backwards, back) if rows is None else backwards)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return sum(mixer.flops(length, visible, outputs) for mixer in (self.forwards, self.backwards))


def _last_first(present: Tensor) -> Tensor:
    """Return the positions (B, T) of each text from its last token to its first, then those of its padding."""
    positions = torch.arange(present.shape[1], device=present.device)
    return torch.where(present, -positions, positions + 1).argsort(dim=1)


def _reorder(x: Tensor, order: Tensor | None) -> Tensor:
    """Return x (B, T, ...) in an order (B, T) of positions; None: from the last to the first."""
    if order is None:
        return x.flip(1)
    return x.take_along_dim(order.reshape(*order.shape, *[1] * (x.ndim - 2)), dim=1)


def _places(rows: Tensor, x: Tensor, back: Tensor | None) -> Tensor:
    """Return the places of the rows (N,) of x (B, T, width) in the reversed texts.

    `back`: the order that undoes the reversal; None: texts without padding.
    """
    batch, length = x.shape[:2]
    if back is None:
        return rows + length - 1 - 2 * (rows % length)
    return (back + length * torch.arange(batch, device=x.device).unsqueeze(-1)).flatten()[rows]


def build_mixer(
    config: ModelConfig,
    block: int,
    *,
    causal: bool,
    residual_writes: int = 1,
    value_embedding: bool = False,
    gain: float = 1.0,
) -> Mixer:
    """Return the mixer of a block. In a stack that is not `causal`, recurrent mixers read in both directions.

    The other arguments are as in `Mixer`.
    """
    kind = mixer_class(config.mixer_of(block))
    if not causal and issubclass(kind, RecurrentMixer):
        return Bidirectional(kind, config, residual_writes, gain)
    return kind(config, residual_writes, value_embedding, gain)
