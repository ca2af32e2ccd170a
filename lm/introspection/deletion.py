"""Deleting parts of a model: the output of a layer, head or MLP becomes its mean over a reference text, or zero.

The mean keeps what the part adds on average, so that only what it tells apart is lost. Zero is a value that the next
layers have never read. Parts are named "layers.3", "attention.3", "mlp.3" and "heads.3.1", layer and head from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from lm.introspection.activations import Edit, activation_names, observed
from lm.introspection.inference import inference_mode
from lm.model import LanguageModel

Means = Mapping[str, Tensor]
"""Means of activations over sequences and positions, by name, without these two axes"""
_PART = re.compile(r"(layers|attention|mlp)\.(\d{1,5})|heads\.(\d{1,5})\.(\d{1,5})")


def all_parts(model: LanguageModel) -> list[str]:
    """Return the names of all parts: layers, then attention, heads and MLPs, by layer."""
    config, names = model.config, set(activation_names(model))
    layers = range(len(model.stack.blocks))
    parts = [f"layers.{layer}" for layer in layers]
    for layer in layers:
        parts.append(f"attention.{layer}")
        if f"blocks.{layer}.attn.hook_z" in names:
            parts += [f"heads.{layer}.{head}" for head in range(config.heads)]
        parts += [f"mlp.{layer}"] if config.mlp else []
    return parts


def check_parts(model: LanguageModel, parts: Sequence[str]) -> None:
    """Raise ValueError for a part that a model lacks, and for an encoder-decoder."""
    if model.config.architecture == "encoder-decoder":
        raise ValueError(
            "model.architecture is 'encoder-decoder', and a part such as layers.0 cannot name one of its stacks: give "
            "a decoder or an encoder"
        )
    known = all_parts(model)
    for part in parts:
        if part in known:
            continue
        if not _PART.fullmatch(part):
            raise ValueError(
                f"{part!r} is no part of a model: name one such as layers.0, heads.0.1, attention.0, mlp.0"
            )
        kind = part.partition(".")[0]
        own = [name for name in known if name.startswith(f"{kind}.")]
        if not own:
            why = "model.mlp is false" if kind == "mlp" else f"its mixer is {model.config.mixer_names}"
            raise ValueError(f"the model has no {part}: {why}")
        raise ValueError(f"the model has no {part}: it has {own[0]} to {own[-1]}")


def mean_activations(model: LanguageModel, batches: Iterable[Mapping[str, Tensor]], parts: Sequence[str]) -> Means:
    """Return what deleted `parts` are replaced by: float32 means over all positions of `batches`.

    A batch has the arguments of the model by name, such as `ids` (B, T).
    """
    names = sorted({name for part in parts for name, _ in _activations(model, part)})
    sums: dict[str, Tensor] = {}
    count = 0
    with inference_mode(model), observed(model, names) as found:
        for batch in batches:
            model(**batch)
            count += batch["ids"].numel()
            for name in names:
                total = found[name].double().sum(dim=(0, 1))
                sums[name] = sums[name] + total if name in sums else total
    return {name: (total / count).float() for name, total in sums.items()}


def deletions(model: LanguageModel, parts: Sequence[str], means: Means | None) -> dict[str, Edit]:
    """Return the edits of activations that delete `parts`; without `means` their outputs become zero.

    They are for `observed`. Raises ValueError as `check_parts` does.
    """
    check_parts(model, parts)
    heads: dict[str, list[int]] = {}
    edits: dict[str, Edit] = {}
    for part in parts:
        for name, head in _activations(model, part):
            if head is None:
                edits[name] = torch.zeros(()) if means is None else means[name]
            else:
                heads.setdefault(name, []).append(head)
    for name, gone in heads.items():
        edits[name] = partial(_without_heads, heads=gone, mean=None if means is None else means[name])
    return edits


def _activations(model: LanguageModel, part: str) -> list[tuple[str, int | None]]:
    """Return the activations of a part; with the number of a head, that head of it."""
    kind, layer, *head = part.split(".")
    if kind == "heads":
        return [(f"blocks.{layer}.attn.hook_z", int(head[0]))]
    names = {"attention": ["hook_attn_out"], "mlp": ["hook_mlp_out"], "layers": ["hook_attn_out", "hook_mlp_out"]}[kind]
    return [(f"blocks.{layer}.{name}", None) for name in names if model.config.mlp or name != "hook_mlp_out"]


def _without_heads(z: Tensor, heads: Sequence[int], mean: Tensor | None) -> Tensor:
    """Return z (..., H, D) with `heads` replaced by their `mean` (H, D), or by zeros."""
    z = z.clone()
    z[..., heads, :] = 0.0 if mean is None else mean[list(heads)].to(z)
    return z
