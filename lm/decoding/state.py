"""Growing sequences and the logits after their last tokens, with a KV cache or reading all again for each token.

All that generation needs to know about windows, padding and caches is here: samplers and beams only append.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lm.decoding.cache import CrossAttentionCache, KVCache, positions_of, present_columns
from lm.decoding.packed import InferenceModel
from lm.masks import Mask


class DecodeState:
    """Reads sequences of up to `context_length` tokens, which end together: shorter ones are padded on the left.

    Where a sequence is longer its oldest quarter goes, and the rest is read afresh: to slide by one token would mean
    to read everything again for every token. With and without a cache, and in any company, the window is the same.
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
    ) -> None:
        """ids (B, T) int64; `present` (B, T) bool is False at padding; `room`: tokens that may be appended."""
        self.model = model
        self.cross_cache = cross_cache
        self.context_length = model.config.context_length
        self.window = ids[:, -self.context_length :]
        self.padding = None if present is None or bool(present.all()) else (~present).sum(dim=-1)
        if self.padding is not None:
            self.padding = (self.padding - (ids.shape[1] - self.window.shape[1])).clamp(min=0)
        self.longest = self.window.shape[1]
        self.unread = self.window
        self.cache = None
        if use_cache:
            capacity = min(self.longest + room, self.context_length)
            options = {"dtype": model.dtype, "device": ids.device, "padding": self.padding}
            self.cache = KVCache(model.stack, len(ids), capacity, **options)

    @property
    def present(self) -> Tensor | None:
        """bool, of the shape of `window`: False at padding; None where there is none."""
        return None if self.padding is None else present_columns(self.padding, self.window.shape[1])

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """(B, V) after the last token of each sequence."""
        return self.model.logits(self._read_all() if self.cache is None else self._read_unread(self.cache))

    @torch.inference_mode()
    def append(self, ids: Tensor) -> None:
        """ids (B,): one more token of each sequence."""
        self.unread = ids.unsqueeze(-1)
        self.window = torch.cat((self.window, self.unread), dim=-1)
        self.longest += 1
        if self.longest > self.context_length:
            self._drop_oldest()

    @torch.inference_mode()
    def select(self, rows: Tensor) -> None:
        """Go on with those sequences, (N,) int64 with N at most B, before anything is appended."""
        self.window = self.window[rows]
        self.padding = None if self.padding is None else self.padding[rows]
        if self.cache is not None:
            self.cache.select(rows)

    def _read_all(self) -> Tensor:
        length = self.window.shape[1]
        config = self.model.config
        positions = slice(0, length) if self.padding is None else positions_of(self.padding, 0, length)
        mask = Mask(causal=True, window=config.window, present=self.present)
        return self._hidden(self.window, mask=mask, positions=positions)

    def _read_unread(self, cache: KVCache) -> Tensor:
        tokens = self.unread.shape[1]
        # the mask is in the cache's attention
        hidden = self._hidden(
            self.unread, mask=Mask(), positions=cache.positions(tokens), attends=cache.attends(tokens)
        )
        cache.advance(tokens)
        return hidden

    def _hidden(self, ids: Tensor, **options: object) -> Tensor:
        """(B, width) at the last of ids (B, T)."""
        batch, length = ids.shape
        cross_attends = None if self.cross_cache is None else self.cross_cache.cross_attends()
        if length > 1:
            options["rows"] = torch.arange(length - 1, batch * length, length, device=ids.device)
        embedded = self.model.model.embed(ids)
        hidden = self.model.stack(embedded, ids, dtype=self.model.dtype, cross_attends=cross_attends, **options)
        return hidden.flatten(0, -2)

    def _drop_oldest(self) -> None:
        length = self.window.shape[1]
        padding = self.window.new_zeros(len(self.window)) if self.padding is None else self.padding
        full = length - padding > self.context_length
        padding = padding + full * max(1, self.context_length // 4)
        unused = int(padding.min())
        self.window = self.unread = self.window[:, unused:]
        self.padding = padding - unused if bool((padding > unused).any()) else None
        self.longest = self.window.shape[1]
        if self.cache is not None:
            self.cache.clear(self.padding)


def pad_left(prompts: Sequence[Sequence[int]], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths, to go on from, as ids (B, T) int64, and where they are: present (B, T) bool.

    Raises ValueError where one is empty.
    """
    lengths = _lengths(prompts)
    longest = max(lengths)
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), present_columns(longest - torch.tensor(lengths, device=device), longest)


def pad_right(sources: Sequence[Sequence[int]], device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Sources of different lengths, for an encoder, as ids (B, S) int64, and where they are: present (B, S) bool.

    Raises ValueError where one is empty.
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
