"""The configuration of low-rank adapters. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from lm.values import check_fields, check_ranges

ALL = "all"
"""Target name for all linear layers of the blocks"""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters, which train instead of the weights of the model (Hu et al. 2021)."""

    rank: int = 0
    """Rank of the adapters. Only the adapters and the head of the task train; 0: no adapters"""
    alpha: float = 16.0
    """Scale: the output of an adapter is multiplied by alpha / rank"""
    targets: tuple[str, ...] = ("query", "value")
    """Linear layers of the blocks that get an adapter: query, key, value, output, up, gate, down, or all"""
    dropout: float = 0.0
    """Dropout probability of the inputs of adapters"""

    def __post_init__(self) -> None:
        check_fields(self, "lora.")
        if self.rank < 0:
            raise ValueError(f"`lora.rank` is {self.rank}, but must not be negative")
        if self.alpha <= 0:
            raise ValueError(f"`lora.alpha` is {self.alpha:g}, but must be above 0")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`lora.dropout` is {self.dropout:g}: give a share from 0 to below 1")
        if not self.targets:
            raise ValueError(f"`lora.targets` is empty: name linear layers, such as query value, or {ALL}")
        check_ranges(self, "`lora.{}`")

    @property
    def scale(self) -> float:
        """The factor of the output of an adapter."""
        return self.alpha / self.rank
