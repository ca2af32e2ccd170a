"""What a model costs, from its modules: parameters by component, FLOPs per token, and bytes of memory."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from lm.config import ModelConfig
from lm.layers import Component
from lm.masks import Mask
from lm.model import LanguageModel, Stack
from lm.objectives import SELECTED
from lm.optim.optimizer_settings import OptimizerKind
from lm.optim.optimizers import partition
from lm.task_model import TrainedModel


def meta_model(config: ModelConfig) -> LanguageModel:
    """Return the model on the meta device: shapes without storage, even for 175 billion parameters."""
    with torch.device("meta"):
        return LanguageModel(config, seed=None)


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters; a tied output matrix counts once, in the embedding."""
    return sum(parameter.numel() for parameter in model.parameters())


def parameter_table(model: LanguageModel) -> dict[str, int]:
    """Return the parameters of embedding, positions, mixer (by its name), mlp, norms and head, and their total."""
    table = dict.fromkeys(("embedding", "positions", model.config.mixer, "mlp", "norms", "head"), 0)
    _add_parameters(model, table)
    total = count_parameters(model)
    assert total == sum(table.values()), "a parameter belongs to no component"
    return {**table, "total": total}


def matrix_parameters(model: nn.Module) -> int:
    """Return the number of parameters in matrices and embeddings, without biases and the weights of norms."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.ndim > 1)


def non_embedding_parameters(model: LanguageModel) -> int:
    """Return the total without embeddings, positions and an untied output matrix (Kaplan et al. 2020)."""
    table = parameter_table(model)
    untied = 0 if model.head.weight is None else model.head.weight.numel()
    return table["total"] - table["embedding"] - table["positions"] - untied


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


def _add_parameters(module: nn.Module, table: dict[str, int]) -> None:
    if isinstance(module, Component):
        if module.component is not None:
            table[module.component] = table.get(module.component, 0) + count_parameters(module)
            return
        if module.own_component is not None:
            table[module.own_component] += sum(parameter.numel() for parameter in module.parameters(recurse=False))
    for child in module.children():
        _add_parameters(child, table)


MASTER_BYTES = 4  # weights, their gradients and an optimizer's moments are float32


def training_bytes(model: nn.Module, optimizer: OptimizerKind = "adamw") -> dict[str, int]:
    """Return the bytes of `weights`, `gradients` and the `moments` of the model's optimizers."""
    weights = MASTER_BYTES * count_parameters(model)
    gradients = MASTER_BYTES * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    moments = sum(
        MASTER_BYTES * kind.moments * sum(parameter.numel() for group in groups for parameter in group)
        for kind, groups in partition(model, optimizer).items()
    )
    return {"weights": weights, "gradients": gradients, "moments": moments}


def cache_bytes_per_token(model: LanguageModel, dtype: torch.dtype) -> int:
    """Return the bytes that a token adds to a decoder's state, such as its keys and values; 0 for an encoder."""
    return cache_bytes(model, dtype, 1) - cache_bytes(model, dtype, 0)


def cache_bytes(model: LanguageModel, dtype: torch.dtype, length: int, source_length: int = 0) -> int:
    """Return the bytes of a sequence's state after `length` tokens in the `dtype` of `storage_dtype`; 0 for an encoder.

    The KV cache of attention with windows holds the tokens in sight only. An encoder-decoder also caches the keys and
    values of `source_length` tokens.
    """
    blocks = () if model.decoder is None else model.decoder.blocks
    cross = sum(block.cross_attention.key_value_width for block in blocks if block.cross_attention)
    return dtype.itemsize * (sum(block.mixer.state_size(length) for block in blocks) + source_length * cross)


def activation_bytes(config: ModelConfig, dtype: torch.dtype, length: int | None = None) -> int:
    """Estimate the bytes that autograd saves in the forward pass of one sequence.

    The sequence has `length` tokens, by default the context length; an encoder-decoder also reads a source of that
    length. The estimate runs the blocks uncompiled, as on a GPU: with one product for queries, keys and values, and a
    fused attention that saves them, its output and one number per query. A masked model predicts the share `SELECTED`
    of the positions. Compiled code saves less; dropout and other attention backends save more.
    """
    length = config.context_length if length is None else length
    model = meta_model(config).to(dtype).eval()  # weights in `dtype`: no casts that autograd would save
    model.compute_dtype = dtype
    return _saved_bytes(model, 2, length) - _saved_bytes(model, 1, length)  # copies of weights are saved once


def _saved_bytes(model: LanguageModel, batch: int, length: int) -> int:
    """Return the bytes that autograd saves for `batch` sequences, parameters excluded."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}  # by storage: views of a tensor count once

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in weights:
            saved[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        predicted = model.head(_read_on_meta(model, torch.zeros(batch, length, dtype=torch.int64, device="meta")))
    loss = predicted.numel() * predicted.dtype.itemsize  # the loss saves only the gradient of its rows
    return loss + sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def _read_on_meta(model: LanguageModel, ids: Tensor) -> Tensor:
    """Return the hidden states of predicted positions of `ids`, which are an encoder-decoder's source too."""

    def read(stack: Stack, **options: Any) -> Tensor:
        mixes = [_fused] * len(stack.blocks) if model.config.mixer == "attention" else None
        mask = Mask(causal=stack.causal)
        return stack(model.embed(ids), ids, dtype=model.compute_dtype, mask=mask, mixes=mixes, **options)

    if model.encoder is None:
        return read(model.stack)
    if model.decoder is None:
        return read(model.stack, rows=torch.arange(math.ceil(SELECTED * ids.numel()), device="meta"))
    keys_values = model.decoder.cross_keys_values(read(model.encoder))
    return read(model.decoder, cross_attends=[partial(_fused, k=k, v=v) for k, v in keys_values])


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = _FusedAttention.apply(q, k, v)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return out


class _FusedAttention(torch.autograd.Function):
    """Saves the tensors that fused attention saves (Dao 2023), without attending: meta tensors have no values."""

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out
