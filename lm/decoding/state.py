"""Decoding state: growing sequences, their caches, and the logits after their last tokens.

Windows, padding and caches end here: samplers and beam search only append tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lm.decoding.cache import CrossAttentionCache, MixerState, column_positions, present_columns
from lm.decoding.hybrid_state import state_class
from lm.decoding.packed import InferenceModel
from lm.decoding.sinks import SinkCache
from lm.decoding.static import StaticCache
from lm.masks import Mask
from lm.mixers.mixer import Mix
from lm.positions import Rows


class DecodeState:
    """The last `context_length` tokens of each sequence, and what the model has read of them.

    Sequences end together: shorter ones are padded on the left. A sequence that outgrows the context loses the oldest
    quarter of its window, and the rest is read again; sliding by one token would read everything again at every token.
    The window depends neither on the cache nor on other sequences. With `sinks`, nothing is read again: the cache
    forgets one token for each new one, but keeps the first.
    """

    def __init__(
        self,
        model: InferenceModel,
        ids: Tensor,
        *,
        room: int,
        present: Tensor | None = None,
        cross_cache: CrossAttentionCache | None = None,
        use_cache: bool = True,
        static: bool = False,
        sinks: int = 0,
    ) -> None:
        """ids (B, T) int64; `present` (B, T) bool is False at padding; `room`: most tokens that will be appended.

        `static`: whether the cache is a StaticCache. `sinks`: first tokens that a SinkCache keeps; 0: none.
        """
        self.model = model
        self.cross_cache = cross_cache
        self.context_length = model.config.context_length
        self.window = ids[:, -self.context_length :]
        self.padding = None if present is None or bool(present.all()) else (~present).sum(dim=-1)
        if self.padding is not None:
            self.padding = (self.padding - (ids.shape[1] - self.window.shape[1])).clamp(min=0)
        self.unread = self.window
        self.cache: MixerState | None = None
        self.sinks = sinks
        if sinks:
            self.cache = SinkCache(
                model.stack,
                len(ids),
                self.context_length,
                dtype=model.dtype,
                device=ids.device,
                padding=self.padding,
                sinks=sinks,
            )
        elif use_cache:
            capacity = min(self.window.shape[1] + room, self.context_length)
            kind = StaticCache if static else state_class(model.stack)
            self.cache = kind(
                model.stack, len(ids), capacity, dtype=model.dtype, device=ids.device, padding=self.padding
            )

    @property
    def present(self) -> Tensor | None:
        """bool of the shape of `window`, False at padding; None without padding."""
        return None if self.padding is None else present_columns(self.padding, self.window.shape[1])

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """Return the logits (B, V) after the last token of each sequence."""
        if isinstance(self.cache, StaticCache) and self.unread.shape[1] == 1:
            return self.cache.next_logits(self.model, self.unread)
        if self.cache is None:
            return self.model.logits(self._read_all())
        return self.model.logits(read(self.model, self.cache, self.unread, self.cross_cache))

    @torch.inference_mode()
    def append(self, ids: Tensor) -> None:
        """Append one token to each sequence: ids (B,)."""
        self.unread = ids.unsqueeze(-1)
        self.window = torch.cat((self.window, self.unread), dim=-1)
        if self.window.shape[1] > self.context_length:
            if self.sinks:
                self.window = self.window[:, 1:]
                self.padding = None if self.padding is None else (self.padding - 1).clamp(min=0)
            else:
                self._drop_oldest()

    @torch.inference_mode()
    def select(self, rows: Tensor) -> None:
        """Keep the sequences `rows` (N,) int64, N at most B, in that order. Call it after `logits`, before `append`."""
        self.window = self.window[rows]
        self.padding = None if self.padding is None else self.padding[rows]
        if self.cache is not None:
            self.cache.select(rows)

    def _read_all(self) -> Tensor:
        length = self.window.shape[1]
        config = self.model.config
        positions = slice(0, length) if self.padding is None else column_positions(self.padding, 0, length)
        pattern, shift = self.model.stack.pattern, self.padding
        mask = Mask(causal=True, window=config.window, present=self.present, pattern=pattern, shift=shift)
        return _last_hidden(self.model, self.window, mask, positions, cross_cache=self.cross_cache)

    def _drop_oldest(self) -> None:
        length = self.window.shape[1]
        padding = self.window.new_zeros(len(self.window)) if self.padding is None else self.padding
        full = length - padding > self.context_length
        padding = padding + full * max(1, self.context_length // 4)
        unused = int(padding.min())
        self.window = self.unread = self.window[:, unused:]
        self.padding = padding - unused if bool((padding > unused).any()) else None
        if self.cache is not None:
            self.cache.clear(self.padding)


def read(
    model: InferenceModel, cache: MixerState, ids: Tensor, cross_cache: CrossAttentionCache | None = None
) -> Tensor:
    """Return the hidden states (B, width) at the last of ids (B, T), the next tokens of the cache's sequences.

    Adds all T tokens to the cache.
    """
    tokens = ids.shape[1]
    # The cache applies its own mask.
    positions, mixes = cache.positions(tokens), cache.mixes(tokens)
    hidden = _last_hidden(model, ids, Mask(), positions, mixes, cross_cache, rotated=not cache.rotates)
    cache.advance(tokens)
    return hidden


def _last_hidden(
    model: InferenceModel,
    ids: Tensor,
    mask: Mask,
    positions: Rows,
    mixes: Sequence[Mix] | None = None,
    cross_cache: CrossAttentionCache | None = None,
    rotated: bool = True,
) -> Tensor:
    """Return the hidden states (B, width) at the last of ids (B, T)."""
    batch, length = ids.shape
    hidden = model.stack(
        model.model.embed(ids),
        ids,
        dtype=model.dtype,
        mask=mask,
        positions=positions,
        mixes=mixes,
        cross_attends=None if cross_cache is None else cross_cache.cross_attends(),
        rows=torch.arange(length - 1, batch * length, length, device=ids.device) if length > 1 else None,
        rotated=rotated,
    )
    return hidden.flatten(0, -2)


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return prompts, padded on the left, as ids (B, T) int64 and `present` (B, T) bool, False at padding.

    Raises ValueError for an empty prompt.
    """
    lengths = _lengths(prompts)
    longest = max(lengths)
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), present_columns(longest - torch.tensor(lengths, device=device), longest)


def pad_right(sources: Sequence[Sequence[int]], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Return sources, padded on the right, as ids (B, S) int64 and `present` (B, S) bool, False at padding.

    Raises ValueError for an empty source.
    """
    lengths = _lengths(sources)
    longest = max(lengths)
    ids = [list(source) + [0] * (longest - len(source)) for source in sources]
    return torch.tensor(ids, device=device), ~present_columns(torch.tensor(lengths, device=device), longest)


def _lengths(texts: Sequence[Sequence[int]]) -> list[int]:
    if not texts:
        raise ValueError("there is no text to read: give at least one")
    for number, text in enumerate(texts, 1):
        if len(text) == 0:
            raise ValueError(f"text {number} of {len(texts)} has no token: give at least one")
    return [len(text) for text in texts]
