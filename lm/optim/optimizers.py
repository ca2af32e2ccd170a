"""Groups of parameters, and the optimizers over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lm.optim.adamw import AdamW
from lm.optim.optimizer import ONE_PROCESS, Execution, Optimizer
from lm.optim.optimizer_settings import OptimizerKind, OptimizerSettings

Item = TypeVar("Item")
Groups = dict[type[Optimizer], tuple[list[Tensor], list[Tensor]]]
"""The parameters of each optimizer: a list with weight decay, and a list without."""


class Optimizers:
    """One or two optimizers over a partition of a model's parameters, stepped as one.

    Every group stores its peak learning rate and decay for `schedule`. The `shares` partition the parameters, so that
    threads can step them at the same time.
    """

    def __init__(self, shares: list[list[torch.optim.Optimizer]]) -> None:
        self.shares = shares
        self.parts = [part for share in shares for part in share]
        for group in self.param_groups:
            group["peak_lr"], group["peak_weight_decay"] = group["lr"], group["weight_decay"]

    def scale_rates(self, factors: Mapping[Tensor, float]) -> None:
        """Multiply the peak learning rate of each parameter by its factor, 1 by default.

        Each group becomes one group for each factor.
        """
        for part in self.parts:
            split = []
            for group in part.param_groups:
                parameters: dict[float, list[Tensor]] = {}
                for parameter in group["params"]:
                    parameters.setdefault(factors.get(parameter, 1.0), []).append(parameter)
                split += [
                    {**group, "params": own, "peak_lr": factor * group["peak_lr"]} for factor, own in parameters.items()
                ]
            part.param_groups = split

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All parameter groups."""
        return [group for part in self.parts for group in part.param_groups]

    def schedule(self, lr: float, weight_decay: float = 1.0) -> None:
        """Set every group's learning rate and decay to these multiples of the peaks."""
        for group in self.param_groups:
            group["lr"] = lr * group["peak_lr"]
            group["weight_decay"] = weight_decay * group["peak_weight_decay"]

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for share in range(len(self.shares)):
            self.step_share(share)

    def step_share(self, share: int) -> None:
        """Update every parameter of a share that has a gradient."""
        for part in self.shares[share]:
            part.step()

    def zero_grad(self, keep: bool = False) -> None:
        """Drop all gradients, or `keep` their memory and fill it with zeros."""
        for part in self.parts:
            part.zero_grad(set_to_none=not keep)

    def state(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Yield every parameter with its state, whose items may be replaced."""
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    yield parameter, part.state[parameter]


def optimizer_classes(kind: OptimizerKind) -> list[type[Optimizer]]:
    """Return the optimizers of a model that `kind` trains: AdamW, and `kind` itself if it is another."""
    chosen: type[Optimizer] = import_module(f"lm.optim.{kind}").OPTIMIZER
    return [AdamW] if chosen is AdamW else [AdamW, chosen]


def build_optimizers(
    model: nn.Module, settings: OptimizerSettings, execution: Execution = ONE_PROCESS, shares: int = 1
) -> Optimizers:
    """Return the optimizers of a model: each parameter belongs to exactly one group.

    Matrices and embeddings decay, vectors (biases, norms, scales) do not. `shares` is the number of threads that step
    the optimizers. A share has no optimizer of a kind for which it has no parameters.
    """
    built: list[list[torch.optim.Optimizer]] = [[] for _ in range(shares)]
    for optimizer, groups in partition(model, settings.kind).items():
        split = (balance([(p, optimizer.cost(p)) for p in group], shares) for group in groups)
        for parts, decayed, undecayed in zip(built, *split, strict=True):
            if decayed or undecayed:
                parts.append(optimizer.build(decayed, undecayed, settings, execution))
    return Optimizers(built)


def balance(items: Iterable[tuple[Item, int]], shares: int) -> list[list[Item]]:
    """Split items with their costs into `shares` lists of about equal total cost, each in the order of the items."""
    numbered = list(enumerate(items))
    loads = [0] * shares
    chosen: list[list[int]] = [[] for _ in range(shares)]
    for place, (_, cost) in sorted(numbered, key=lambda each: -each[1][1]):
        share = loads.index(min(loads))
        loads[share] += cost
        chosen[share].append(place)
    return [[numbered[place][1][0] for place in sorted(places)] for places in chosen]


def partition(model: nn.Module, kind: OptimizerKind) -> Groups:
    """Return each optimizer's parameters: every trained parameter once.

    Parameters of two or more axes decay: they multiply. Vectors shift or scale. A tied head is one parameter.
    """
    groups: Groups = {}
    left = {id(parameter): parameter for parameter in model.parameters() if parameter.requires_grad}
    for optimizer in reversed(optimizer_classes(kind)):
        taken = [left.pop(id(parameter)) for parameter in optimizer.trains(model) if id(parameter) in left]
        groups[optimizer] = [p for p in taken if p.ndim >= 2], [p for p in taken if p.ndim < 2]
    assert not left, "a parameter has no optimizer"
    return dict(reversed(groups.items()))
