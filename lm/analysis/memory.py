"""The bytes that a model takes: in training, and in generation with a KV cache."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lm.analysis.size import count_parameters, meta_model
from lm.blocks import Attention, KeysValues
from lm.config import ModelConfig
from lm.masks import Mask
from lm.model import LanguageModel, Stack
from lm.objectives import SELECTED
from lm.optim.optimizers import OptimizerKind, partition

MASTER_BYTES = 4  # weights, their gradients and an optimizer's moments are float32


def training_bytes(model: nn.Module, optimizer: OptimizerKind = "adamw") -> dict[str, int]:
    """Bytes of `weights`, `gradients` and the optimizer's `moments`: two a parameter, one in a matrix that Muon has."""
    parameters = count_parameters(model)
    with_one = sum(matrix.numel() for matrix in partition(model, optimizer == "muon")[0])
    weights = MASTER_BYTES * parameters
    return {"weights": weights, "gradients": weights, "moments": MASTER_BYTES * (2 * parameters - with_one)}


def cache_bytes_per_token(model: LanguageModel, dtype: torch.dtype) -> int:
    """Keys and values that a decoder keeps of each token that it has read; none in an encoder."""
    if model.decoder is None:
        return 0
    return dtype.itemsize * sum(_key_value_width(block.attention) for block in model.decoder.blocks)


def cache_bytes(model: LanguageModel, dtype: torch.dtype, length: int, source_length: int = 0) -> int:
    """Bytes of one sequence's KV cache after `length` tokens, of which a window keeps only its own; an encoder-decoder
    also keeps keys and values of `source_length` tokens. `dtype` is that of `lm.decoding.cache.storage_dtype`."""
    kept = min(length, model.config.window or length) * cache_bytes_per_token(model, dtype)
    if model.encoder is None or model.decoder is None:
        return kept
    memory = sum(_key_value_width(block.cross_attention) for block in model.decoder.blocks)
    return kept + source_length * dtype.itemsize * memory


def activation_bytes(config: ModelConfig, dtype: torch.dtype, length: int | None = None) -> int:
    """About how many bytes the forward pass keeps for the backward pass of one sequence (of an encoder-decoder: one
    source and one target) of `length` tokens, the context length where None.

    An estimate: what autograd saves when the blocks run one by one, with a fused attention that keeps queries, keys,
    values, what comes out and one number a query; a masked model predicts `SELECTED` of the positions. Compiled code
    keeps less, dropout and other attention more.
    """
    length = config.context_length if length is None else length
    model = meta_model(config).to(dtype).eval()  # in `dtype`, so that no cast weight counts
    model.compute_dtype = dtype
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}  # by storage: views of one tensor count once

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in weights:
            kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        predicted = model.head(_read_on_meta(model, torch.zeros(1, length, dtype=torch.int64, device="meta")))
    loss = predicted.numel() * dtype.itemsize  # the loss keeps the gradient of its rows alone
    return loss + sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _read_on_meta(model: LanguageModel, ids: Tensor) -> Tensor:
    """The hidden states of `ids` that something is predicted from, by way of a fused attention; an encoder-decoder
    reads `ids` as source too."""

    def read(stack: Stack, **options: Any) -> Tensor:
        attends = [_FusedAttention.apply] * len(stack.blocks)
        return stack(model.embed(ids), ids, dtype=model.compute_dtype, mask=Mask(), attends=attends, **options)

    if model.encoder is None:
        return read(model.stack)
    if model.decoder is None:
        return read(model.stack, rows=torch.arange(math.ceil(SELECTED * ids.numel()), device="meta"))
    keys_values = model.decoder.cross_keys_values(read(model.encoder))
    return read(model.decoder, cross_attends=[partial(_cross_attend, pair) for pair in keys_values])


def _cross_attend(keys_values: KeysValues, q: Tensor) -> Tensor:
    return _FusedAttention.apply(q, *keys_values)


class _FusedAttention(torch.autograd.Function):
    """What a fused attention keeps (Dao 2023), without attending: there are no numbers on the meta device."""

    @staticmethod
    def forward(ctx, q, k, v):
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out


def _key_value_width(attention: Attention) -> int:
    return attention.key.weight.shape[0] + attention.value.weight.shape[0]
