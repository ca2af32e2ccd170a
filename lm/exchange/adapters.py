"""Adapters in the format of peft: names, shapes and settings of its folders, read and written.

peft names the adapter of a matrix after it: `base_model.model.` + its layer + `.lora_A.weight` (rank, inputs) and
`.lora_B.weight` (outputs, rank), also where the format stores the matrix as (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.exchange import format_of
from lm.exchange.conversion import with_copies
from lm.exchange.format import Entry, Format
from lm.exchange.task_heads import TaskHead
from lm.lora import A, B
from lm.lora_config import LoraConfig

PREFIX, FIRST, SECOND, WEIGHT = "base_model.model.", ".lora_A.weight", ".lora_B.weight", ".weight"
TASK_TYPES = {"decoder": "CAUSAL_LM", "encoder": None, "encoder-decoder": "SEQ_2_SEQ_LM"}
PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "trainable_token_indices": (None,),
    "alora_invocation_tokens": (None,),
    "layer_replication": (None,),
    "use_qalora": (False,),
    "use_bdlora": (None,),
    "kasa_config": (None,),
    "arrow_config": (None,),
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),  # others change the weights of the base too
}
"""Settings that we read in one meaning only, with their values; the first is the default"""


def to_peft(
    config: ModelConfig, lora: LoraConfig, weights: Mapping[str, Tensor], model_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return adapter_config.json and the tensors of the adapters in `weights`, the `state_dict` of a language model.

    GPT-2 and GPT-NeoX have query, key and value in one matrix. Its adapter has their ranks together: the A below one
    another, and each B in its own rows and columns. All other adapters of the model then get that rank too, filled up
    with zeros. Raises ValueError as `format_of` does.
    """
    chosen, weights = format_of(config, model_type), with_copies(config, weights)
    found = {entry: [name for name in entry.ours if _adapter(name)[0] in weights] for entry in chosen.entries(config)}
    adapted = {entry: names for entry, names in found.items() if names}
    rank = lora.rank * max(map(len, adapted.values()))
    tensors = {}
    for entry, names in adapted.items():
        a = torch.cat([weights[_adapter(name)[0]] for name in names])
        tensors[_layer(entry) + FIRST] = _filled(a, 0, rank)
        tensors[_layer(entry) + SECOND] = _filled(_joined(entry, names, weights), 1, rank)
    alpha = lora.scale * rank
    settings = {
        "peft_type": "LORA",
        "task_type": TASK_TYPES[config.architecture],
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": lora.dropout,
        "target_modules": [_layer(entry).removeprefix(PREFIX) for entry in adapted],
        "fan_in_fan_out": any(entry.transposed for entry in adapted),
        "bias": "none",
        "modules_to_save": None,
        "inference_mode": True,
    }
    return settings, {name: tensor.contiguous() for name, tensor in tensors.items()}


def fold_peft(
    chosen: Format | TaskHead,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return our `weights` with the adapters of a folder of peft folded in.

    A head that peft trained beside the adapters (`modules_to_save`) replaces ours. Raises ValueError, by name, for a
    setting that means more than an adapter beside a matrix, and for tensors without a place.
    """
    for key, accepted in PLAIN.items():
        if settings.get(key, accepted[0]) not in accepted:
            raise ValueError(
                f"adapter_config.json has {key} = {settings[key]!r}, but only {accepted[0]!r} is supported: merge the "
                "adapter with peft, and import the merged model"
            )
    rank, alpha = settings.get("r"), settings.get("lora_alpha")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float):
        raise ValueError(
            f"adapter_config.json has r = {rank!r} and lora_alpha = {alpha!r}, which are no rank and scale"
        )
    scale = alpha / (sqrt(rank) if settings.get("use_rslora") else rank)
    result, left = dict(weights), dict(tensors)
    for entry in chosen.entries(config):
        spellings = _spellings(entry, chosen)
        trained = next((name for name in spellings if name in left), None)
        if trained is not None and entry.ours[0].startswith("head."):
            result |= entry.checked(left.pop(trained), weights)
        layers = [name.removesuffix(WEIGHT) for name in spellings]
        layer = next((layer for layer in layers if layer + FIRST in left), None)
        if layer is None:
            continue
        a, b = left.pop(layer + FIRST).float(), left.pop(layer + SECOND, torch.empty(0)).float()
        rows = replace(entry, transposed=False)
        outputs, inputs = rows.pack(weights).shape
        if a.shape != (rank, inputs) or b.shape != (outputs, rank):
            raise ValueError(
                f"the adapter of {layer} has the shapes {tuple(a.shape)} and {tuple(b.shape)}, but the model and r "
                f"make them {(rank, inputs)} and {(outputs, rank)}: they are of two models"
            )
        change = scale * (b @ a)
        if not bool(change.isfinite().all()):
            raise ValueError(f"the adapter of {layer} holds values that are NaN or infinite: use another copy")
        for name, part in rows.unpack(change).items():
            result[name] = result[name] + part
    if left:
        raise ValueError(f"the adapter has {min(left)}, for which this {chosen.name} model has no place")
    return result


def _adapter(weight: str) -> tuple[str, str]:
    """Return our names of the two matrices of the adapter of a weight."""
    layer = weight.removesuffix(WEIGHT)
    return layer + A, layer + B


def _layer(entry: Entry) -> str:
    return PREFIX + entry.theirs.removesuffix(WEIGHT)


def _spellings(entry: Entry, chosen: Format | TaskHead) -> tuple[str, str]:
    """Return the names of a tensor with and without the prefix that adapters of a bare model lack."""
    return PREFIX + entry.theirs, PREFIX + entry.theirs.removeprefix(chosen.prefix)


def _joined(entry: Entry, names: list[str], weights: Mapping[str, Tensor]) -> Tensor:
    """Return the joint matrix B of our layers in an entry. Each layer has its own rows and its own columns."""
    parts, like = {}, weights[_adapter(names[0])[1]]
    for name in entry.ours:
        parts[name] = like.new_zeros(len(like), len(names), like.shape[1])
        if name in names:
            parts[name][:, names.index(name)] = weights[_adapter(name)[1]]
    flat = {name: part.flatten(1) for name, part in parts.items()}
    return replace(entry, transposed=False).pack(flat)


def _filled(matrix: Tensor, axis: int, size: int) -> Tensor:
    """Return a matrix with zeros up to `size` along an axis."""
    shape = list(matrix.shape)
    shape[axis] = size - shape[axis]
    return torch.cat([matrix, matrix.new_zeros(shape)], dim=axis)
