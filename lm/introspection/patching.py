"""Activation patching: which activation of one prompt turns another prompt's prediction into its own.

The model reads the corrupt prompt, and one activation is replaced by that of the clean prompt. With the logit
difference LD = logit(target) - logit(against) after the last token, the effect is

    (LD_patched - LD_corrupt) / (LD_clean - LD_corrupt)      0: no effect, 1: the clean prediction is restored

(Meng et al. 2022; Wang et al. 2023). It shows what is sufficient in the corrupt prompt. What is necessary in the clean
one is another question: exchange the prompts.

Attribution patching estimates all effects to first order, from one forward pass of each prompt and one backward pass:

    sum (a_clean - a_corrupt) dLD/da / (LD_clean - LD_corrupt)      with the derivative in the corrupt prompt

(Nanda 2023; Syed et al. 2023). It is wrong where the model is far from linear, as in saturated attention and layer 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lm.introspection.activations import activation_names, observed
from lm.introspection.inference import inference_mode
from lm.introspection.trace import Trace
from lm.model import LanguageModel

LEAST = 0.02  # distance between the prompts' logit differences, as a share of their sizes
STREAM, ATTENTION, MLP, HEADS = "hook_resid_pre", "hook_attn_out", "hook_mlp_out", "attn.hook_z"


@dataclass(frozen=True)
class PatchingMaps:
    """Effects of patching; maps are float64, L layers by T positions, or by H heads."""

    clean: float
    """Logit difference after the clean prompt"""
    corrupt: float
    stream: Tensor
    """(L, T): the input of a layer at one position"""
    attention: Tensor
    """(L, T): the output of attention, or of another mixer, at one position"""
    mlp: Tensor | None
    """(L, T): the output of an MLP at one position; None without MLPs"""
    heads: Tensor | None
    """(L, H): the output of a head at all positions; NaN for a mixer without heads, None if no layer has any"""


def patching_maps(model: LanguageModel, clean: Tensor, corrupt: Tensor, target: int, against: int) -> PatchingMaps:
    """Return the effects of patching activations of `clean` (T,) into `corrupt` (T,), ids of a decoder.

    Raises ValueError for another architecture, for prompts of different lengths, and for prompts with nearly the same
    logit difference, by which the effects would be divided.
    """
    difference = partial(_difference, model, target, against)
    with inference_mode(model):
        whole, base = _ends(model, clean, corrupt, target, against)
        names, count = activation_names(model), len(clean)

        def effects(short: str, rows: int, heads: bool) -> Tensor:
            """Return the effects of an activation in every layer, each at `rows` positions or heads: (L, rows).

            The row of a layer without the activation is NaN.
            """
            found = torch.full((len(model.stack.blocks), rows), torch.nan, dtype=torch.float64, device=clean.device)
            for layer, name, value in _in_layers(model, clean, short):
                with observed(model, edits={name: _Patch(value, heads)}):
                    found[layer] = (difference(corrupt.expand(rows, count)) - base) / (whole - base)
            return found

        return PatchingMaps(
            whole,
            base,
            effects(STREAM, count, False),
            effects(ATTENTION, count, False),
            effects(MLP, count, False) if f"blocks.0.{MLP}" in names else None,
            effects(HEADS, model.config.heads, True) if any(HEADS in name for name in names) else None,
        )


def estimated_maps(model: LanguageModel, clean: Tensor, corrupt: Tensor, target: int, against: int) -> PatchingMaps:
    """Return the first-order estimates of `patching_maps` (attribution patching). Raises the same ValueErrors."""
    with inference_mode(model):
        whole, base = _ends(model, clean, corrupt, target, against)
        layers = len(model.stack.blocks)
        wanted = {f"blocks.{layer}.{short}" for short in (STREAM, ATTENTION, MLP, HEADS) for layer in range(layers)}
        names = [name for name in activation_names(model) if name in wanted]
        own, other = (Trace(model, ids[None]).record(*names) for ids in (clean, corrupt))
        added = {name: torch.zeros_like(other[name], requires_grad=True) for name in names}
        with torch.enable_grad(), observed(model, edits={name: partial(torch.add, x) for name, x in added.items()}):
            difference = _difference(model, target, against, corrupt[None]).sum()
            gradients = torch.autograd.grad(difference, list(added.values()))
    maps: dict[str, Tensor] = {}
    for name, gradient in zip(names, gradients, strict=True):
        product = ((own[name] - other[name]).double() * gradient.double())[0]  # (T, width), or (T, H, D)
        row = product.sum(dim=(0, 2) if product.dim() == 3 else 1) / (whole - base)
        _, layer, short = name.split(".", 2)
        maps.setdefault(short, row.new_full((layers, len(row)), torch.nan))[int(layer)] = row
    return PatchingMaps(whole, base, maps[STREAM], maps[ATTENTION], maps.get(MLP), maps.get(HEADS))


def _ends(model: LanguageModel, clean: Tensor, corrupt: Tensor, target: int, against: int) -> tuple[float, float]:
    """Return the logit differences of both prompts. Raises ValueError as `patching_maps` does."""
    if model.config.architecture != "decoder":
        raise ValueError(f"model.architecture is {model.config.architecture!r}, but patching needs a decoder")
    if clean.shape != corrupt.shape:
        raise ValueError(
            f"the prompts have {len(clean)} and {len(corrupt)} tokens, but need the same number: change one of them"
        )

    whole, base = _difference(model, target, against, torch.stack((clean, corrupt))).tolist()
    if abs(whole - base) <= LEAST * (abs(whole) + abs(base)):
        raise ValueError(
            f"the logit difference is {whole:.3f} after the clean prompt and {base:.3f} after the corrupt one, too "
            "close to measure what restores it: name a target and a token against it that the prompts tell apart"
        )
    return whole, base


def _difference(model: LanguageModel, target: int, against: int, ids: Tensor) -> Tensor:
    """Return the logit difference (B,) after ids (B, T)."""
    logits = model.logits(model(ids)[:, -1]).double()
    return logits[:, target] - logits[:, against]


def _in_layers(model: LanguageModel, ids: Tensor, short: str) -> Iterator[tuple[int, str, Tensor]]:
    """Yield the layer, the name and the value, (T, ...), of an activation in every layer that has it."""
    trace = Trace(model, ids[None])
    names = [(layer, f"blocks.{layer}.{short}") for layer in range(len(model.stack.blocks))]
    known = [(layer, name) for layer, name in names if name in trace]
    trace.record(*(name for _, name in known))
    for layer, name in known:
        yield layer, name, trace[name][0]


class _Patch:
    """Replaces an activation in a batch of equal prompts: in row i at position i, or in row i that of head i."""

    def __init__(self, clean: Tensor, heads: bool) -> None:
        self.clean, self.heads = clean, heads

    def __call__(self, x: Tensor) -> Tensor:
        x = x.clone()
        rows = torch.arange(len(x), device=x.device)
        if self.heads:
            x[rows, :, rows] = self.clean.transpose(0, 1)
        else:
            x[rows, rows] = self.clean
        return x
