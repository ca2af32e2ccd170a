"""QK and OV circuits of attention heads, and the decomposition of logits into paths.

After Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". A head acts on the residual stream
through two matrix products: W_Q^T W_K decides where a position attends, W_O W_V what it copies from there.

Axes: B sequences, T positions, L layers, H heads, D components a head, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lm.blocks import Block
from lm.heads import NextTokenHead
from lm.introspection.attention_maps import record
from lm.introspection.inference import inference_mode
from lm.introspection.norms import bias_of, linear_part, scale_of
from lm.layers import LayerNorm, RMSNorm
from lm.mixers.attention import Attention, require_attention
from lm.model import LanguageModel
from lm.positions import rotate

# Configuration of models whose logits are a sum of paths.
_PATHS = {
    "architecture": "decoder",
    "layers": 1,
    "mlp": False,
    "soft_cap": 0.0,
    "value_embeddings": 0,
}


@dataclass(frozen=True)
class Decomposition:
    """Logits as a sum over paths."""

    direct: Tensor
    """(B, T, V): from token to logits without attention."""
    heads: Tensor
    """(H, B, T, V): through each head."""
    constant: Tensor
    """(B, T, V): from the biases after the heads."""

    def total(self) -> Tensor:
        """Return the model's logits (B, T, V)."""
        return self.direct + self.heads.sum(dim=0) + self.constant


def has_circuits(model: LanguageModel) -> bool:
    """Return whether heads add a linear function of what they attend to.

    No norm or scale may lie between attention and the residual sum.
    """
    config = model.config
    return config.attention_only and config.norm_position in ("pre", "post") and config.residual != "none"


def has_paths(model: LanguageModel) -> bool:
    """Return whether `decompose_logits` applies: the model must be a one-layer attention-only decoder."""
    return has_circuits(model) and all(getattr(model.config, field) == needed for field, needed in _PATHS.items())


