"""What linear attention costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lm.config import ModelConfig
from lm.mixers.mixer_costs import MixerCosts, Shape, linear_parameters
from lm.mixers.scan_costs import ScanShape


class LinearAttentionCosts(MixerCosts):
    """Costs of four projections and of a scan whose values have a column for the sum of the weights."""

    wide_state = True
    expansion: ClassVar[int] = 1
    """Features after the map for each feature of queries and keys"""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.heads, self.features = config.heads, config.head_features
        self.width = self.heads * self.features
        self.scan = ScanShape(self.heads, self.expansion * self.features, self.features + 1)

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        width, bias = self.config.width, self.config.bias
        for _ in range(3):
            yield from linear_parameters(width, self.width, bias)
        yield from linear_parameters(self.width, width, bias)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return 6 * self.config.width * self.width * (3 * length + outputs) + self.scan.flops(length)

    @property
    def map_numbers(self) -> int:
        """Numbers that the map saves for each feature of queries and keys: the input of elu, and the result."""
        return 2

    def state_size(self, length: int) -> int:
        return self.scan.heads * self.scan.keys * self.scan.values

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`: the scan is in float32 or wider."""
        narrow = length * self.config.width + outputs * self.width  # inputs of projections
        summed = self.heads * length * (self.features + 1)
        wide = 2 * self.width * self.map_numbers * length  # queries and keys
        wide += 2 * summed + self.heads * length  # values and sums; divisors
        wide += self.scan.saved_numbers(length, learned_decay=False, decay=False)
        return itemsize * narrow + max(itemsize, 4) * wide


COSTS = LinearAttentionCosts
