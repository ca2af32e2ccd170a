"""An adapter in the format of peft, folded into the weights of the run that it was trained for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm.exchange import format_of
from lm.exchange.adapters import fold_peft
from lm.exchange.task_heads import expressed_head
from pipelines.files import read_json, read_tensors
from pipelines.run.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Run

WEIGHT, BIAS = "head.output.weight", "head.output.bias"


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings and the tensors of a folder that peft saved; ValueError if a file is missing or damaged."""
    settings: dict[str, Any] = read_json(folder / ADAPTER_CONFIG, "save the adapter again")
    return settings, read_tensors(folder / ADAPTER_WEIGHTS)


def with_adapter(run: Run, weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Return the `state_dict` of a run with the adapter in `folder` folded in.

    The adapter belongs to the export of the run. Raises ValueError for a run that transformers has no class for, and
    for an adapter of another model.
    """
    recipe, model_type, adapter = run.recipe, run.facts.get("model_type"), read_adapter(folder)
    try:
        if recipe.model.layer_groups:
            raise ValueError(
                f"an adapter has matrices for each layer, but model.layer_groups={recipe.model.layer_groups} shares "
                "the weights of layers: export the run with export-hf, and import the export with the adapter"
            )
        if recipe.head is None:
            return fold_peft(format_of(recipe.model, model_type), recipe.model, weights, *adapter)
        found = expressed_head(recipe.model, recipe.head, model_type)
        mean, deviation = (getattr(recipe.task, name, default) for name, default in (("mean", 0.0), ("deviation", 1.0)))
        folded = fold_peft(found, recipe.model, _in_units(weights, mean, deviation), *adapter)
        if mean and BIAS not in weights and not torch.equal(folded[WEIGHT], weights[WEIGHT] * deviation):
            raise ValueError(
                f"it trained the head, and {found.auto_class} has no bias there that holds the mean of the numbers: "
                "merge the adapter with peft, and import the merged model"
            )
        return _in_units(folded, -mean / deviation, 1 / deviation)
    except ValueError as error:
        raise ValueError(f"the adapter {folder} does not fit {run.folder}: {error}") from None


def _in_units(weights: Mapping[str, Tensor], mean: float, deviation: float) -> dict[str, Tensor]:
    """Return weights whose outputs are scaled by `deviation` and shifted by `mean`, as in an export."""
    changed = {name: weights[name] * deviation for name in (WEIGHT, BIAS) if name in weights}
    if BIAS in changed:
        changed[BIAS] += mean
    return {**weights, **changed}
