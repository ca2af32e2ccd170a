"""What a Hopfield layer costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from lm.mixers.attention_costs import FLOAT32, AttentionCosts
from lm.mixers.mixer_costs import Shape

UPDATES = 2
"""Times that a query is compared with the keys; the last one reads the values."""


class HopfieldCosts(AttentionCosts):
    """Costs of attention whose queries are updated before they read values."""

    has_positions = False

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        yield from super().parameters(value_embedding)
        yield (self.config.heads,)

    def flops(self, length: float, visible: float, outputs: float, keys: float | None = None) -> float:
        updates = 12 * (UPDATES - 1) * self.query_width * length * visible
        return super().flops(length, visible, outputs, keys) + updates

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `AttentionCosts.saved_bytes`, and for each update the scaled and the new queries."""
        queries = (2 * UPDATES - 1) * itemsize * self.query_width * length
        normalizers = (UPDATES - 1) * FLOAT32 * self.config.heads * length
        return super().saved_bytes(length, outputs, itemsize, value_embedding) + queries + normalizers


COSTS = HopfieldCosts