def decompose_logits(model: LanguageModel, ids: Tensor) -> Decomposition:
    """Return the logits of a one-layer attention-only decoder on `ids` (B, T), path by path.

    Exact up to rounding (Elhage et al. 2021, "One-Layer Attention-Only Transformers"): given the attention weights and
    the scale of the last norm, the model is linear. The direct path is the input of the block, embedding and positions.
    A head's term is its attention weights times its values, through its part of the output matrix. Raises ValueError
    for another kind of model, naming the field.
    """
    _require_paths(model)
    stack = model.stack
    block = stack.blocks[0]
    attention = _attention(model, block)
    with inference_mode(model), _inputs_of(block) as inputs:
        _, maps = record(model, stack, ids)
        stream = inputs[0]
        values = attention.keys_values(block.mixer_norm(stream) if block.places.before else stream)[1]
        values = values.repeat_interleave(attention.heads // attention.kv_heads, dim=1)  # (B, H, T, D)
        writes = attention.output.matrix.to(stream.dtype).unflatten(1, (attention.heads, -1))  # (width, H, D)
        heads = torch.einsum("bhtd,whd->hbtw", maps[0] @ values, writes)
        bias = bias_of(attention.output, stream)
        norm = stack.final_norm if block.places.before else block.mixer_norm
        assert not isinstance(norm, nn.Identity)
        scale = scale_of(norm, stream + heads.sum(dim=0) + bias)
        unembed = model.head.output_weight.to(stream.dtype).T

        def logits(part: Tensor) -> Tensor:
            return model.head(linear_part(norm, part) / scale) @ unembed

        constant = logits(bias) + model.head(bias_of(norm, stream)) @ unembed
        return Decomposition(logits(stream), logits(heads), constant)


@torch.no_grad()
def qk_circuit(model: LanguageModel, layer: int, head: int, distance: int = 0) -> Tensor:
    """Return M (width, width) float64 such that query position x and key position y have the score x^T M y.

    M = W_Q^T W_K times the scale of the scores. It includes the linear part of the norm before attention, but not its
    division by the scale of each position; biases are left out. With rotary positions the score depends on `distance`,
    in positions, from the query back to the key. Raises ValueError for models with qk_norm, whose scores are not
    bilinear, and for an unknown layer, head or distance.
    """
    query, key = query_and_key(model, layer, head, distance)
    return query.T @ key


@torch.no_grad()
def query_and_key(model: LanguageModel, layer: int, head: int, distance: int = 0) -> tuple[Tensor, Tensor]:
    """Return the factors of `qk_circuit`, W_Q with the scale and W_K, after their norm: (D, width) float64."""
    block = _block(model, layer, head)
    if model.config.qk_norm:
        raise ValueError("model.qk_norm is set: normalised queries and keys have no QK circuit, only attention maps")
    attention, width = _attention(model, block), model.config.head_features
    query = attention.query.matrix.double().unflatten(0, (-1, width))[head]
    key = attention.key.matrix.double().unflatten(0, (-1, width))[_shared_head(attention, head)]
    if model.stack.rotary is not None:
        query, key = _rotate(model, query, max(distance, 0)), _rotate(model, key, max(-distance, 0))
    norm = _norm_before_attention(model, block)
    scale = width**-0.5 if model.config.scaled_attention else 1.0
    return scale * (query @ norm), key @ norm


@torch.no_grad()
def ov_circuit(model: LanguageModel, layer: int, head: int) -> Tensor:
    """Return M (width, width) float64: attending to a position x adds M x to the residual stream.

    M = W_O W_V. It includes the linear part of the norm before attention, but not its division by the scale of each
    position; biases are left out. Raises ValueError for an unknown layer or head.
    """
    write, read = write_and_read(model, layer, head)
    return write @ read


@torch.no_grad()
def write_and_read(model: LanguageModel, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """Return the factors of `ov_circuit`, float64: W_O (width, D), and W_V after its norm (D, width)."""
    block = _block(model, layer, head)
    attention, width = _attention(model, block), model.config.head_features
    value = attention.value.matrix.double().unflatten(0, (-1, width))[_shared_head(attention, head)]
    write = attention.output.matrix.double().unflatten(1, (-1, width))[:, head]
    return write, value @ _norm_before_attention(model, block)


@torch.no_grad()
def token_qk_circuit(
    model: LanguageModel, layer: int, head: int, queries: Tensor, keys: Tensor, distance: int = 0
) -> Tensor:
    """Return the QK circuit between embeddings, W_E^T W_Q^T W_K W_E, of tokens `queries` (N,) and `keys` (M,).

    (N, M) float64, up to the scales of norms. The norms between the embedding and the layer are included.
    """
    read = [_as_read(model, layer, model.embedding.weight.double()[ids]) for ids in (queries, keys)]
    return read[0] @ qk_circuit(model, layer, head, distance) @ read[1].T


@torch.no_grad()
def token_ov_circuit(model: LanguageModel, layer: int, head: int, sources: Tensor, outputs: Tensor) -> Tensor:
    """Return how attending to each token of `sources` (N,) changes the logits of `outputs` (M,): W_U W_O W_V W_E.

    (N, M) float64, up to the scales of norms. All norms between the embedding and the logits are included. Raises
    ValueError if the head before the logits is not linear.
    """
    _require_linear_head(model)
    write, read = write_and_read(model, layer, head)
    written = through_norms(model.stack.blocks[layer:], write.T)  # (D, width)
    unembed = model.head.output_weight.double()[outputs] @ _matrix_of(model, model.stack.final_norm)
    return _as_read(model, layer, model.embedding.weight.double()[sources]) @ read.T @ written @ unembed.T


@torch.no_grad()
def copying_scores(model: LanguageModel) -> Tensor:
    """Return how much each head raises the logits of the tokens that it attends to: (L, H) float64 from -1 to 1.

    The score is the sum of the eigenvalues of the OV circuit W_U W_O W_V W_E over the sum of their moduli (Elhage et
    al. 2021), with all norms but not their scales, as in `token_ov_circuit`. At most D eigenvalues of the V x V matrix
    are not zero: those of the D x D matrix W_V W_E W_U W_O. Raises ValueError if the head before the logits is not
    linear.
    """
    _require_linear_head(model)
    config, blocks = model.config, model.stack.blocks
    norm = _matrix_of(model, model.stack.final_norm)
    unembedding_embedding = (model.head.output_weight.double() @ norm).T @ model.embedding.weight.double()
    scores = torch.zeros(len(blocks), config.heads, dtype=torch.float64)
    for layer in range(len(blocks)):
        between = _as_read(model, layer, unembedding_embedding).T  # (width, width)
        for head in range(config.heads):
            write, read = write_and_read(model, layer, head)
            written = through_norms(blocks[layer:], write.T).T
            eigenvalues = torch.linalg.eigvals(read @ between @ written)
            moduli = eigenvalues.abs().sum()
            scores[layer, head] = eigenvalues.real.sum() / moduli if moduli > 0 else 0.0
    return scores


def through_norms(blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Return x (..., width) after the norms on the stream in `blocks`, without their scales and biases.

    Only blocks with norms after the sum have such norms.
    """
    for block in blocks:
        assert isinstance(block, Block)
        if block.places.after:
            for name in (block.mixer_name, "cross", "mlp"):
                x = _linear_part(getattr(block, f"{name}_norm", nn.Identity()), x)
    return x


def _as_read(model: LanguageModel, layer: int, embedded: Tensor) -> Tensor:
    """Return rows (N, width) of the embedding as they reach a layer, without scales and biases of norms."""
    return through_norms(model.stack.blocks[:layer], _linear_part(model.stack.embedding_norm, embedded))


@contextmanager
def _inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the first argument of each call of `module` inside the context."""
    inputs: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def _rotate(model: LanguageModel, projection: Tensor, position: int) -> Tensor:
    """Return a projection (D, width) followed by the rotation of `position`."""
    assert model.stack.rotary is not None
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


def _attention(model: LanguageModel, block: Block) -> Attention:
    """Return the block's attention. Raises ValueError for models without circuits."""
    require_attention(model.config, "a circuit")
    if not has_circuits(model):
        field = "residual" if model.config.residual == "none" else "norm_position"
        raise ValueError(
            f"model.{field} is {getattr(model.config, field)!r}, with which a head adds no linear function of what it "
            f"attends to: take a model with model.{field}={getattr(type(model.config), field)!r}"
        )
    assert isinstance(block.mixer, Attention)
    return block.mixer


def _shared_head(attention: Attention, head: int) -> int:
    """Return the head of keys and values that a query head uses."""
    return head // (attention.heads // attention.kv_heads)


def _norm_before_attention(model: LanguageModel, block: Block) -> Tensor:
    return _matrix_of(model, block.mixer_norm if block.places.before else nn.Identity())


def _matrix_of(model: LanguageModel, norm: LayerNorm | RMSNorm | nn.Identity) -> Tensor:
    """Return the linear part of a norm, without its division by the scale: (width, width) float64."""
    identity = torch.eye(model.config.width, dtype=torch.float64, device=model.embedding.weight.device)
    return _linear_part(norm, identity).T


def _linear_part(norm: LayerNorm | RMSNorm | nn.Identity, x: Tensor) -> Tensor:
    return x if isinstance(norm, nn.Identity) else linear_part(norm, x)


def _require_linear_head(model: LanguageModel) -> None:
    if not isinstance(model.head, NextTokenHead):
        raise ValueError(
            f"model.architecture is {model.config.architecture!r}: its head is not linear, so circuits end at the "
            "residual stream; take a decoder"
        )


def _require_paths(model: LanguageModel) -> None:
    for field, needed in _PATHS.items():
        value = getattr(model.config, field)
        if value != needed:
            raise ValueError(
                f"model.{field} is {value!r}: only with model.{field}={needed!r} are logits the sum of a direct path "
                "and a term for each head"
            )
