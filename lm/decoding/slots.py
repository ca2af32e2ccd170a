"""Continuous batching: texts of one model share every step, and may begin and end at any time.

All texts end in the same column of one KV cache, padded on the left. A prompt is first read into a separate cache, one
piece per step so that running texts do not wait long. Its keys and values are then copied into the shared cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.decoding.cache import KVCache, present_columns
from lm.decoding.packed import InferenceModel
from lm.decoding.requests import GeneratedToken, GenerationRequest
from lm.decoding.sampling import greedy, keep_allowed, sample
from lm.decoding.state import pad_left, read
from lm.decoding.turns import Turns
from lm.metrics.predictions import token_scores
from lm.mixers.attention import require_attention

PREFILL = 128  # positions of prompts that a step reads, padding included


class SlotCache(KVCache):
    """A KVCache to which sequences are added and removed. They are the first rows of its tensors."""

    def __init__(self, model: InferenceModel, rows: int) -> None:
        """Make an empty cache for at most `rows` sequences, each as long as the context."""
        columns = model.config.context_length
        super().__init__(model.stack, rows, columns, dtype=model.dtype, device=model.device, ring=False)
        self._stored = self.keys, self.values
        self._keep([])

    def join(self, prompts: KVCache) -> None:
        """Append the sequences of another cache."""
        begun, count = len(self._padding), len(prompts.keys[0])
        if self.length < prompts.length:
            self._shift(prompts.length - self.length)
        start = self.length - prompts.length
        for stored, new in zip(self._stored, (prompts.keys, prompts.values), strict=True):
            for row_block, new_block in zip(stored, new, strict=True):
                rows = row_block[begun : begun + count]
                # Hidden columns have weight 0, and 0 x NaN would be NaN.
                rows[:, :, :start] = 0
                rows[:, :, start : self.length] = new_block[:, :, : prompts.length]
        padding = [0] * count if prompts.padding is None else prompts.padding.tolist()
        self._keep([*self._padding, *(start + each for each in padding)])

    def leave(self, row: int) -> None:
        """Remove the sequence in `row` and move the last sequence there."""
        last = len(self._padding) - 1
        if row != last:
            for block in (*self.keys, *self.values):
                block[row, :, : self.length] = block[last, :, : self.length]
            self._padding[row] = self._padding[last]
        self._keep(self._padding[:-1])
        unused = min(self._padding, default=self.length)
        if 2 * unused > self.length:  # each later step saves more than this copy costs
            self._shift(-unused)

    def make_room(self) -> None:
        """Make room for one more token of each sequence, all shorter than the context."""
        if self.length == self.columns:
            self._shift(-min(self._padding))

    def _shift(self, columns: int) -> None:
        """Move the sequences to the right by `columns`, or to the left if negative."""
        kept = slice(max(0, -columns), self.length)
        self.length += columns
        for block in (*self.keys, *self.values):
            moved = block[:, :, kept].clone()
            block[:, :, : self.length - moved.shape[2]] = 0
            block[:, :, self.length - moved.shape[2] : self.length] = moved
        self._keep([each + columns for each in self._padding])

    def _keep(self, padding: list[int]) -> None:
        """Keep the first len(padding) sequences and set their padding."""
        self._padding, rows = padding, len(padding)
        self.keys, self.values = ([block[:rows] for block in blocks] for blocks in self._stored)
        self.padding = torch.tensor(padding, device=self.keys[0].device) if any(padding) else None
        self.present = None if self.padding is None else present_columns(self.padding, self.capacity)


@dataclass(eq=False)
class Text:
    """A text to generate, made by `Slots.new_text`."""

    request: GenerationRequest
    generator: torch.Generator
    owner: Hashable
    """The client's request that the text belongs to"""
    ids: list[int]
    """The prompt and the generated tokens"""
    ended: bool = False
    """Whether the text is complete"""
    left: bool = False
    """Set to True, from any thread, to end the text early"""

    def add(self, item: GeneratedToken | Exception) -> bool:
        """Add a new token and return whether the text ends with it; an exception always ends the text."""
        if isinstance(item, Exception):
            self.ended = True
        else:
            self.ids.append(item.id)
            full = len(self.ids) == len(self.request.prompt_ids) + self.request.max_tokens
            self.ended = self.left or full or item.id in self.request.stop_ids
        return self.ended


