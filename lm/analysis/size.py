"""How large a model is: parameters by component and FLOPs per token, counted from the modules that exist."""

from __future__ import annotations

import torch
from torch import nn

from lm.blocks import MLP, Attention
from lm.config import ModelConfig
from lm.heads import MaskedTokenHead, NextTokenHead, SequenceClassificationHead, TokenClassificationHead
from lm.layers import Embedding, LayerNorm, Linear, RMSNorm
from lm.model import LanguageModel, Stack
from lm.objectives import SELECTED
from lm.positions import PositionalEmbedding, RelativeBias

COMPONENTS = {  # the outermost module of one of these types owns a parameter
    NextTokenHead: "head",
    MaskedTokenHead: "head",
    SequenceClassificationHead: "head",
    TokenClassificationHead: "head",
    Attention: "attention",  # cross-attention too, and norms of queries and keys
    MLP: "mlp",
    PositionalEmbedding: "positions",
    RelativeBias: "positions",
    Embedding: "embedding",  # of tokens, token types and values
    LayerNorm: "norms",
    RMSNorm: "norms",
}


def meta_model(config: ModelConfig) -> LanguageModel:
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
    total = count_parameters(model)
    assert total == sum(table.values()), "a parameter belongs to no component"
    return {**table, "total": total}


def matrix_parameters(model: nn.Module) -> int:
    """Those with two axes, embeddings too: the total without biases and the weights of norms."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)


def non_embedding_parameters(model: LanguageModel) -> int:
    """The total without embeddings, positions and an output matrix of its own (Kaplan et al. 2020)."""
    table = parameter_table(model)
    own = 0 if model.head.weight is None else model.head.weight.numel()
    return table["total"] - table["embedding"] - table["positions"] - own


def flops_per_token(
    model: LanguageModel, length: float | None = None, selected: float = SELECTED, source_length: float | None = None
) -> float:
    """Floating-point operations of training on one token, forward and backward.

    6 * (matrix weights applied) + 12 * layers * width * min(length, window): two operations a weight forward and four
    backward, and attention counted full, masked or not; looking both ways a window is 2 window - 1 positions wide.
    `length` is the positions of a sequence, or their mean, the context length where None. The head of a masked model is
    applied to the `selected` share only, and so is what follows the last attention. Looking up an embedding multiplies
    nothing; the tied matrix counts where the head applies it.

    Of an encoder-decoder it is the mean over the tokens of a source of `source_length` (`length` where None) and a
    target of `length`: cross-attention's keys and values are made once for each token of the source, which each token
    of the target attends to.
    """
    length = model.config.context_length if length is None else length
    source_length = length if source_length is None else source_length
    head = _matrix_weights(model.head) + model.output_weight().numel()
    flops = 6 * head * length + _stack_flops(model.stack, length, source_length)
    if isinstance(model.head, MaskedTokenHead):
        last = model.stack.blocks[-1]
        spared = head + _matrix_weights(last.attention.output) + (0 if last.mlp is None else _matrix_weights(last.mlp))
        flops -= 6 * spared * (1.0 - selected) * length
    if model.stack is model.encoder or model.encoder is None:
        return flops / length
    return (flops + _stack_flops(model.encoder, source_length, 0)) / (length + source_length)


def _stack_flops(stack: Stack, length: float, source_length: float) -> float:
    """Of one sequence of `length` tokens, beside a source of `source_length` where there is cross-attention."""
    window = stack.config.window or length
    seen = min(length, window if stack.causal else 2 * window - 1)
    flops = 0
    for block in stack.blocks:
        flops += length * (6 * _matrix_weights(block) + 12 * block.attention.query.weight.shape[0] * seen)
        if block.cross_attention is not None:
            remembered = _matrix_weights(block.cross_attention.key) + _matrix_weights(block.cross_attention.value)
            flops += 6 * remembered * (source_length - length)
            flops += 12 * block.cross_attention.query.weight.shape[0] * source_length * length
    return flops


def _matrix_weights(module: nn.Module) -> int:
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, Linear))


def _add_owned(module: nn.Module, table: dict[str, int]) -> None:
    if isinstance(module, Stack):  # its own are the scales of skips from the embedding
        table["embedding"] += sum(parameter.numel() for parameter in module.parameters(recurse=False))
    component = COMPONENTS.get(type(module))
    if component is not None:
        table[component] += count_parameters(module)
        return
    for child in module.children():
        _add_owned(child, table)
