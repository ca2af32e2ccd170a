"""The choices of a completion: texts and log-probabilities, built token by token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.scoring.predictions import Predictions
from pipelines.scoring.word_probabilities import pieces_of
from pipelines.serving.engine import GeneratedToken
from pipelines.serving.growing_text import GrowingText
from pipelines.serving.models import ServedModel

Logprobs = dict[str, list[Any]]
"""OpenAI's lists, with one entry per token: tokens, token_logprobs, top_logprobs, text_offset"""


@dataclass(frozen=True)
class Choice:
    """A text to generate."""

    index: int
    prompt: list[int]
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Piece:
    """The part of a choice that one step adds."""

    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    tokens: int = 0
    """Number of generated tokens"""


def whole(pieces: Sequence[Piece]) -> Piece:
    """Return all pieces of a choice joined into one."""
    parts = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return Piece(
        "".join(piece.text for piece in pieces),
        {name: [entry for part in parts for entry in part[name]] for name in parts[0]} if parts else None,
        pieces[-1].finish_reason,
        sum(piece.tokens for piece in pieces),
    )


class Writer:
    """Turns the tokens of a choice into pieces. The text ends at an end token or a stop string."""

    def __init__(self, served: ServedModel, stops: Sequence[str], logprobs: int | None) -> None:
        """Make a writer. `logprobs`: number of likeliest tokens in top_logprobs; None for no log-probabilities."""
        self.served, self.logprobs = served, logprobs
        self.over = False
        """Whether the text has ended"""
        self._text = GrowingText(stops)

    def prompt(self, ids: Sequence[int], predictions: Predictions | None) -> Piece:
        """Return the piece of an echoed prompt, with log-probabilities if there are predictions."""
        texts, offsets = [], []
        for piece in pieces_of(self.served.run.tokenizer, ids):
            offsets.append(self._text.characters)
            texts.append(self._text.prompt(piece))
        if predictions is None:
            return Piece("".join(texts))
        own = predictions.log_probabilities.tolist()
        best, values = predictions.top_ids.tolist(), predictions.top_log_probabilities.tolist()
        chosen: list[float | None] = [None, *own[1:]]
        tops = [None, *(self._top(*row) for row in zip(ids[1:], own[1:], best[1:], values[1:], strict=True))]
        return Piece("".join(texts), self._entries(ids, chosen, tops, offsets))

    def token(self, token: GeneratedToken) -> Piece:
        """Return the piece of a generated token; its text is empty after the end of the text."""
        offset = self._text.characters
        self.over = self.over or token.id in self.served.run.around.stops
        text = "" if self.over else self._text.add(self.served.run.tokenizer.added_bytes(token.id))
        self.over = self.over or self._text.stopped
        logprobs = None
        if self.logprobs is not None:
            top = self._top(token.id, token.log_probability, token.top_ids, token.top_log_probabilities)
            logprobs = self._entries([token.id], [token.log_probability], [top], [offset])
        return Piece(text, logprobs, tokens=1)

    def end(self) -> Piece:
        """Return the last piece: the text held back so far, and why the choice ended."""
        text = self._text.end()
        return Piece(text, finish_reason="stop" if self.over or self._text.stopped else "length")

    def _top(self, chosen: int, value: float, best: Sequence[int], values: Sequence[float]) -> dict[str, float]:
        """Return the log-probabilities of the likeliest tokens and the chosen one, without tokens of probability 0."""
        names, count = self.served.token_names, self.logprobs
        found = {names[i]: p for i, p in zip(best[:count], values[:count], strict=True) if math.isfinite(p)}
        return found | {names[chosen]: value}

    def _entries(self, ids: Sequence[int], chosen: list[float | None], tops: list[Any], offsets: list[int]) -> Logprobs:
        tokens = [self.served.token_names[i] for i in ids]
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}