@dataclass
class _Prompts:
    """Prompts that are read together before their texts join the running ones."""

    texts: list[Text]
    ids: Tensor
    """(B, T) int64, padded on the left"""
    cache: KVCache
    """A cache whose length is the number of columns read so far"""


class Slots:
    """Generates up to `rows` texts of a decoder at once; others wait. Owners of texts share the rows equally.

    If all rows are taken and an owner has none, the owner with the most gives one up. The text that loses its row waits
    and continues later, after its tokens are read again.

    The tokens of a text do not depend on the other texts, except through rounding: the shape of a matrix product
    decides the order of its sums, and so the last bits of the logits. A greedy choice can differ only between tokens
    whose logits are that close. Samples depend on the text's own seed only.
    """

    def __init__(
        self, model: InferenceModel, rows: int, *, allowed: Tensor | None = None, prefill: int = PREFILL
    ) -> None:
        """Make slots for `model`. Ids for which `allowed` (V,) bool is False are never generated.

        `prefill`: number of positions of prompts that a step reads, padding included.
        """
        if model.config.architecture != "decoder":
            raise ValueError(f"the model is an {model.config.architecture}: only a decoder continues a prompt")
        require_attention(model.config, "continuous batching (bytelm serve)")
        self.model = model
        self.rows = rows
        self.allowed = allowed
        self._prefill = prefill
        self.texts: list[Text] = []  # in the order of the cache's rows
        self._cache = SlotCache(model, rows)
        self._waiting: Turns[Text] = Turns()
        self._prompts: _Prompts | None = None

    def __len__(self) -> int:
        """Return the number of texts that have not ended."""
        return len(self.texts) + len(self._waiting) + (0 if self._prompts is None else len(self._prompts.texts))

    def new_text(self, request: GenerationRequest, owner: Hashable = None) -> Text:
        """Return the text of a request, for `add`. Raises ValueError as `request.check` does.

        Texts of one `owner` share its rows. A text without an owner is its own.
        """
        request.check(self.model.config)
        generator = torch.Generator(self.model.device).manual_seed(request.seed)
        return Text(request, generator, object() if owner is None else owner, [*request.prompt_ids])

    def add(self, text: Text) -> None:
        """Queue a text, which `step` generates. Another thread may call this during a step."""
        self._waiting.put(text.owner, text)

    @torch.inference_mode()
    def step(self) -> list[tuple[Text, GeneratedToken | Exception]]:
        """Generate a token of each running text, read a piece of the waiting prompts, and return the new tokens.

        A text that fails has an exception instead of a token, which ends it.
        """
        for row in reversed(range(len(self.texts))):
            if self.texts[row].left:
                self._leave(row)
        return self._advance() + self._read_prompts()

    def _advance(self) -> list[tuple[Text, GeneratedToken | Exception]]:
        """Generate a token of each running text and return the tokens."""
        if not self.texts:
            return []
        texts = [*self.texts]
        try:
            self._cache.make_room()
            newest = [text.ids[-1] for text in texts]  # which the model has not read yet
            ids = torch.tensor(newest, device=self.model.device).unsqueeze(-1)
            found = choose(self.model.logits(read(self.model, self._cache, ids)), texts, self.allowed)
        except Exception as error:
            found = [error] * len(texts)
        for row, item in reversed([*enumerate(found)]):
            if texts[row].add(item):
                self._leave(row)
        return [*zip(texts, found, strict=True)]

    def _read_prompts(self) -> list[tuple[Text, GeneratedToken | Exception]]:
        """Read a piece of the prompts. After the last piece, return the first token of each text and let it run."""
        if self._prompts is None or all(text.left for text in self._prompts.texts):
            self._prompts = self._admit()
        if self._prompts is None:
            return []
        prompts = self._prompts
        texts, ids, cache = prompts.texts, prompts.ids, prompts.cache
        try:
            piece = ids[:, cache.length : cache.length + max(1, self._prefill // len(texts))]
            hidden = read(self.model, cache, piece)
            if cache.length < ids.shape[1]:
                return []
            found = choose(self.model.logits(hidden), texts, self.allowed)
        except Exception as error:
            found = [error] * len(texts)
        self._prompts = None
        running = [row for row, item in enumerate(found) if not texts[row].add(item)]
        if running:
            cache.select(torch.tensor(running, device=ids.device))
            self._cache.join(cache)
            self.texts += [texts[row] for row in running]
        return [*zip(texts, found, strict=True)]

    def _admit(self) -> _Prompts | None:
        """Return the next prompts that fit in the free rows and in one step (at least one), or None without any."""
        shares = Counter(text.owner for text in self.texts)
        self._give_way(shares)
        texts: list[Text] = []
        longest = 0
        while len(self.texts) + len(texts) < self.rows and (owner := self._waiting.next_owner(shares)) is not None:
            if self._waiting.peek(owner).left:
                self._waiting.take(owner)
                continue
            longest = max(longest, len(self._waiting.peek(owner).ids))
            if texts and (len(texts) + 1) * longest > self._prefill:
                break
            texts.append(self._waiting.take(owner))
            shares[owner] += 1
        if not texts:
            return None
        ids, present = pad_left([text.ids for text in texts], self.model.device)
        padding = None if bool(present.all()) else (~present).sum(dim=-1)
        cache = KVCache(
            self.model.stack,
            len(texts),
            ids.shape[1],
            dtype=self.model.dtype,
            device=self.model.device,
            padding=padding,
            ring=False,
        )
        return _Prompts(texts, ids, cache)

    def _give_way(self, shares: Counter[Hashable]) -> None:
        """If an owner without a row waits for one, free a row of the owner with the most, and count it in `shares`.

        Its text with the fewest tokens loses the row, because it is read again soonest.
        """
        waiting = self._waiting.next_owner(shares)
        if len(self.texts) < self.rows or waiting is None or shares[waiting]:
            return
        ((owner, most),) = shares.most_common(1)
        if most > 1:
            _, row = min((len(text.ids), row) for row, text in enumerate(self.texts) if text.owner == owner)
            self._waiting.put(owner, self.texts[row], first=True)
            self._leave(row)
            shares[owner] -= 1

    def _leave(self, row: int) -> None:
        """Free a row and move the last text there, as in the cache."""
        self._cache.leave(row)
        self.texts[row] = self.texts[-1]
        del self.texts[-1]


def choose(logits: Tensor, texts: Sequence[Text], allowed: Tensor | None) -> list[GeneratedToken | Exception]:
    """Return the next token of each text from logits (B, V), or the error that ends the text.

    Ids for which `allowed` (V,) bool is False are not chosen, but keep their log-probabilities.
    """
    finite = logits.logsumexp(dim=-1).isfinite().tolist()
    possible = keep_allowed(logits, allowed)
    chosen = greedy(possible)
    for row, text in enumerate(texts):
        request = text.request
        if finite[row] and request.temperature > 0:
            chosen[row] = sample(
                possible[row],
                temperature=request.temperature,
                top_k=request.top_k,
                top_p=request.top_p,
                min_p=request.min_p,
                generator=text.generator,
            )
    scores = token_scores(logits, chosen, max(text.request.top for text in texts))
    rows = zip(texts, finite, chosen.tolist(), *(score.tolist() for score in scores), strict=True)
    return [
        GeneratedToken(token, log_p, entropy, rank, ids[: text.request.top], values[: text.request.top])
        if sound
        else ValueError("the model's logits are not finite: its training diverged, choose an earlier checkpoint")
        for text, sound, token, log_p, entropy, rank, ids, values in rows
    ]
