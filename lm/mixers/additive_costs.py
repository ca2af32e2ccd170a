"""What additive attention costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from lm.mixers.attention_costs import AttentionCosts
from lm.mixers.mixer_costs import Shape


class AdditiveAttentionCosts(AttentionCosts):
    """Costs of attention whose scores are products of a vector with tanh(query + key).

    These products take as many FLOPs as products of queries and keys. Element-wise operations are not counted, as
    elsewhere.
    """

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        yield from super().parameters(value_embedding)
        yield (self.query_width,)

    def cross_saved_bytes(self, length: int, keys: int, itemsize: int) -> int:
        """As `AttentionCosts.cross_saved_bytes`, but without fused attention: each pair of query and key saves numbers.

        These are the tangents and the weights. With several heads, a copy of the tangents in another order is saved
        too.
        """
        config, q, kv = self.config, self.query_width, self.kv_width
        queries = config.width + q + self._norm_numbers(q, config.heads)
        keys_values = q + self._norm_numbers(kv, config.key_value_heads)
        pairs = q * (2 if config.heads > 1 else 1) + config.heads
        return itemsize * (length * queries + keys * keys_values + length * keys * pairs)
