"""What attention costs. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lm.config import ModelConfig
from lm.mixers.mixer_costs import MixerCosts, Shape, linear_parameters
from lm.position_checks import relative_rows

FLOAT32 = 4


class AttentionCosts(MixerCosts):
    """Costs of self-attention, or with `cross` of cross-attention."""

    has_positions: ClassVar[bool] = True
    """Whether positions can be added to the scores."""
    one_way = False

    def __init__(self, config: ModelConfig, cross: bool = False) -> None:
        super().__init__(config)
        relative = config.positions == "relative-keys" and self.has_positions and not cross
        self.relative_rows = relative_rows(config) if relative else 0
        self.query_width = config.heads * config.head_features
        self.kv_width = config.key_value_heads * config.head_features

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        width, bias = self.config.width, self.config.bias
        for outputs in (self.query_width, self.kv_width, self.kv_width):
            yield from linear_parameters(width, outputs, bias)
        yield from linear_parameters(self.query_width, width, bias)
        if self.config.qk_norm:
            yield from ((self.config.head_features,),) * 2
        if value_embedding:
            yield (1,)
        if self.relative_rows:
            yield self.relative_rows, self.config.head_features

    def flops(self, length: float, visible: float, outputs: float, keys: float | None = None) -> float:
        """As `MixerCosts.flops`; cross-attention has `keys` key positions."""
        keys = length if keys is None else keys
        projected = self.query_width * (length + outputs) + 2 * self.kv_width * keys
        relative = 6 * self.query_width * length * self.relative_rows
        return 6 * self.config.width * projected + 12 * self.query_width * length * visible + relative

    def state_size(self, length: int) -> int:
        return min(length, self.config.window or length) * self.key_value_width

    @property
    def key_value_width(self) -> int:
        """Numbers in the keys and values of one position."""
        return 2 * self.kv_width

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`, with one product for queries, keys and values, and with fused attention.

        Fused attention saves queries, keys, values, its output and one number per query (Dao 2023).
        """
        config, q, kv = self.config, self.query_width, self.kv_width
        numbers = config.width + q  # the input, and the output of attention
        rotary = config.positions == "rotary"
        if rotary or config.qk_norm:  # queries and keys are no longer views of the product
            numbers += q + kv
        if value_embedding:  # the embedding, and its sum with the values
            numbers += 2 * kv
        if not (value_embedding and (rotary or config.qk_norm)):
            numbers += q + 2 * kv  # the product
        numbers += self._norm_numbers(q, config.heads) + self._norm_numbers(kv, config.key_value_heads)
        concatenated = rotary and config.rotary_features < config.head_features and config.heads > 1
        # The output matrix reads a copy if rows are selected, or if the heads of attention's output are not adjacent in
        # memory. The output has the layout of the queries, which concatenation changes if there are several heads.
        read = q if outputs < length or concatenated else 0
        if self.relative_rows:  # products with all relative keys, and the dense mask of fused attention
            numbers += config.heads * (self.relative_rows + length)
            numbers += q if config.heads > 1 and not config.qk_norm else 0  # a copy with adjacent heads
        return itemsize * (length * numbers + outputs * read) + FLOAT32 * config.heads * length

    def cross_saved_bytes(self, length: int, keys: int, itemsize: int) -> int:
        """Return the bytes of cross-attention from `length` positions to `keys`, without the encoder's output."""
        config, q, kv = self.config, self.query_width, self.kv_width
        queries = config.width + 2 * q + self._norm_numbers(q, config.heads)
        keys_values = 2 * kv + self._norm_numbers(kv, config.key_value_heads)
        return itemsize * (length * queries + keys * keys_values) + FLOAT32 * config.heads * length

    def _norm_numbers(self, width: int, heads: int) -> int:
        """Return the numbers that the norm of queries or keys saves for a position."""
        return width + heads if self.config.qk_norm else 0


COSTS = AttentionCosts
