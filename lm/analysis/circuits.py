"""The circuits of attention heads, and logits taken apart into paths.

After Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". A head reads and writes the residual
stream through two products of its matrices: W_Q^T W_K says whom a position attends to, W_O W_V what it takes from
there. Nothing here is in the training path.

Axes: B sequences, T positions, L layers, H heads, D components a head, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lm.analysis.attention_maps import inspected, recorded
from lm.blocks import Block
from lm.heads import NextTokenHead
from lm.layers import LayerNorm, RMSNorm
from lm.model import LanguageModel
from lm.positions import rotate

# Fields of models whose logits are a sum of paths.
_PATHS = {"architecture": "decoder", "layers": 1, "mlp": False, "soft_cap": 0.0, "value_embeddings": 0}


@dataclass(frozen=True)
class Decomposition:
    """Logits as a sum over paths: `direct` (B, T, V), token to logits without attention; `heads` (H, B, T, V), one
    term a head; `constant` (B, T, V), what biases add behind the heads."""

    direct: Tensor
    heads: Tensor
    constant: Tensor

    def total(self) -> Tensor:
        """The model's logits (B, T, V)."""
        return self.direct + self.heads.sum(dim=0) + self.constant


def has_paths(model: LanguageModel) -> bool:
    """Whether `decompose_logits` takes the model: a one-layer attention-only decoder."""
    return all(getattr(model.config, field) == needed for field, needed in _PATHS.items())


