"""What a model costs: parameters by component and FLOPs per token, counted from the modules that exist."""

from __future__ import annotations

import torch
from torch import nn

from lm.config import ModelConfig
from lm.layers import Embedding, LayerNorm, Linear, RMSNorm
from lm.model import MLP, Attention, LanguageModel, MaskedTokenHead, NextTokenHead, PositionalEmbedding
from lm.objectives import SELECTED

COMPONENTS = {  # the outermost module of one of these types owns a parameter
    NextTokenHead: "head",
    MaskedTokenHead: "head",
    Attention: "attention",
    MLP: "mlp",
    PositionalEmbedding: "positions",
    Embedding: "embedding",
    LayerNorm: "norms",
    RMSNorm: "norms",
}


def model_without_memory(config: ModelConfig) -> LanguageModel:
    """The model on the meta device: shapes without numbers, so that even 175 billion parameters count."""
    with torch.device("meta"):
        return LanguageModel(config)


def count_parameters(model: nn.Module) -> int:
    """Trained numbers; a tied output matrix counts once, in the embedding."""
    return sum(parameter.numel() for parameter in model.parameters())


def parameter_table(model: nn.Module) -> dict[str, int]:
    """Parameters of embedding, positions, attention, mlp, norms and head, and their total."""
    table = dict.fromkeys(("embedding", "positions", "attention", "mlp", "norms", "head"), 0)
    _add_owned(model, table)
    table["total"] = count_parameters(model)
    assert table["total"] == sum(table.values()) - table["total"], "a parameter belongs to no component"
    return table


def _add_owned(module: nn.Module, table: dict[str, int]) -> None:
    component = COMPONENTS.get(type(module))
    if component is not None:
        table[component] += count_parameters(module)
        return
    for child in module.children():
        _add_owned(child, table)


def flops_per_token(model: LanguageModel, length: int | None = None, selected: float = SELECTED) -> float:
    """Floating-point operations of training on one token, forward and backward.

    6 * (matrix weights applied) + 12 * layers * width * length: two operations a weight forward and four
    backward, and attention counted full, masked or not. `length` is the positions of a sequence, the
    context length where None. The head of a masked model is applied to the `selected` share only. Looking
    up an embedding multiplies nothing; the tied matrix counts where the head applies it.
    """
    length = model.config.context_length if length is None else length
    head = _matrix_weights(model.head) + model.output_weight().numel()
    if isinstance(model.head, MaskedTokenHead):
        head *= selected
    applied = _matrix_weights(model.trunk) + head
    return 6 * applied + 12 * model.config.layers * model.config.width * length


def _matrix_weights(module: nn.Module) -> int:
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, Linear))
