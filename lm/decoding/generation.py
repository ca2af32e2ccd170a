"""Generation: continue prompts with a decoder, answer sources with an encoder-decoder, fill masks with an encoder.

Beam search is in `beam`, sampling in `sampling`, windows and caches in `state`, `cache` and `static`.
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
from lm.decoding.static import static_cache_pays
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
    static: bool | None = None,
    sinks: int = 0,
) -> Iterator[Tensor]:
    """Yield the next ids (B,) int64 of prompts `ids` (B, T), step by step.

    Prompts of different lengths are padded on the left, where `present` (B, T) bool is False (`state.pad_left`).
    An encoder-decoder reads `source` (B, S), padded where `source_present` is False, and continues `ids`, its start.

    The sampler maps logits to ids. Before it, the penalty lowers tokens in the window, except stop ids: many prompts
    begin with the end of another text. Ids for which `allowed` (V,) bool is False are never chosen; a vocabulary may be
    larger than its tokenizer's.

    With `sinks`, a text may grow without end: a SinkCache of the context length keeps the first `sinks` tokens and the
    newest, and nothing is read again. 0: none.

    `static` chooses between a StaticCache, whose steps a CUDA graph replays, and a KVCache; by default
    `static_cache_pays` does.

    After a stop id a sequence repeats it. The stream ends when all sequences have stopped, or after `max_new_tokens`.
    `DecodeState` describes sequences longer than the context. Raises ValueError for an encoder, an empty prompt,
    padding on the right, and a source that is missing or not wanted.
    """
    check_prompts(model, ids, present)
    model = prepare(model, len(ids))
    cross_cache = encode_source(model, source, source_present)
    if static is None:
        static = not sinks and static_cache_pays(model.config, ids.device, max_new_tokens)
    state = DecodeState(
        model,
        ids,
        room=max_new_tokens,
        present=present,
        cross_cache=cross_cache,
        use_cache=use_cache,
        static=static,
        sinks=sinks,
    )
    return _stream(state, max_new_tokens, sampler, repetition_penalty, allowed, stop_ids)


def _stream(
    state: DecodeState,
    max_new_tokens: int,
    sampler: Sampler,
    repetition_penalty: float,
    allowed: Tensor | None,
    stop_ids: Sequence[int],
) -> Iterator[Tensor]:
    next_ids = state.window[:, -1]
    stops = torch.tensor(list(stop_ids), dtype=torch.int64, device=next_ids.device)
    stopped = torch.zeros(len(next_ids), dtype=torch.bool, device=next_ids.device)
    for step in range(max_new_tokens):
        with torch.inference_mode():
            if step:
                state.append(next_ids)
            logits = state.logits()
            if repetition_penalty != 1.0:
                penalized = ~torch.isin(state.window, stops)
                if state.present is not None:
                    penalized &= state.present
                logits = sampling.penalize_repetition(logits, state.window, repetition_penalty, penalized)
            next_ids = sampler(sampling.keep_allowed(logits, allowed))
            if len(stops):
                next_ids = torch.where(stopped, state.window[:, -1], next_ids)
                stopped = stopped | torch.isin(next_ids, stops)
        yield next_ids
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
    static: bool | None = None,
    sinks: int = 0,
) -> Tensor:
    """Return the new ids (N,) or (B, N) that continue prompts `ids` (T,) or (B, T) int64.

    `sampling.sample` explains temperature (0 is greedy), top_k, top_p, min_p and generator; `stream` explains the rest.
    N is `max_new_tokens`, or less if all sequences stopped. The cache changes no id; with greedy decoding, neither do
    the other prompts of a batch.
    """
    sampler = partial(
        sampling.sample, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, generator=generator
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
        static=static,
        sinks=sinks,
    )
    steps = list(tokens)
    new = torch.stack(steps, dim=-1) if steps else batch.new_empty(len(batch), 0)
    return new[0] if ids.ndim == 1 else new


def check_prompts(model: LanguageModel | InferenceModel, ids: Tensor, present: Tensor | None) -> None:
    """Raise ValueError if the model cannot continue prompts `ids` (B, T), padded where `present` (B, T) is False."""
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
    """Encode `source` (B, S) int64 for the decoder's cross-attention; return None for a decoder-only model."""
    needed = model.config.architecture == "encoder-decoder"
    if needed != (source is not None):
        raise ValueError(
            f"model.architecture is {model.config.architecture!r}, and a source was {'not ' if needed else ''}given: "
            "an encoder-decoder needs a source, a decoder continues its prompt alone"
        )
    if source is None:
        return None
    if source.ndim != 2 or source.shape[-1] == 0 or not (present is None or bool(present.any(dim=-1).all())):
        raise ValueError(f"source ids have shape {tuple(source.shape)}: give (B, S) with a token in every row")
    return CrossAttentionCache(model.stack, model.model.encode(source, present), present)


@dataclass(frozen=True, kw_only=True)
class FilledMask:
    """An encoder's prediction at a masked position: the likeliest ids, with their probabilities, in falling order."""

    position: int
    ids: list[int]
    probabilities: list[float]


@torch.inference_mode()
def fill_masks(
    model: LanguageModel | InferenceModel,
    ids: Tensor,
    mask_id: int,
    top: int = 5,
    allowed: Tensor | None = None,
    steps: int = 1,
) -> list[FilledMask]:
    """Return the `top` likeliest tokens at each mask in ids (T,) int64: <|cls|> ... <|sep|>.

    More than one of `steps` is mask-predict (Ghazvininejad et al. 2019): each step fills the masks with the likeliest
    tokens. After t steps, the least certain N (steps - t) / steps of the N tokens, rounded down, are masked and
    predicted again. The result at a mask is that of the last step that predicted it.

    Ids for which `allowed` (V,) bool is False have probability 0. Raises ValueError for a decoder, or without a mask.
    """
    if model.config.causal:
        raise ValueError("a decoder does not fill masks: give an encoder, or continue a text with generate")
    positions = (ids == mask_id).nonzero().flatten()
    masks = len(positions)
    if masks == 0:
        raise ValueError(f"no position holds the mask id {mask_id}: put <|mask|> where a token is wanted")
    if steps < 1:
        raise ValueError(f"steps is {steps}, but must be at least 1")
    model, ids = prepare(model), ids.clone()
    probabilities = torch.zeros(masks, min(top, model.config.vocab_size), dtype=torch.float64, device=ids.device)
    tokens = torch.zeros_like(probabilities, dtype=torch.int64)
    for step in range(steps):
        again = probabilities[:, 0].argsort(stable=True)[: masks * (steps - step) // steps]
        if len(again) == 0:
            break
        places = positions[again]
        ids[places] = mask_id
        logits = model.logits(model.model(ids.unsqueeze(0), rows=places)).double()
        best = torch.softmax(sampling.keep_allowed(logits, allowed), dim=-1).topk(tokens.shape[1], dim=-1)
        probabilities[again], tokens[again] = best.values, best.indices
        ids[places] = tokens[again, 0]
    return [
        FilledMask(position=position, ids=row_ids, probabilities=row_probabilities)
        for position, row_ids, row_probabilities in zip(
            positions.tolist(), tokens.tolist(), probabilities.tolist(), strict=True
        )
    ]
