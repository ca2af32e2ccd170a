"""What a Performer costs. Imports no torch."""

from __future__ import annotations

from lm.mixers.linear_costs import LinearAttentionCosts

EXPANSION = 4
"""Random features for each feature of queries and keys"""


class PerformerCosts(LinearAttentionCosts):
    """Costs of linear attention with random features."""

    expansion = EXPANSION

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return super().flops(length, visible, outputs) + 12 * self.width * self.scan.keys * length

    @property
    def map_numbers(self) -> int:
        """Numbers that the map saves for each feature of queries and keys: its input, exponentials and results."""
        return 1 + 2 * EXPANSION


COSTS = PerformerCosts
