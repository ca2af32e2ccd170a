"""The base class of optimizers, with the facts that each optimizer states about itself.

A new optimizer is a module with a subclass that it names `OPTIMIZER`. `lm/optim/optimizer_settings.py` lists the module
in `OptimizerKind`, and its facts in `OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import unwrap
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from lm.optim.optimizer_settings import OptimizerSettings

Spread = Callable[[Callable[[Tensor], Tensor], Tensor, int], Tensor]
"""Maps (function, matrices (N, local rows, columns), rows) to the local rows of `function` of the full matrices."""


def one_process(function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
    """Return `function(matrices)`: the Spread of a process that has all rows."""
    return function(matrices)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How an optimizer computes its updates."""

    narrow: bool = True
    """Whether matrix products may be in bfloat16, which is slow on a CPU without bfloat16 instructions."""
    compiled: bool = False
    """Whether to fuse operations with torch.compile, which takes seconds and pays on a GPU."""
    spread: Spread = one_process
    """Divides matrix functions among ranks, and gathers the rows of sharded parameters."""


ONE_PROCESS = Execution()


class Optimizer(torch.optim.Optimizer):
    """An optimizer with what the trainer and the row threads need. Facts for tables are in `OPTIMIZERS`."""

    bound_by_products: ClassVar[bool]
    """Whether matrix products dominate a step. Threads then share it even if the model is small."""

    # Without decorators that import torch.compile: that takes 2 s of CPU time.
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)

    @classmethod
    def build(
        cls, decayed: list[Tensor], undecayed: list[Tensor], settings: OptimizerSettings, execution: Execution
    ) -> Self:
        """Return the optimizer of these parameters; `settings.weight_decay` applies to `decayed` only."""
        raise NotImplementedError

    @staticmethod
    def trains(model: nn.Module) -> list[Tensor]:
        """Return the parameters of `model` that this optimizer is for; AdamW trains the others."""
        raise NotImplementedError

    @staticmethod
    def cost(parameter: Tensor) -> int:
        """Return the relative cost of a parameter's update, by which threads divide the work."""
        return parameter.numel()
