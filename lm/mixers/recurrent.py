"""The interface of mixers whose state has a fixed size: one scan serves whole sequences, prompts and single tokens."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lm.decoding.recurrent_state import RecurrentState
from lm.masks import Mask
from lm.mixers.mixer import Mix, Mixer

State = tuple[Tensor, ...]
"""What one block remembers of B sequences: tensors (B, ...)."""


class RecurrentMixer(Mixer):
    """A mixer that reads the past from a state of fixed size. Encoders have two: see `lm.mixers.bidirectional`."""

    bidirectional = True
    state = RecurrentState

    def start(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the state of `batch` sequences before their first token."""
        raise NotImplementedError

    def scan(
        self,
        *projections: Tensor,
        state: State | None = None,
        segments: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Mix T positions after `state`, and return what they read and the next state.

        Without `state`, the sequences begin here and the next state is empty, because training does not need it. The
        state starts again where `segments` (B, T) changes. Positions where `present` (B, T) is False are padding.
        Padding before the first token leaves the state empty. Padding after the last token may change the next state.
        Outputs at padding are finite and meaningless.
        """
        raise NotImplementedError

    def parallel_form(self, mask: Mask) -> Mix:
        return partial(self._mix, mask.segments, mask.present)

    def _mix(self, segments: Tensor | None, present: Tensor | None, *projections: Tensor) -> Tensor:
        return self.scan(*projections, segments=segments, present=present)[0]


def widen(x: Tensor) -> Tensor:
    """Return x in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def erase(x: Tensor, present: Tensor | None) -> Tensor:
    """Return x (B, T, ...) with zeros where `present` (B, T) is False."""
    if present is None:
        return x
    return x.masked_fill(~present.reshape(*present.shape, *[1] * (x.ndim - 2)), 0.0)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads x D) to (B, heads, T, D)."""
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, D) to (B, T, heads x D)."""
    return x.transpose(1, 2).flatten(-2)
