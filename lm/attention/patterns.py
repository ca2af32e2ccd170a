"""Sparse patterns of attention: which other positions a query sees. Causality and a window hide more of them.

With l = `config.pattern_size` and c = `config.pattern_count`, a query at i sees a key at j if

    dilated   l divides i - j                                                        (Longformer, Beltagy et al. 2020)
    strided   |i - j| < l, or l divides i - j                                        (Child et al. 2019, 4.2)
    fixed     i and j are in one block of l, or j is one of the last c of its block  (Child et al. 2019, 4.2)
    global    |i - j| < l, or i or j is one of the first c positions                 (Longformer, Beltagy et al. 2020)
    random    the blocks of i and j are the same, neighbours or joined by chance,    (BigBird, Zaheer et al. 2020)
              or one of them is the first; each block draws c of the blocks before it

The two kinds of heads of Child et al. are merged, so that all heads see the same. Global positions have no projections
of their own. Every position sees itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lm.config import ModelConfig


class AttentionPattern(nn.Module):
    """The pattern of `config.attention_pattern`: positions of queries and keys, int64, to bool; they broadcast."""

    joined: Tensor
    """bool (blocks, blocks): pairs of blocks that one of them drew. Later blocks share the row of the last one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.size, self.count = config.attention_pattern, config.pattern_size, config.pattern_count
        if self.kind == "random":
            blocks = -(-config.context_length // self.size)
            self.register_buffer("joined", drawn_blocks(blocks, self.count), persistent=False)

    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        """Return whether queries at `i` see keys at `j`."""
        size, count = self.size, self.count
        match self.kind:
            case "dilated":
                return (i - j) % size == 0
            case "strided":
                return ((i - j).abs() < size) | ((i - j) % size == 0)
            case "fixed":
                return (i // size == j // size) | (j % size >= size - count)
            case "global":
                return ((i - j).abs() < size) | (i < count) | (j < count)
            case "random":
                row, column = i // size, j // size
                near = ((row - column).abs() <= 1) | (row == 0) | (column == 0)
                last = len(self.joined) - 1
                return near | self.joined[row.clamp(0, last), column.clamp(0, last)]
        raise AssertionError(f"there is no pattern {self.kind!r}")


def attention_pattern(config: ModelConfig) -> AttentionPattern | None:
    """Return the pattern that `config` names, None for dense attention."""
    return None if config.attention_pattern == "none" else AttentionPattern(config)


def drawn_blocks(blocks: int, count: int) -> Tensor:
    """Return bool (blocks, blocks), symmetric: each block draws up to `count` of the blocks before it.

    The draws of a block depend on its number alone, so they are the same in every length and in generation.
    """
    drawn = torch.zeros(blocks, blocks, dtype=torch.bool)
    for block in range(1, blocks):
        order = torch.randperm(block, generator=torch.Generator().manual_seed(block))
        drawn[block, order[:count]] = True
    return drawn | drawn.T
