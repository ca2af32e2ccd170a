"""Requests to continue a prompt, and the generated tokens, of a decoder that serves several texts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lm.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A prompt to continue, with the options of `lm.decoding.sampling.sample`. Raises ValueError for bad values."""

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    """The samples of a text depend on this seed only."""
    stop_ids: Sequence[int] = ()
    """Ids that end the text, which includes the stop id"""
    top: int = 0
    """Number of likeliest tokens to return with each token"""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("the prompt has no tokens: give at least one, such as <|endoftext|>")
        for name in ("max_tokens", "top", "temperature"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}, but must not be negative or infinite")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, but must be at least 1")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} is {value}, but must be above 0 and at most 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}, but must be from 0 to 2^63 - 1")

    def check(self, config: ModelConfig) -> None:
        """Raise ValueError if the model cannot continue the prompt by `max_tokens` tokens."""
        if config.architecture != "decoder":
            raise ValueError(f"the model is an {config.architecture}: only a decoder continues a prompt")
        prompt = len(self.prompt_ids)
        if prompt + self.max_tokens > config.context_length:
            raise ValueError(
                f"the prompt has {prompt:,} tokens and max_tokens is {self.max_tokens:,}, together more than the "
                f"context of {config.context_length:,}: shorten the prompt or lower max_tokens"
            )
        check_ids(self.prompt_ids, config)


def check_ids(ids: Sequence[int], config: ModelConfig) -> None:
    """Raise ValueError for an id outside the vocabulary."""
    if ids and not 0 <= min(ids) <= max(ids) < config.vocab_size:
        wrong = next(i for i in ids if not 0 <= i < config.vocab_size)
        raise ValueError(f"id {wrong} is not in the vocabulary: ids are from 0 to {config.vocab_size - 1:,}")


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A generated token, with the model's log-probabilities in nats, before temperature and truncation."""

    id: int
    log_probability: float
    entropy: float
    """Of the prediction, in nats"""
    rank: int
    """1 for the likeliest token"""
    top_ids: list[int]
    """The likeliest tokens, in descending order"""
    top_log_probabilities: list[float]
    """If `top_ids` contains the generated token, its entry equals `log_probability` exactly."""
