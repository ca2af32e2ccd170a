"""Attention maps, and scores of heads for known patterns.

Attention that records its weights is passed into a stack, so models need no code for it.

Axes: B sequences, T positions, S source positions, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lm.attention.backends import attention_weights
from lm.attention.tiles import group_size
from lm.introspection.inference import inference_mode
from lm.introspection.repetition import repeated_tokens
from lm.masks import Mask
from lm.mixers.attention import Attention, CrossAttend, KeysValues, require_attention
from lm.model import LanguageModel, Stack


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights. The rows are queries; each row sums to one."""

    own: Tensor
    """(L, B, H, T, T): self-attention of the stack before the head."""
    encoder: Tensor | None = None
    """(L, B, H, S, S): self-attention of an encoder-decoder's encoder."""
    cross: Tensor | None = None
    """(L, B, H, T, S): cross-attention."""


def attention_maps(model: LanguageModel, ids: Tensor, source: Tensor | None = None) -> AttentionMaps:
    """Return the attention weights of every head on `ids` (B, T), with `source` (B, S) for an encoder-decoder.

    They follow the reference formula in the model's compute dtype, without dropout. Raises ValueError for a missing
    source, for one that the model does not read, and for another mixer than attention.
    """
    require_attention(model.config, "an attention map")
    if (source is None) == (model.config.architecture == "encoder-decoder"):
        raise ValueError(
            f"model.architecture is {model.config.architecture!r} and a source was {'not ' if source is None else ''}"
            "given: an encoder-decoder reads one, no other does"
        )
    with inference_mode(model):
        if source is None:
            return AttentionMaps(record(model, model.stack, ids)[1])
        assert model.encoder is not None and model.decoder is not None
        hidden, encoder = record(model, model.encoder, source)
        cross: list[Tensor] = []
        pairs = zip(model.decoder.cross_attentions, model.decoder.cross_keys_values(hidden), strict=True)
        cross_attends = [partial(_record_cross, cross, attention, keys_values) for attention, keys_values in pairs]
        own = record(model, model.decoder, ids, cross_attends=cross_attends)[1]
        return AttentionMaps(own, encoder, torch.stack(cross))


@dataclass(frozen=True)
class HeadScores:
    """Mean attention weights (L, H), from 0 to 1, on sequences of random tokens that occur twice in a row."""

    previous: Tensor
    """Weight on the position before."""
    duplicate: Tensor
    """Weight, in the second copy, on the same token in the first."""
    induction: Tensor
    """Weight, in the second copy, on the token after that, which comes next (Olsson et al. 2022)."""
    similar: Tensor
    """Sum, over the other visible tokens of the first copy, of weight times (cosine of embeddings - mean cosine)."""


def head_scores(
    model: LanguageModel,
    generator: torch.Generator,
    *,
    length: int = 32,
    sequences: int = 16,
    ids: Tensor | None = None,
) -> HeadScores:
    """Return the scores of every head of a decoder or encoder, on `sequences` of `length` tokens, repeated once.

    Tokens are drawn from `ids` (N,), by default the whole vocabulary, without repetition if there are enough. Raises
    ValueError if twice the length exceeds the context.
    """
    device = model.embedding.weight.device
    ids = torch.arange(model.config.vocab_size) if ids is None else ids.cpu()
    read = repeated_tokens(ids, generator, length=length, sequences=sequences).to(device)
    own = attention_maps(model, read).own.double()
    maps = own.mean(dim=1)  # (L, H, 2 length, 2 length)
    second_copy = maps[:, :, length:]
    return HeadScores(
        previous=_diagonal_mean(maps, -1),
        duplicate=_diagonal_mean(second_copy, 0),
        induction=_diagonal_mean(second_copy, 1),
        similar=_similarity(model, own[..., :length, :length], read[:, :length]),
    )


def _similarity(model: LanguageModel, maps: Tensor, ids: Tensor) -> Tensor:
    """Return the scores `similar` (L, H) from attention weights (L, B, H, T, T) on ids (B, T)."""
    directions = F.normalize(model.embedding.weight.detach()[ids].double(), dim=-1)
    others = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.float64, device=ids.device)
    others = others.tril(-1) if model.config.architecture == "decoder" else others.fill_diagonal_(0)
    cosines = directions @ directions.transpose(-2, -1)
    mean = (cosines * others).sum(dim=-1, keepdim=True) / others.sum(dim=-1, keepdim=True).clamp(min=1)
    return (maps * ((cosines - mean) * others)[None, :, None]).sum(dim=-1).mean(dim=(1, 3))


def _diagonal_mean(maps: Tensor, offset: int) -> Tensor:
    return maps.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1)


def record(
    model: LanguageModel, stack: Stack, ids: Tensor, cross_attends: Sequence[CrossAttend] | None = None
) -> tuple[Tensor, Tensor]:
    """Return a stack's hidden states (B, T, width) on `ids` (B, T), and its attention weights (L, B, H, T, T)."""
    length, dtype = ids.shape[1], model.compute_dtype
    mask = model.mask(stack)
    biased = replace(mask, bias=stack.bias(slice(0, length), length, dtype))
    maps: list[Tensor] = []
    mixes = [partial(_record_weights, maps, cast("Attention", block.mixer), biased) for block in stack.blocks]
    hidden = stack(model.embed(ids), ids, dtype=dtype, mask=mask, mixes=mixes, cross_attends=cross_attends)
    return hidden, torch.stack(maps)


def _record_weights(maps: list[Tensor], attention: Attention, mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend, and append the weights to `maps`."""
    weights = attention_weights(attention.scores(q, k, mask), mask)
    maps.append(weights)
    return weights @ v.repeat_interleave(group_size(q, v), dim=1)


def _record_cross(maps: list[Tensor], attention: Attention, keys_values: KeysValues, q: Tensor) -> Tensor:
    return _record_weights(maps, attention, Mask(), q, *keys_values)
