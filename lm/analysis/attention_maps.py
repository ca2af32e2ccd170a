"""What each head attends to, and how much of it is one of the patterns that have a name.

Nothing here is in the training path: weights are recorded by attention that is passed into a stack from outside.

Axes: B sequences, T positions, S source positions, L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from lm.attention.backends import reference
from lm.blocks import CrossAttend, KeysValues
from lm.masks import Mask
from lm.model import LanguageModel, Stack


@dataclass(frozen=True)
class AttentionMaps:
    """Attention weights (L, B, H, T, T) of the stack whose hidden states the head reads; each row, a query's, sums to
    one. Of an encoder-decoder also `encoder` (L, B, H, S, S) and `cross` (L, B, H, T, S)."""

    own: Tensor
    encoder: Tensor | None = None
    cross: Tensor | None = None


def attention_maps(model: LanguageModel, ids: Tensor, source: Tensor | None = None) -> AttentionMaps:
    """What every head attends to when the model reads `ids` (B, T), and `source` (B, S) if it is an encoder-decoder.

    Weights are those of the reference formula in the model's compute dtype, without dropout. Raises ValueError where
    the architecture and the source do not go together.
    """
    if (source is None) == (model.config.architecture == "encoder-decoder"):
        raise ValueError(
            f"model.architecture is {model.config.architecture!r} and a source was {'not ' if source is None else ''}"
            "given: an encoder-decoder reads one, no other does"
        )
    with inspected(model):
        if source is None:
            return AttentionMaps(recorded(model, model.stack, ids)[1])
        hidden, encoder = recorded(model, model.encoder, source)
        cross: list[Tensor] = []
        cross_attends = [
            partial(_recording_cross, cross, model.decoder, pair) for pair in model.decoder.cross_keys_values(hidden)
        ]
        own = recorded(model, model.decoder, ids, cross_attends=cross_attends)[1]
        return AttentionMaps(own, encoder, torch.stack(cross))


@dataclass(frozen=True)
class HeadScores:
    """Mean attention weight, (L, H) each, from 0 to 1, on sequences of random tokens that are then repeated.

    `previous`: on the position before. In the repetition, `duplicate`: on the same token of the first time;
    `induction`: on the token that came after it then, which comes next now (Olsson et al. 2022).
    """

    previous: Tensor
    duplicate: Tensor
    induction: Tensor


def head_scores(
    model: LanguageModel,
    generator: torch.Generator,
    *,
    length: int = 32,
    sequences: int = 16,
    ids: Tensor | None = None,
) -> HeadScores:
    """Scores of every head of a decoder or encoder, on `sequences` of `length` tokens, read twice in a row.

    Tokens are drawn from `ids` (N,), all entries where None, none twice in a sequence as long as there are enough.
    Raises ValueError when twice the length does not fit into the context.
    """
    device = model.embedding.weight.device
    ids = torch.arange(model.config.vocab_size) if ids is None else ids.cpu()
    repeats = -(-length // len(ids))
    pool = ids.repeat(repeats)
    once = torch.stack([pool[torch.randperm(len(pool), generator=generator)[:length]] for _ in range(sequences)])
    maps = attention_maps(model, once.repeat(1, 2).to(device)).own.double().mean(dim=1)  # (L, H, 2 length, 2 length)
    repetition = maps[:, :, length:]
    return HeadScores(
        previous=_diagonal_mean(maps, -1),
        duplicate=_diagonal_mean(repetition, 0),
        induction=_diagonal_mean(repetition, 1),
    )


def _diagonal_mean(maps: Tensor, offset: int) -> Tensor:
    return maps.diagonal(offset, dim1=-2, dim2=-1).mean(dim=-1)


@contextmanager
def inspected(model: LanguageModel) -> Iterator[None]:
    """Without dropout and gradients; afterwards the model is in the mode that it was in."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def recorded(
    model: LanguageModel, stack: Stack, ids: Tensor, cross_attends: Sequence[CrossAttend] | None = None
) -> tuple[Tensor, Tensor]:
    """Hidden states (B, T, width) of a stack that reads `ids` (B, T), and its maps (L, B, H, T, T)."""
    length, dtype = ids.shape[1], model.compute_dtype
    mask = model.mask(stack)
    biased = replace(mask, bias=stack.bias(slice(0, length), length, dtype))
    maps: list[Tensor] = []
    attends = [partial(_recording, maps, stack, biased)] * len(stack.blocks)
    hidden = stack(model.embed(ids), ids, dtype=dtype, mask=mask, attends=attends, cross_attends=cross_attends)
    return hidden, torch.stack(maps)


def _recording(maps: list[Tensor], stack: Stack, mask: Mask, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that keeps its weights: they are what it makes of values that are rows of the identity."""
    scale = None if stack.config.scaled_attention else 1.0
    keys = k.shape[-2]
    identity = torch.eye(keys, dtype=q.dtype, device=q.device).expand(*k.shape[:2], keys, keys)
    maps.append(reference(q, k, identity, mask, scale=scale))
    return reference(q, k, v, mask, scale=scale)


def _recording_cross(maps: list[Tensor], stack: Stack, keys_values: KeysValues, q: Tensor) -> Tensor:
    return _recording(maps, stack, Mask(), q, *keys_values)
