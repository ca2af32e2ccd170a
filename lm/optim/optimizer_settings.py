"""Settings of an update. Imports no torch."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

OptimizerKind = Literal["adamw", "muon"]
"""The module of this package that defines the optimizer, as its class `OPTIMIZER`."""


class OptimizerFacts(NamedTuple):
    """Facts of an optimizer."""

    label: str
    """Name in tables"""
    moments: int
    """Tensors of state per parameter, each of the parameter's shape, in float32"""
    hidden_only: bool = False
    """Whether it trains only the matrices of blocks; AdamW trains the others"""
    width_exponent: float = 1.0
    """The best learning rate is about proportional to width^-width_exponent"""


# The spectral norm of a matrix's change must not grow with the width (Yang et al. 2023). At a given learning rate it
# grows with the width in AdamW, whose updates have low rank, and with the root of the width in our Muon.
OPTIMIZERS: dict[OptimizerKind, OptimizerFacts] = {
    "adamw": OptimizerFacts("AdamW", 2),
    "muon": OptimizerFacts("Muon", 1, hidden_only=True, width_exponent=0.5),
}


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Settings of an update; `lr` is the peak that a schedule multiplies."""

    kind: OptimizerKind = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    muon_lr: float = 0.0
    """Learning rate of the hidden matrices; 0: lr."""
    muon_momentum: float = 0.95
