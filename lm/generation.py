"""Using a trained model: continue a text with a decoder, fill in masks with an encoder.

The KV cache is generation's own. The model knows nothing of it: each block's attention is handed in as a
function of (q, k, v), and here that function also remembers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lm import sampling
from lm.attention import BACKENDS
from lm.config import ModelConfig
from lm.model import Attend, LanguageModel

Sampler = Callable[[Tensor], Tensor]
"""Logits (B, V) to ids (B,) int64."""


class KVCache:
    """Keys and values of the positions read so far, for every layer: 2 x layers x (B, H, context, D)."""

    def __init__(self, config: ModelConfig, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.layers, batch, config.heads, config.context_length, config.head_width)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0
        self.backend = partial(BACKENDS[config.attention], causal=True)

    def clear(self) -> None:
        """Forget everything read."""
        self.length = 0

    def advance(self, tokens: int) -> None:
        """Count `tokens` more positions as read, once every layer has remembered theirs."""
        self.length += tokens

    def attends(self) -> list[Attend]:
        """One attention for each layer: it appends its keys and values and sees all that are there."""
        return [partial(self._attend, layer) for layer in range(len(self.keys))]

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stop = self.length + k.shape[-2]
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self.length : stop] = k
        values[:, :, self.length : stop] = v
        return self.backend(q, keys[:, :, :stop], values[:, :, :stop])


class _Reader:
    """Gives the logits after the last token of a growing sequence, whose window fits the context.

    When the window is full its oldest quarter is dropped and the rest read afresh: to slide by one token
    would mean to read everything again for every token. With and without a cache the window is the same.
    """

    def __init__(self, model: LanguageModel, ids: Tensor, use_cache: bool) -> None:
        self.model = model
        self.context_length = model.config.context_length
        self.window = ids[:, -self.context_length :]
        self.unread = self.window
        self.cache = None
        if use_cache:
            self.cache = KVCache(model.config, len(ids), model.compute_dtype, ids.device)

    def logits(self) -> Tensor:
        """(B, V) after the last token of the window."""
        if self.cache is None:
            return self.model.logits(self.model(self.window)[:, -1])
        hidden = self.model(self.unread, start=self.cache.length, attends=self.cache.attends())
        self.cache.advance(self.unread.shape[-1])
        return self.model.logits(hidden[:, -1])

    def append(self, ids: Tensor) -> None:
        """ids (B,): one more token of each sequence."""
        self.unread = ids.unsqueeze(-1)
        if self.window.shape[-1] == self.context_length:
            dropped = max(1, self.context_length // 4)
            self.window = self.unread = torch.cat((self.window[:, dropped:], self.unread), dim=-1)
            if self.cache is not None:
                self.cache.clear()
        else:
            self.window = torch.cat((self.window, self.unread), dim=-1)


def stream(
    model: LanguageModel,
    ids: Tensor,
    max_new_tokens: int,
    *,
    sampler: Sampler = sampling.greedy,
    stop_ids: Sequence[int] = (),
    use_cache: bool = True,
) -> Iterator[Tensor]:
    """Yield the next ids (B,) int64 of prompts ids (B, T), token by token, as they are chosen.

    A sequence that produced a stop id repeats it from then on; the stream ends when all have, or after
    `max_new_tokens`. Of a prompt longer than the context the last `context_length` tokens are read; past
    that length the oldest quarter of the window goes. Raises ValueError for an encoder or an empty prompt.
    """
    if not model.config.causal:
        raise ValueError("an encoder does not continue a text: give a decoder, or fill masks with fill_masks")
    if ids.ndim != 2 or ids.shape[-1] == 0:
        raise ValueError(
            f"prompt ids have shape {tuple(ids.shape)}: give (B, T) with T at least 1, such as <|endoftext|>"
        )
    return _stream(ready_to_infer(model), ids, max_new_tokens, sampler, stop_ids, use_cache)


def _stream(
    model: LanguageModel,
    ids: Tensor,
    max_new_tokens: int,
    sampler: Sampler,
    stop_ids: Sequence[int],
    use_cache: bool,
) -> Iterator[Tensor]:
    stops = torch.tensor(list(stop_ids), dtype=torch.int64, device=ids.device)
    stopped = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    reader = _Reader(model, ids, use_cache)
    chosen = ids[:, -1]
    for _ in range(max_new_tokens):
        with torch.inference_mode():
            chosen = torch.where(stopped, chosen, sampler(reader.logits()))
            stopped = stopped | torch.isin(chosen, stops)
            reader.append(chosen)
        yield chosen
        if len(stops) and bool(stopped.all()):
            return


def generate(
    model: LanguageModel,
    ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    stop_ids: Sequence[int] = (),
    use_cache: bool = True,
) -> Tensor:
    """Continue prompts: ids (T,) or (B, T) int64 to the new ids (N,) or (B, N), without the prompt.

    temperature 0 is greedy; top_k and top_p filter where given; the generator decides every draw. N is
    `max_new_tokens`, or less where all sequences produced one of `stop_ids`, which they then end with (and
    repeat, where others go on). The same ids come with and without the cache.
    """
    sampler = partial(sampling.choose, temperature_value=temperature, k=top_k, p=top_p, generator=generator)
    batch = ids.unsqueeze(0) if ids.ndim == 1 else ids
    tokens = list(stream(model, batch, max_new_tokens, sampler=sampler, stop_ids=stop_ids, use_cache=use_cache))
    new = torch.stack(tokens, dim=-1) if tokens else batch.new_empty(len(batch), 0)
    return new[0] if ids.ndim == 1 else new


@dataclass(frozen=True, kw_only=True)
class FilledMask:
    """What an encoder puts at one masked position: ids in falling order of their probabilities."""

    position: int
    ids: list[int]
    probabilities: list[float]


@torch.inference_mode()
def fill_masks(model: LanguageModel, ids: Tensor, mask_id: int, top: int = 5) -> list[FilledMask]:
    """The `top` likeliest tokens at each mask of ids (T,) int64, which read <|cls|> ... <|sep|>.

    Raises ValueError for a decoder, or where no position holds `mask_id`.
    """
    if model.config.causal:
        raise ValueError("a decoder does not fill masks: give an encoder, or continue a text with generate")
    positions = (ids == mask_id).nonzero().flatten()
    if len(positions) == 0:
        raise ValueError(f"no position holds the mask id {mask_id}: put <|mask|> where a token is wanted")
    model = ready_to_infer(model)
    rows = model(ids.unsqueeze(0))[0, positions]
    probabilities, choices = torch.softmax(model.logits(rows).float(), dim=-1).topk(top, dim=-1)
    return [
        FilledMask(position=position, ids=row_ids, probabilities=row_probabilities)
        for position, row_ids, row_probabilities in zip(
            positions.tolist(), choices.tolist(), probabilities.tolist(), strict=True
        )
    ]


def ready_to_infer(model: LanguageModel) -> LanguageModel:
    """A copy without dropout whose weights have the dtype it computes in: nothing is cast for each token."""
    ready = copy.deepcopy(model).to(model.compute_dtype).eval()
    return ready.requires_grad_(False)
