"""How often units fire, and where each is strongest: units of an MLP, or features of an autoencoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor, cat


@dataclass(frozen=True)
class UnitActivity:
    """The activity of H units over some positions."""

    tokens: int
    """Positions that were read"""
    fired: Tensor
    """(H,) int64: positions at which the unit fires"""
    strongest: Tensor
    """(K, H) float32: the activations of largest size, with their signs, in falling order of size"""
    positions: Tensor
    """(K, H) int64: their positions, counted over all that were read"""

    @classmethod
    def of(cls, values: Tensor, fires: Tensor, most: int) -> Self:
        """Return the activity in `values` (N, H) and `fires` (N, H) bool; K is at most `most`."""
        positions = values.abs().topk(min(most, len(values)), dim=0).indices
        return cls(len(values), fires.sum(dim=0), values.gather(0, positions).float(), positions)

    def joined(self, later: UnitActivity, most: int) -> UnitActivity:
        """Return the activity over these positions and then those of `later`; K is at most `most`."""
        values = cat((self.strongest, later.strongest))
        positions = cat((self.positions, later.positions + self.tokens))
        kept = values.abs().topk(min(most, len(values)), dim=0).indices
        fired = self.fired + later.fired
        return UnitActivity(self.tokens + later.tokens, fired, values.gather(0, kept), positions.gather(0, kept))
