"""The served models: their names, and the names of their tokens."""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pipelines.run.loaded_run import LoadedRun
from pipelines.run.predictor import Predictor
from pipelines.run.text_ids import known_ids
from pipelines.scoring.texts import text_tokens
from pipelines.serving.engine import Engine
from pipelines.serving.errors import RequestError, blamed_on, cut
from tokenizer import Tokenizer


@dataclass(frozen=True)
class ServedModel:
    """A run and the name that it is served under."""

    name: str
    run: LoadedRun
    opening: tuple[str, str] = ("", "")
    """The text that the page opens with, and its target for an encoder-decoder"""

    @property
    def architecture(self) -> str:
        """Return decoder, encoder or encoder-decoder."""
        return self.run.config.model.architecture

    @property
    def context_length(self) -> int:
        """Return the number of tokens that the model reads at once."""
        return self.run.config.model.context_length

    @cached_property
    def token_names(self) -> list[str]:
        """Return a unique name for each id; see `token_names`."""
        return token_names(self.run.tokenizer, self.run.config.model.vocab_size)

    @cached_property
    def token_bytes(self) -> dict[str, list[int]]:
        """Return the bytes that each token adds to a text, by its name. Special tokens and unused ids have none."""
        tok = self.run.tokenizer
        return {self.token_names[i]: [*tok.added_bytes(i)] for i in np.flatnonzero(tok.ordinary).tolist()}

    @cached_property
    def known(self) -> np.ndarray:
        """Return whether each id is in use: (V,) bool. A vocabulary may be padded beyond its tokenizer."""
        known = known_ids(self.run.tokenizer, self.run.model)
        return np.ones(self.run.config.model.vocab_size, bool) if known is None else known.cpu().numpy()

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raise RequestError for an id that is not in use."""
        for i in ids:
            if not (0 <= i < len(self.known) and self.known[i]):
                raise RequestError(400, f"{cut(str(i))} is not an id of the model's tokenizer", param=param)

    async def encode_prompt(self, text: str) -> list[int]:
        """Return the ids of a prompt. Special tokens count only at its start; later ones are ordinary text.

        A prompt that cannot fit in the context is refused before it is encoded, because encoding it would take seconds.
        """
        special = self.run.tokenizer.special_tokens
        self.refuse_too_long(len(text), "the prompt", "prompt")
        spelled = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        ids: list[int] = []
        at = 0
        while len(ids) <= self.context_length and (found := spelled.match(text, at)):
            ids.append(special[found[0]])
            at = found.end()
        return ids if len(ids) > self.context_length else ids + await self.encode(text[at:], "prompt")

    def refuse_too_long(self, characters: int, what: str, param: str) -> None:
        """Raise RequestError if a text of `characters` characters cannot fit in the context."""
        tok = self.run.tokenizer
        if tok.is_lossless and characters > self.context_length * max(
            int(tok.token_byte_lengths.max()), *map(len, tok.special_tokens), 1
        ):
            message = f"{what} has {characters:,} characters, more than fit in {self.context_length:,} tokens"
            raise RequestError(400, f"{message}: shorten it", param=param, code="context_length_exceeded")

    async def encode(self, text: str, param: str) -> list[int]:
        """Return the ids of a text in which special tokens are ordinary text.

        Raises RequestError for text that UTF-8 cannot represent. Encodes in a thread, because the kernels for long
        texts take seconds to load.
        """
        with blamed_on(param):
            ids: list[int] = (await asyncio.to_thread(text_tokens, self.run, text)).tolist()
        return ids


@dataclass(frozen=True)
class Service:
    """The language models and the fine-tuned runs by name, and the engine that runs them, shared by all endpoints."""

    models: Mapping[str, ServedModel]
    engine: Engine
    created: int = field(kw_only=True)
    """Start of the server, in seconds since 1970"""
    tasks: Mapping[str, Predictor] = field(default_factory=dict, kw_only=True)
    """Runs that are fine-tuned for a task. Runs of the task text-to-text are language models too"""

    @property
    def names(self) -> list[str]:
        """The names of all runs."""
        return [*self.models, *(name for name in self.tasks if name not in self.models)]

    def model(self, name: object) -> ServedModel:
        """Return the model of a request's field `model`, which may be None if there is only one.

        Raises RequestError with status 404 for an unknown name.
        """
        names = ", ".join(self.models)
        tuned = isinstance(name, str) and name in self.tasks and name not in self.models
        if tuned or not self.models:
            shown = f"{name} is" if tuned else "the runs served here are"
            message = f"{shown} fine-tuned for a task: use POST /api/predict"
            raise RequestError(400, message, param="model")
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name is None:
            raise RequestError(400, f"model is missing: name one of {names}", param="model")
        if not isinstance(name, str) or name not in self.models:
            message = f"there is no model {cut(repr(name))}: the models are {names}"
            raise RequestError(404, message, param="model", code="model_not_found")
        return self.models[name]

    def task(self, name: object) -> str:
        """Return the name of the fine-tuned run of a request's field `model`; see `model`."""
        if name is None and len(self.tasks) == 1:
            return next(iter(self.tasks))
        if isinstance(name, str) and name in self.tasks:
            return name
        names = f"name one of {', '.join(self.tasks)}" if self.tasks else "serve a run of a task that it predicts"
        if name is None:
            raise RequestError(400, f"model is missing: {names}", param="model")
        if isinstance(name, str) and name in self.models:
            task = self.models[name].run.config.task
            shown = f"{name} is not fine-tuned for a task"
            if task is not None:
                shown = f"the server does not predict the task {task.name} of {name}"
            raise RequestError(400, f"{shown}: {names}", param="model")
        raise RequestError(404, f"there is no model {cut(repr(name))}: {names}", param="model", code="model_not_found")


def token_names(tok: Tokenizer, count: int) -> list[str]:
    """Return a unique name for each id from 0 to `count` - 1.

    The name is the token's text. A token that is not valid UTF-8 is named by its bytes, such as `bytes:\\xe2\\x80`.
    Tokens with the same text also get their ids, such as ` the (id 17)`. An id without a token is `id:50300`.
    """
    special = set(tok.special_tokens.values())
    ordinary = tok.ordinary
    names = []
    for i in range(count):
        if i < tok.vocab_size and (ordinary[i] or i in special):
            names.append(_name(tok.token_bytes(i)))
        else:
            names.append(f"id:{i}")
    while repeated := {name for name, times in Counter(names).items() if times > 1}:
        names = [f"{name} (id {i})" if name in repeated else name for i, name in enumerate(names)]
    return names


def _name(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
