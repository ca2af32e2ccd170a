"""What additive attention costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from lm.mixers.attention_costs import AttentionCosts
from lm.mixers.mixer_costs import Shape


class AdditiveAttentionCosts(AttentionCosts):
    """Costs of attention, with a vector that scores the hyperbolic tangents of each query and key.

    The products with this vector take the FLOPs of a product of queries and keys. Other sums and functions of single
    numbers are not counted, as elsewhere.
    """

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        yield from super().parameters(value_embedding)
        yield (self.query_width,)

    def cross_saved_bytes(self, length: int, keys: int, itemsize: int) -> int:
        """As `AttentionCosts.cross_saved_bytes`, without fused attention: each query saves numbers for each key.

        These are the tangents, of which several heads need a copy in another order, and the weights.
        """
        config, q, kv = self.config, self.query_width, self.kv_width
        queries = config.width + q + self._norm_numbers(q, config.heads)
        keys_values = q + self._norm_numbers(kv, config.key_value_heads)
        pairs = q * (2 if config.heads > 1 else 1) + config.heads
        return itemsize * (length * queries + keys * keys_values + length * keys * pairs)
