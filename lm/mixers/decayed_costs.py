"""What linear attention with decay costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lm.config import ModelConfig
from lm.mixers.mixer_costs import MixerCosts, Shape, linear_parameters
from lm.mixers.scan_costs import ScanShape


class DecayedAttentionCosts(MixerCosts):
    """Costs of five projections, a norm per head and a scan."""

    wide_state = True
    learned_decay: ClassVar[bool]
    """Whether the decay is a projection of the input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.heads, self.features = config.heads, config.head_features
        self.width = self.heads * self.features
        self.scan = ScanShape(self.heads, self.features, self.features)

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        width, bias = self.config.width, self.config.bias
        for _ in range(4):
            yield from linear_parameters(width, self.width, bias)
        yield from linear_parameters(self.width, width, bias)
        yield (self.features,)
        if self.learned_decay:
            yield self.heads, width
            yield (self.heads,)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        decay = 6 * self.config.width * self.heads * length * self.learned_decay
        return 6 * self.config.width * self.width * (4 * length + outputs) + decay + self.scan.flops(length)

    def state_size(self, length: int) -> int:
        return self.width * self.features

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`: the scan is in float32 or wider."""
        # The input; the gate before and after swish; what the gate multiplies; what the norm saves.
        narrow = length * (self.config.width + 4 * self.width + self.heads) + outputs * self.width
        wide = 3 * self.width * length + self.scan.saved_numbers(length, self.learned_decay)
        wide += self.heads * length * self.learned_decay  # before softplus
        return itemsize * narrow + max(itemsize, 4) * wide
