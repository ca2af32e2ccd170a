"""The decoding state of a stack with several kinds of mixers, such as a KV cache and recurrent states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lm.decoding.cache import MixerState

if TYPE_CHECKING:
    from lm.blocks import Block
    from lm.mixers.mixer import Mix
    from lm.model import Stack


class HybridState(MixerState):
    """A state for the blocks of each kind. All count the same positions.

    Cutting the sequences forgets all of them, because some kinds of states cannot be cut.
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
    ) -> None:
        of_kind: dict[type[MixerState], list[Block]] = {}
        for block in stack.blocks:
            of_kind.setdefault(block.mixer.state, []).append(block)
        self.states = [
            kind(stack, batch, capacity, dtype=dtype, device=device, padding=padding, blocks=blocks)
            for kind, blocks in of_kind.items()
        ]
        super().__init__(stack, batch, capacity, dtype=dtype, device=device, padding=padding)

    def clear(self, padding: Tensor | None = None) -> None:
        super().clear(padding)
        for state in self.states:
            state.clear(padding)

    def mixes(self, tokens: int) -> list[Mix]:
        """Return a function for each block that mixes the next `tokens` positions and adds them to its state."""
        found: dict[Block, Mix] = {}
        for state in self.states:
            found |= zip(state.blocks, state.mixes(tokens), strict=True)
        return [found[block] for block in self.blocks]

    def advance(self, tokens: int) -> None:
        super().advance(tokens)
        for state in self.states:
            state.advance(tokens)

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        for state in self.states:
            state.select(rows)


def state_class(stack: Stack) -> type[MixerState]:
    """Return the class of the decoding state of a stack."""
    kinds = {block.mixer.state for block in stack.blocks}
    return kinds.pop() if len(kinds) == 1 else HybridState
