"""The decoding state of mixers with a state of fixed size, such as the sums of linear attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from lm.decoding.cache import MixerState

if TYPE_CHECKING:
    from lm.blocks import Block
    from lm.mixers.mixer import Mix
    from lm.mixers.recurrent import RecurrentMixer, State
    from lm.model import Stack


class RecurrentState(MixerState):
    """For each block the tensors (B, ...) of its mixer, at least float32, because sums of many tokens lose digits.

    The state of an earlier position is not kept, so cutting the sequences forgets all of them.
    """

    def __init__(
        self,
        stack: Stack,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        padding: Tensor | None = None,
        blocks: Sequence[Block] | None = None,
    ) -> None:
        self.batch, self.dtype, self.device = batch, torch.promote_types(dtype, torch.float32), device
        super().__init__(stack, batch, capacity, dtype=dtype, device=device, padding=padding, blocks=blocks)

    def clear(self, padding: Tensor | None = None) -> None:
        super().clear(padding)
        mixers = [self._mixer(block) for block in range(len(self.blocks))]
        self.states: list[State] = [mixer.start(self.batch, self.dtype, self.device) for mixer in mixers]

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.batch = len(rows)
        self.states = [tuple(tensor[rows] for tensor in state) for state in self.states]

    def mixes(self, tokens: int) -> list[Mix]:
        """Return a function for each block that mixes the next `tokens` positions and replaces the block's state."""
        present = None if self.present is None else self.present[:, self.length : self.length + tokens]
        return [partial(self._mix, block, present) for block in range(len(self.states))]

    def _mix(self, block: int, present: Tensor | None, *projections: Tensor) -> Tensor:
        mixed, self.states[block] = self._mixer(block).scan(*projections, state=self.states[block], present=present)
        return mixed

    def _mixer(self, block: int) -> RecurrentMixer:
        return cast("RecurrentMixer", self.blocks[block].mixer)
