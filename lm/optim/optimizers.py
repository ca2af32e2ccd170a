"""Who is trained by what: groups of parameters, and the optimizers over them as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import unwrap
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lm.blocks import Block
from lm.layers import Linear
from lm.optim.muon import Muon, Spread

OptimizerKind = Literal["adamw", "muon"]
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Everything that an update depends on besides gradients; `lr` is the peak that a schedule multiplies."""

    kind: OptimizerKind = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    muon_lr: float = 0.0
    """Of the hidden matrices; 0: lr."""
    muon_momentum: float = 0.95


class AdamW(torch.optim.AdamW):
    """torch's AdamW without its decorators for torch.compile, whose import takes 2 s of CPU time.

    The decorators keep the compiler out of these methods and `step` without gradients. We never compile them.
    """

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class Optimizers:
    """AdamW, and Muon where asked for, over a partition of a model's parameters, stepped as one.

    Every group remembers its peak learning rate and decay, so that `schedule` can multiply them. The `shares` partition
    the parameters, so that threads can step the shares at the same time.
    """

    def __init__(self, shares: list[list[torch.optim.Optimizer]]) -> None:
        self.shares = shares
        self.parts = [part for share in shares for part in share]
        for group in self.param_groups:
            group["peak_lr"], group["peak_weight_decay"] = group["lr"], group["weight_decay"]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all parts."""
        return [group for part in self.parts for group in part.param_groups]

    def schedule(self, lr: float, weight_decay: float = 1.0) -> None:
        """Set every group's learning rate and decay to these multiples of their peaks."""
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

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """(parameter, its state, which may be replaced item by item) of every parameter."""
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    yield parameter, part.state[parameter]


def build_optimizers(
    model: nn.Module,
    settings: OptimizerSettings,
    narrow: bool = True,
    compiled: bool = False,
    spread: Spread | None = None,
    shares: int = 1,
) -> Optimizers:
    """The optimizers of a model's parameters: each belongs to exactly one group.

    adamw (Loshchilov and Hutter 2019): matrices and embeddings decay, vectors (biases, norms, scales) do not. muon:
    the matrices of the blocks go to Muon, all else stays with AdamW. `narrow`, `compiled` and `spread`: see Muon.
    `shares`: the number of threads that step them.
    """
    hidden, decayed, kept = partition(model, settings.kind == "muon")
    split = (
        balanced([(p, p.numel() * min(p.shape)) for p in hidden], shares),
        balanced([(p, p.numel()) for p in decayed], shares),
        balanced([(p, p.numel()) for p in kept], shares),
    )
    muon = (narrow, compiled) if spread is None else (narrow, compiled, spread)
    return Optimizers([_build_share(settings, *share, muon) for share in zip(*split, strict=True)])


def balanced(items: Iterable[tuple[Item, int]], shares: int) -> list[list[Item]]:
    """Split items with their costs into `shares` lists of about equal total cost, each in the order of the items."""
    numbered = list(enumerate(items))
    loads, chosen = [0] * shares, [[] for _ in range(shares)]
    for place, (_, cost) in sorted(numbered, key=lambda each: -each[1][1]):
        share = loads.index(min(loads))
        loads[share] += cost
        chosen[share].append(place)
    return [[numbered[place][1][0] for place in sorted(places)] for places in chosen]


def _build_share(
    settings: OptimizerSettings, hidden: list[Tensor], decayed: list[Tensor], kept: list[Tensor], muon: tuple[Any, ...]
) -> list[torch.optim.Optimizer]:
    """Return AdamW for `decayed` and `kept`, and Muon for `hidden`; no optimizer for an empty list.

    AdamW is one fused kernel where torch has it: on the CPU a step of a 14M-parameter model then takes a third of the
    looped one's time.
    """
    parts: list[torch.optim.Optimizer] = []
    if decayed or kept:
        adamw = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": kept, "weight_decay": 0.0}]
        options = {"lr": settings.lr, "betas": (settings.beta1, settings.beta2), "eps": settings.eps}
        try:
            parts.append(AdamW(adamw, **options, fused=True))
        except RuntimeError:  # a device without the fused kernel
            parts.append(AdamW(adamw, **options))
    if hidden:
        lr = settings.muon_lr or settings.lr
        parts.append(Muon(hidden, lr, settings.weight_decay, settings.muon_momentum, *muon))
    return parts


def partition(model: nn.Module, muon: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(hidden matrices for Muon, what AdamW decays, what it does not): every parameter once.

    The shape decides between the last two: a parameter of two or more axes multiplies, one of a single axis shifts or
    scales. A tied head is one parameter and stands once.
    """
    hidden = _hidden_matrices(model) if muon else []
    taken = {id(parameter) for parameter in hidden}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in taken]
    decayed, kept = [p for p in others if p.ndim >= 2], [p for p in others if p.ndim < 2]
    grouped = [id(parameter) for group in (hidden, decayed, kept) for parameter in group]
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert sorted(grouped) == sorted(trained), "groups are no partition"
    return hidden, decayed, kept


def _hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of the linear layers inside blocks."""
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    layers = [layer for block in blocks for layer in block.modules() if isinstance(layer, Linear)]
    return [layer.weight for layer in layers if layer.weight.requires_grad]
