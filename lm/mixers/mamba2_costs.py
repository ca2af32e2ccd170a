"""What Mamba-2 costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from lm.config import ModelConfig
from lm.mixers.mixer_costs import MixerCosts, Shape, linear_parameters
from lm.mixers.scan_costs import ScanShape

EXPANSION = 2
"""Features of a head's input for each feature of its keys"""
KERNEL = 4
"""Positions that the convolution reads"""


class Mamba2Costs(MixerCosts):
    """Costs of four projections, a convolution, a norm and a scan whose heads share queries and keys."""

    wide_state = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.heads, self.features = config.heads, config.head_features
        self.inner = EXPANSION * self.heads * self.features
        self.channels = self.inner + 2 * self.features
        self.scan = ScanShape(self.heads, self.features, EXPANSION * self.features, shared_keys=True)

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        width, bias = self.config.width, self.config.bias
        yield from linear_parameters(width, self.inner, bias)
        yield from linear_parameters(width, self.channels, bias)
        yield from linear_parameters(width, self.heads, False)
        yield from ((self.channels, 1, KERNEL), (self.channels,))
        yield from ((self.heads,),) * 3
        yield (self.inner,)
        yield from linear_parameters(self.inner, width, bias)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        projected = (self.inner + self.channels + self.heads) * length + self.inner * outputs
        return 6 * self.config.width * projected + self.scan.flops(length)

    def state_size(self, length: int) -> int:
        return self.inner * self.features + (KERNEL - 1) * self.channels

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`: the scan is in float32 or wider."""
        # The input, and the convolution before swish; the gate before and after swish, its factor, the norm's output.
        narrow = length * (self.config.width + self.channels + 4 * self.inner + 1)
        narrow += (length + KERNEL - 1) * self.channels + outputs * self.inner
        # The convolution after swish, keys and queries, steps before and after softplus, values.
        wide = length * (self.channels + 2 * self.features + 2 * self.heads + self.inner)
        wide += self.scan.saved_numbers(length, learned_decay=True)
        return itemsize * narrow + max(itemsize, 4) * wide


COSTS = Mamba2Costs
