"""Settings of an update. Imports no torch."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

OptimizerKind = Literal["adamw", "muon"]
"""The module of this package that defines the optimizer, as its class `OPTIMIZER`."""


class OptimizerFacts(NamedTuple):
    """Facts of an optimizer, for tables of memory."""

    label: str
    """Name in tables"""
    moments: int
    """Tensors of state per parameter, each of the parameter's shape, in float32"""
    hidden_only: bool = False
    """Whether it trains only the matrices of blocks; AdamW trains the others"""


OPTIMIZERS: dict[OptimizerKind, OptimizerFacts] = {
    "adamw": OptimizerFacts("AdamW", 2),
    "muon": OptimizerFacts("Muon", 1, hidden_only=True),
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
