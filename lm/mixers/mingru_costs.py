"""What minGRU costs. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lm.mixers.mixer_costs import MixerCosts, Shape, linear_parameters
from lm.mixers.scan_costs import CHUNK


class MinGRUCosts(MixerCosts):
    """Costs of three projections: the scan has no matrix products."""

    wide_state = True

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        for _ in range(3):
            yield from linear_parameters(self.config.width, self.config.width, self.config.bias)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return 6 * self.config.width**2 * (2 * length + outputs)

    def state_size(self, length: int) -> int:
        return self.config.width

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`: the scan is in float32 or wider."""
        width, scanned = self.config.width, max(itemsize, 4)
        chunks = math.ceil(length / CHUNK)
        # Inputs of functions and of the sum of exponentials, its result, the output; states; signs of candidates.
        total = scanned * width * (8 * length + chunks - 1) + width * length
        copied = outputs if itemsize < scanned or outputs < length else 0
        return total + itemsize * width * (length + copied)


COSTS = MinGRUCosts
