"""Using a trained model: continue a text with a decoder, write one from a source with an encoder-decoder, fill in masks
with an encoder.

Beam search is in `beam`, samplers in `sampling`, windows and caches in `state` and `cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lm.decoding import sampling
from lm.decoding.cache import CrossAttentionCache
from lm.decoding.packed import InferenceModel, prepare
from lm.decoding.state import DecodeState
from lm.model import LanguageModel

Sampler = Callable[[Tensor], Tensor]
"""Logits (B, V) to ids (B,) int64."""


def stream(
    model: LanguageModel | InferenceModel,
    ids: Tensor,
    max_new_tokens: int,
    *,
    present: Tensor | None = None,
    source: Tensor | None = None,
    source_present: Tensor | None = None,
    sampler: Sampler = sampling.greedy,
    repetition_penalty: float = 1.0,
    allowed: Tensor | None = None,
    stop_ids: Sequence[int] = (),
    use_cache: bool = True,
) -> Iterator[Tensor]:
    """Yield the next ids (B,) int64 of prompts ids (B, T), token by token, as they are chosen.

    Prompts of different lengths are padded on the left, where `present` (B, T) bool is False (`state.pad_left`).
    An encoder-decoder reads `source` (B, S), there where `source_present` is True, and goes on from ids, its start.
    The penalty is on what each window holds (`sampling`) but for stop ids, before the sampler: the end of another
    text, which many prompts begin with, says nothing about where this one ends. Ids for which `allowed` (V,) bool is
    False are never chosen: a vocabulary may have more than a tokenizer knows. A sequence that produced a stop id
    repeats it from then on; the stream ends when all have, or after `max_new_tokens`. Of a prompt longer than the
    context the last `context_length` tokens are read; past that length the oldest quarter of the window goes.
    Raises ValueError for an encoder, an empty prompt, padding on the right, or a source too much or too few.
    """
    check_prompts(model, ids, present)
    model = prepare(model, len(ids))
    cross_cache = encode_source(model, source, source_present)
    state = DecodeState(model, ids, room=max_new_tokens, present=present, cross_cache=cross_cache, use_cache=use_cache)
    return _stream(state, max_new_tokens, sampler, repetition_penalty, allowed, stop_ids)


def _stream(
    state: DecodeState,
    max_new_tokens: int,
    sampler: Sampler,
    repetition_penalty: float,
    allowed: Tensor | None,
    stop_ids: Sequence[int],
) -> Iterator[Tensor]:
    chosen = state.window[:, -1]
    stops = torch.tensor(list(stop_ids), dtype=torch.int64, device=chosen.device)
    stopped = torch.zeros(len(chosen), dtype=torch.bool, device=chosen.device)
    for step in range(max_new_tokens):
        with torch.inference_mode():
            if step:
                state.append(chosen)
            logits = state.logits()
            if repetition_penalty != 1.0:
                said = ~torch.isin(state.window, stops)
                if state.present is not None:
                    said &= state.present
                logits = sampling.repetition_penalty(logits, state.window, repetition_penalty, said)
            chosen = sampler(sampling.only(logits, allowed))
            if len(stops):
                chosen = torch.where(stopped, state.window[:, -1], chosen)
                stopped = stopped | torch.isin(chosen, stops)
        yield chosen
        if len(stops) and bool(stopped.all()):
            return


def generate(
    model: LanguageModel | InferenceModel,
    ids: Tensor,
    max_new_tokens: int,
    *,
    present: Tensor | None = None,
    source: Tensor | None = None,
    source_present: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    allowed: Tensor | None = None,
    generator: torch.Generator | None = None,
    stop_ids: Sequence[int] = (),
    use_cache: bool = True,
) -> Tensor:
    """Continue prompts: ids (T,) or (B, T) int64 to the new ids (N,) or (B, N), without the prompt.

    Prompts, sources, the penalty, `allowed` and errors as in `stream`, the samplers as in `sampling`: temperature 0
    is greedy, the others filter where given, and the generator decides every draw. N is `max_new_tokens`, or less where
    all sequences produced one of `stop_ids`, which they then end with (and repeat, where others go on). The same ids
    come with and without the cache, and, chosen greedily, in any company.
    """
    sampler = partial(
        sampling.choose,
        temperature_value=temperature,
        k=top_k,
        p=top_p,
        smallest_share=min_p,
        generator=generator,
    )
    batch = ids.unsqueeze(0) if ids.ndim == 1 else ids
    if source is not None and source.ndim == 1:
        source = source.unsqueeze(0)
    tokens = stream(
        model,
        batch,
        max_new_tokens,
        present=present,
        source=source,
        source_present=source_present,
        sampler=sampler,
        repetition_penalty=repetition_penalty,
        allowed=allowed,
        stop_ids=stop_ids,
        use_cache=use_cache,
    )
    chosen = list(tokens)
    new = torch.stack(chosen, dim=-1) if chosen else batch.new_empty(len(batch), 0)
    return new[0] if ids.ndim == 1 else new


def check_prompts(model: LanguageModel | InferenceModel, ids: Tensor, present: Tensor | None) -> None:
    """Raise ValueError where ids (B, T) and `present` are no prompts that the model could go on from."""
    if not model.config.causal:
        raise ValueError("an encoder does not continue a text: give a decoder, or fill masks with fill_masks")
    if ids.ndim != 2 or ids.shape[-1] == 0:
        raise ValueError(
            f"prompt ids have shape {tuple(ids.shape)}: give (B, T) with T at least 1, such as <|endoftext|>"
        )
    if present is None:
        return
    if present.shape != ids.shape:
        raise ValueError(f"present has shape {tuple(present.shape)} and ids {tuple(ids.shape)}: give one for each id")
    if not bool(present[:, -1].all()) or bool((present[:, :-1] & ~present[:, 1:]).any()):
        raise ValueError("present is False after a token of a prompt: pad prompts on the left, as pad_left does")


@torch.inference_mode()
def encode_source(
    model: InferenceModel, source: Tensor | None, present: Tensor | None = None
) -> CrossAttentionCache | None:
    """What a decoder looks up of `source` (B, S) int64; None for a decoder alone, which has no source."""
    both = model.config.architecture == "encoder-decoder"
    if both != (source is not None):
        raise ValueError(
            f"model.architecture is {model.config.architecture!r}, and a source was {'not ' if both else ''}given: an "
            "encoder-decoder reads one, a decoder goes on from its prompt alone"
        )
    if source is None:
        return None
    if source.ndim != 2 or source.shape[-1] == 0 or not (present is None or bool(present.any(dim=-1).all())):
        raise ValueError(f"source ids have shape {tuple(source.shape)}: give (B, S) with a token in every row")
    return CrossAttentionCache(model.stack, model.model.encode(source, present), present)


@dataclass(frozen=True, kw_only=True)
class FilledMask:
    """What an encoder puts at one masked position: ids in falling order of their probabilities."""

    position: int
    ids: list[int]
    probabilities: list[float]


@torch.inference_mode()
def fill_masks(
    model: LanguageModel | InferenceModel, ids: Tensor, mask_id: int, top: int = 5, allowed: Tensor | None = None
) -> list[FilledMask]:
    """The `top` likeliest tokens at each mask of ids (T,) int64, which read <|cls|> ... <|sep|>.

    Ids for which `allowed` (V,) bool is False have no probability. Raises ValueError for a decoder, or where no
    position holds `mask_id`.
    """
    if model.config.causal:
        raise ValueError("a decoder does not fill masks: give an encoder, or continue a text with generate")
    positions = (ids == mask_id).nonzero().flatten()
    if len(positions) == 0:
        raise ValueError(f"no position holds the mask id {mask_id}: put <|mask|> where a token is wanted")
    model = prepare(model)
    hidden = model.model(ids.unsqueeze(0), rows=positions)
    found = torch.softmax(sampling.only(model.logits(hidden).float(), allowed), dim=-1)
    probabilities, choices = found.topk(min(top, found.shape[-1]), dim=-1)
    return [
        FilledMask(position=position, ids=row_ids, probabilities=row_probabilities)
        for position, row_ids, row_probabilities in zip(
            positions.tolist(), choices.tolist(), probabilities.tolist(), strict=True
        )
    ]
