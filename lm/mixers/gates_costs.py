"""What GRU and LSTM cost. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lm.mixers.mixer_costs import MixerCosts, Shape, linear_parameters


class GatedRecurrenceCosts(MixerCosts):
    """Costs of the matrices of the gates, for input and state, and of the output."""

    wide_state = True
    gates: ClassVar[int]
    parts: ClassVar[int]
    """Tensors of the state."""

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        width, bias = self.config.width, self.config.bias
        for _ in range(2):
            yield from linear_parameters(width, self.gates * width, bias)
        yield from linear_parameters(width, width, bias)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return 6 * self.config.width**2 * (2 * self.gates * length + outputs)

    def state_size(self, length: int) -> int:
        return self.parts * self.config.width

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`, without cuDNN: nine tensors per position, with input and output."""
        return itemsize * self.config.width * (8 * length + outputs)
