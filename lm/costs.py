"""Parameters and training FLOPs of a built model, from its modules.

`lm.config_costs` has the same numbers, and bytes of memory, from a configuration alone.
"""

from __future__ import annotations

import torch
from torch import nn

from lm.config import SELECTED, ModelConfig
from lm.layers import Component
from lm.model import LanguageModel
from lm.task_model import TrainedModel


def meta_model(config: ModelConfig) -> LanguageModel:
    """Return the model on the meta device: shapes without storage, even for 175 billion parameters."""
    with torch.device("meta"):
        return LanguageModel(config, seed=None)


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters; a tied output matrix counts once, in the embedding."""
    return sum(parameter.numel() for parameter in model.parameters())


def parameter_table(model: LanguageModel) -> dict[str, int]:
    """Return the parameters of embedding, positions, mixers (by name), mlp, norms and head, and their total."""
    table = dict.fromkeys(("embedding", "positions", *model.config.mixer_pattern, "mlp", "norms", "head"), 0)
    _add_parameters(model, table, set())
    total = count_parameters(model)
    assert total == sum(table.values()), "a parameter belongs to no component"
    return {**table, "total": total}


def flops_per_token(
    model: TrainedModel, length: float | None = None, selected: float = SELECTED, source_length: float | None = None
) -> float:
    """Return the floating-point operations of training on one token, forward and backward.

    6 * (matrix weights applied) + 12 * layers * heads * head width * min(length, window): two operations a weight
    forward and four backward. Attention counts in full, masked or not; without causality a window is 2 window - 1
    positions wide. `length` is the length of a sequence or its mean, by default the context length. The head of a
    masked model, and its layers after the last attention, run on the share `selected` only. Embedding look-ups cost
    nothing; a tied matrix counts in the head.

    For an encoder-decoder, the mean over the tokens of a source of `source_length` (by default `length`) and a target
    of `length`. Each source token makes keys and values for cross-attention once; every target token attends to them.
    """
    length = model.config.context_length if length is None else length
    source_length = length if source_length is None else source_length
    predicted = length * selected if model.head.selected_only else length
    flops = model.head.flops(predicted) + model.stack.flops(length, predicted, source_length)
    if model.encoder is None or model.encoder is model.stack:
        return flops / length
    return (flops + model.encoder.flops(source_length, source_length)) / (length + source_length)


def _add_parameters(module: nn.Module, table: dict[str, int], counted: set[nn.Parameter]) -> None:
    if isinstance(module, Component):
        row = module.component or module.own_component
        if row is not None:
            new = set(module.parameters(recurse=module.component is not None)) - counted
            counted |= new
            table[row] = table.get(row, 0) + sum(parameter.numel() for parameter in new)
        if module.component is not None:
            return
    for child in module.children():
        _add_parameters(child, table, counted)
