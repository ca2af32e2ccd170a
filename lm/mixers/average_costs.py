"""What the uniform average costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from lm.mixers.mixer_costs import MixerCosts, Shape, linear_parameters


class AverageCosts(MixerCosts):
    """Costs of the two projections. The sums are not matrix products."""

    wide_state = True

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        for _ in range(2):
            yield from linear_parameters(self.config.width, self.config.width, self.config.bias)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return 6 * self.config.width**2 * (length + outputs)

    def state_size(self, length: int) -> int:
        return self.config.width + 1

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`: the inputs of the two projections."""
        return itemsize * self.config.width * (length + outputs)


COSTS = AverageCosts
