"""What `chunked_scan` costs. Imports no torch."""

from __future__ import annotations

import math
from typing import NamedTuple

CHUNK = 128
"""Positions that `chunked_scan` reads at once: smaller chunks spend more on states, larger ones on pairs."""


class ScanShape(NamedTuple):
    """A scan of `heads` states (keys, values)."""

    heads: int
    keys: int
    values: int
    shared_keys: bool = False
    """Whether all heads share queries and keys."""

    def flops(self, length: float) -> float:
        """Return the training FLOPs of `length` positions: three times those of the products forward."""
        later = max(0.0, length - CHUNK)  # positions that read a state
        summed = (math.ceil(length / CHUNK) - 1) * CHUNK  # positions that are added to a state
        score_heads = 1 if self.shared_keys else self.heads
        within = _pairs(length) * (score_heads * self.keys + self.heads * self.values)
        return 6 * (within + self.heads * self.keys * self.values * (later + summed))

    def saved_numbers(self, length: int, learned_decay: bool, decay: bool = True) -> int:
        """Return the numbers that autograd saves beside queries, keys, values and the decay.

        `decay`: whether there is a decay, and `learned_decay`: whether it depends on the input.
        """
        chunks = math.ceil(length / CHUNK)
        score_heads = 1 if self.shared_keys else self.heads
        later, summed = max(0, length - CHUNK), (chunks - 1) * CHUNK
        numbers = self.heads * _pairs(length)  # weights of the values
        numbers += (chunks - 1) * self.heads * self.keys * self.values  # states
        if decay:  # decayed queries and keys
            numbers += self.heads * self.keys * (later + summed)
        if learned_decay:  # scores, decays between positions, from the state, to the next state, and of the state
            numbers += (score_heads + self.heads) * _pairs(length)
            numbers += self.heads * (later + summed + max(0, chunks - 2))
        return int(numbers)


def _pairs(length: float) -> float:
    """Return the pairs of positions within chunks."""
    whole, rest = divmod(length, CHUNK)
    return whole * CHUNK**2 + rest**2