def decompose_logits(model: LanguageModel, ids: Tensor) -> Decomposition:
    """The logits of a one-layer attention-only decoder on `ids` (B, T), path by path (Elhage et al. 2021, "One-Layer
    Attention-Only Transformers").

    Exact up to rounding: with the attention weights and the scale of the norm before the logits held at the values
    that they have on `ids`, all that is left is linear. The direct path is what the block reads, embedding and
    positions; a head's term is its attention weights times its values, through its part of the output matrix.
    Raises ValueError for a model of another kind, naming the field.
    """
    _require_paths(model)
    block = model.decoder.blocks[0]
    attention = block.attention
    with inspected(model), _inputs_of(block) as read:
        _, maps = recorded(model, model.decoder, ids)
        stream = read[0]
        values = attention.keys_values(block.attention_norm(stream) if block.pre_norm else stream)[1]
        values = values.repeat_interleave(attention.heads // attention.kv_heads, dim=1)  # (B, H, T, D)
        writes = attention.output.weight.to(stream.dtype).unflatten(1, (attention.heads, -1))  # (width, H, D)
        heads = torch.einsum("bhtd,whd->hbtw", maps[0] @ values, writes)
        bias = _bias_of(attention.output, stream)
        closing = model.decoder.final_norm if block.pre_norm else block.attention_norm
        scale = _scale_of(closing, stream + heads.sum(dim=0) + bias)
        unembed = model.head.output_weight.to(stream.dtype).T

        def logits(part: Tensor) -> Tensor:
            return model.head(_linear_part(closing, part) / scale) @ unembed

        constant = logits(bias) + model.head(_bias_of(closing, stream)) @ unembed
        return Decomposition(logits(stream), logits(heads), constant)


@torch.no_grad()
def qk_circuit(model: LanguageModel, layer: int, head: int, distance: int = 0) -> Tensor:
    """M (width, width) float64, for which a query position x sees a key position y with the score x^T M y.

    M = W_Q^T W_K, times the scale of the scores, read through the norm before attention less its division by the
    scale of each position; biases are left out. With rotary positions the score depends on the distance, in
    positions, from the query back to the key. Raises ValueError for models with qk_norm, whose scores are no such
    form, and for a layer, head or distance that is not there.
    """
    block = _block(model, layer, head)
    if model.config.qk_norm:
        raise ValueError("model.qk_norm is set: normalised queries and keys have no QK circuit, only attention maps")
    attention, width = block.attention, model.config.head_width
    query = attention.query.weight.double().unflatten(0, (-1, width))[head]
    key = attention.key.weight.double().unflatten(0, (-1, width))[_shared_head(block, head)]
    if model.stack.rotary is not None:
        query, key = _turned(model, query, max(distance, 0)), _turned(model, key, max(-distance, 0))
    reading = _reading(model, block)
    scale = width**-0.5 if model.config.scaled_attention else 1.0
    return scale * (query @ reading).T @ (key @ reading)


@torch.no_grad()
def ov_circuit(model: LanguageModel, layer: int, head: int) -> Tensor:
    """M (width, width) float64: attending to a position x adds M x to the residual stream.

    M = W_O W_V, read through the norm before attention less its division by the scale of each position; biases are
    left out. Raises ValueError for a layer or head that is not there.
    """
    block = _block(model, layer, head)
    write, read = _write_and_read(model, block, head)
    return write @ read


@torch.no_grad()
def token_qk_circuit(
    model: LanguageModel, layer: int, head: int, queries: Tensor, keys: Tensor, distance: int = 0
) -> Tensor:
    """(N, M) float64: the QK circuit from embedding to embedding, W_E^T W_Q^T W_K W_E, of the tokens `queries` (N,)
    and `keys` (M,)."""
    embedding = model.embedding.weight.double()
    return embedding[queries] @ qk_circuit(model, layer, head, distance) @ embedding[keys].T


@torch.no_grad()
def token_ov_circuit(model: LanguageModel, layer: int, head: int, sources: Tensor, outputs: Tensor) -> Tensor:
    """(N, M) float64: what attending to each token of `sources` (N,) adds to the logits of `outputs` (M,), W_U W_O W_V
    W_E, up to the two scales of the norms. Raises ValueError where the head before the logits is not linear."""
    _require_linear_head(model)
    closing = _matrix_of(model, model.stack.final_norm)
    unembed = model.head.output_weight.double()[outputs] @ closing
    return model.embedding.weight.double()[sources] @ ov_circuit(model, layer, head).T @ unembed.T


@torch.no_grad()
def copying_scores(model: LanguageModel) -> Tensor:
    """(L, H) float64 from -1 to 1: how far each head raises the logits of the very tokens that it attends to.

    The sum of the eigenvalues of the full OV circuit W_U W_O W_V W_E over the sum of their moduli (Elhage et al.
    2021). The V x V matrix has at most D eigenvalues other than zero: those of the D x D matrix W_V W_E W_U W_O.
    Raises ValueError where the head before the logits is not linear.
    """
    _require_linear_head(model)
    config = model.config
    closing = _matrix_of(model, model.stack.final_norm)
    around = model.embedding.weight.double().T @ model.head.output_weight.double() @ closing  # (width, width)
    scores = torch.zeros(len(model.stack.blocks), config.heads, dtype=torch.float64)
    for layer, block in enumerate(model.stack.blocks):
        for head in range(config.heads):
            write, read = _write_and_read(model, block, head)
            eigenvalues = torch.linalg.eigvals(read @ around @ write)
            moduli = eigenvalues.abs().sum()
            scores[layer, head] = eigenvalues.real.sum() / moduli if moduli > 0 else 0.0
    return scores


@contextmanager
def _inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """The first argument of each call of `module` while this is open."""
    inputs: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def _turned(model: LanguageModel, projection: Tensor, position: int) -> Tensor:
    """A projection (D, width) followed by the rotation of that position."""
    if position >= model.config.context_length:
        raise ValueError(
            f"the distance is {position}, but model.context_length is {model.config.context_length}: give a smaller one"
        )
    return rotate(projection.T, *model.stack.rotary(slice(position, position + 1), torch.float64)).T


def _block(model: LanguageModel, layer: int, head: int) -> Block:
    layers, heads = len(model.stack.blocks), model.config.heads
    if not (0 <= layer < layers and 0 <= head < heads):
        raise ValueError(
            f"there is no head {head} in layer {layer}: give a layer from 0 to {layers - 1} and a head from 0 to "
            f"{heads - 1}"
        )
    return model.stack.blocks[layer]


def _shared_head(block: Block, head: int) -> int:
    """The head of keys and values that a query head reads."""
    return head // (block.attention.heads // block.attention.kv_heads)


def _write_and_read(model: LanguageModel, block: Block, head: int) -> tuple[Tensor, Tensor]:
    """The OV circuit's factors, float64: W_O (width, D), and W_V with the norm before it (D, width)."""
    width = model.config.head_width
    value = block.attention.value.weight.double().unflatten(0, (-1, width))[_shared_head(block, head)]
    write = block.attention.output.weight.double().unflatten(1, (-1, width))[:, head]
    return write, value @ _reading(model, block)


def _reading(model: LanguageModel, block: Block) -> Tensor:
    return _matrix_of(model, block.attention_norm if block.pre_norm else nn.Identity())


def _matrix_of(model: LanguageModel, norm: nn.Module) -> Tensor:
    """(width, width) float64: what a norm does but divide by the scale and add its bias."""
    identity = torch.eye(model.config.width, dtype=torch.float64, device=model.embedding.weight.device)
    return identity if isinstance(norm, nn.Identity) else _linear_part(norm, identity).T


def _linear_part(norm: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """The norm of x (..., width) before the division by `_scale_of` and without its bias: linear in x."""
    centred = x - x.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else x
    return centred * norm.weight.to(x.dtype)


def _scale_of(norm: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """(..., 1): what the norm divides x (..., width) by."""
    centred = x - x.mean(dim=-1, keepdim=True) if isinstance(norm, LayerNorm) else x
    return (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()


def _bias_of(module: nn.Module, like: Tensor) -> Tensor:
    """Its bias, zero where it has none, in the shape and dtype of `like` (..., width)."""
    bias = getattr(module, "bias", None)
    return torch.zeros_like(like) if bias is None else bias.to(like.dtype).expand_as(like)


def _require_linear_head(model: LanguageModel) -> None:
    if not isinstance(model.head, NextTokenHead):
        raise ValueError(
            f"model.architecture is {model.config.architecture!r}: between its hidden states and its logits stands a "
            "nonlinear head, so its circuits end at the residual stream; take a decoder"
        )


def _require_paths(model: LanguageModel) -> None:
    for field, needed in _PATHS.items():
        value = getattr(model.config, field)
        if value != needed:
            raise ValueError(
                f"model.{field} is {value!r}: the logits of a model with model.{field}={needed!r} are a sum of a "
                "direct path and a term for each head, those of this one are not"
            )
