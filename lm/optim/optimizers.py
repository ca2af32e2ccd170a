"""Groups of parameters, and the optimizers over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from itertools import starmap
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


class AdamW(torch.optim.AdamW):
    """torch's AdamW without decorators that import torch.compile: that takes 2 s of CPU time.

    They only keep the compiler out of these methods, which are never compiled here, and gradients out of `step`.
    """

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class Optimizers:
    """AdamW and optionally Muon over a partition of a model's parameters, stepped as one.

    Every group stores its peak learning rate and decay for `schedule`. The `shares` partition the parameters, so that
    threads can step them at the same time.
    """

    def __init__(self, shares: list[list[torch.optim.Optimizer]]) -> None:
        self.shares = shares
        self.parts = [part for share in shares for part in share]
        for group in self.param_groups:
            group["peak_lr"], group["peak_weight_decay"] = group["lr"], group["weight_decay"]

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


def build_optimizers(
    model: nn.Module,
    settings: OptimizerSettings,
    narrow: bool = True,
    compiled: bool = False,
    spread: Spread | None = None,
    shares: int = 1,
) -> Optimizers:
    """Return the optimizers of a model: each parameter belongs to exactly one group.

    adamw (Loshchilov and Hutter 2019): matrices and embeddings decay, vectors (biases, norms, scales) do not. muon:
    Muon trains the matrices of the blocks, AdamW the rest. `narrow`, `compiled` and `spread`: see Muon. `shares`: the
    number of threads that step them.
    """
    hidden, decayed, undecayed = partition(model, settings.kind == "muon")
    split = (
        balanced([(p, p.numel() * min(p.shape)) for p in hidden], shares),
        balanced([(p, p.numel()) for p in decayed], shares),
        balanced([(p, p.numel()) for p in undecayed], shares),
    )
    muon = (narrow, compiled) if spread is None else (narrow, compiled, spread)
    return Optimizers([_build_share(settings, *share, muon) for share in zip(*split, strict=True)])


def balanced(items: Iterable[tuple[Item, int]], shares: int) -> list[list[Item]]:
    """Split items with their costs into `shares` lists of about equal total cost, each in the order of the items."""
    numbered = list(enumerate(items))
    loads = [0] * shares
    chosen: list[list[int]] = [[] for _ in range(shares)]
    for place, (_, cost) in sorted(numbered, key=lambda each: -each[1][1]):
        share = loads.index(min(loads))
        loads[share] += cost
        chosen[share].append(place)
    return [[numbered[place][1][0] for place in sorted(places)] for places in chosen]


def _build_share(
    settings: OptimizerSettings,
    hidden: list[Tensor],
    decayed: list[Tensor],
    undecayed: list[Tensor],
    muon: tuple[Any, ...],
) -> list[torch.optim.Optimizer]:
    """Return AdamW for `decayed` and `undecayed`, and Muon for `hidden`; no optimizer for an empty list.

    AdamW is one fused kernel if torch has it. On the CPU that takes a third of the time of the loop for a step of a
    14M-parameter model.
    """
    parts: list[torch.optim.Optimizer] = []
    if decayed or undecayed:
        groups = [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": undecayed, "weight_decay": 0.0},
        ]
        kinds = {(parameter.device, parameter.dtype) for parameter in (*decayed, *undecayed)}
        betas, fused = (settings.beta1, settings.beta2), all(starmap(has_fused_adamw, kinds))
        parts.append(AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=fused or None))
    if hidden:
        lr = settings.muon_lr or settings.lr
        parts.append(Muon(hidden, lr, settings.weight_decay, settings.muon_momentum, *muon))
    return parts


@cache
def has_fused_adamw(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch's fused AdamW steps parameters of this kind; torch refuses others only when they step."""
    parameter = torch.zeros(1, device=device, dtype=dtype, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    try:
        AdamW([parameter], fused=True).step()
    except RuntimeError:  # NotImplementedError is one
        return False
    return True


def partition(model: nn.Module, muon: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return (hidden matrices for Muon, parameters that AdamW decays, the rest): every parameter once.

    Parameters of two or more axes decay: they multiply. Vectors shift or scale. A tied head is one parameter.
    """
    hidden = _hidden_matrices(model) if muon else []
    in_muon = {id(parameter) for parameter in hidden}
    others: list[Tensor] = [p for p in model.parameters() if p.requires_grad and id(p) not in in_muon]
    decayed, undecayed = [p for p in others if p.ndim >= 2], [p for p in others if p.ndim < 2]
    grouped = [id(parameter) for group in (hidden, decayed, undecayed) for parameter in group]
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    assert sorted(grouped) == sorted(trained), "groups are no partition"
    return hidden, decayed, undecayed


def _hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Return the weights of the linear layers inside blocks."""
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    layers = [layer for block in blocks for layer in block.modules() if isinstance(layer, Linear)]
    return [layer.weight for layer in layers if layer.weight.requires_grad]
