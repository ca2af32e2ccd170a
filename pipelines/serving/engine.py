"""The inference engine of `bytelm serve`: one thread runs the models for all coroutines.

The thread works in turns. In each turn, every model scores waiting sequences and generates one token of each of its
texts, and one other function runs. A long request therefore delays the others by one turn, not by its length. Requests
that wait for a model take turns too, so a request with many texts does not make the others wait for all its texts.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np

from lm.decoding.packed import prepare
from lm.decoding.requests import GeneratedToken as GeneratedToken
from lm.decoding.requests import GenerationRequest as GenerationRequest
from lm.decoding.requests import check_ids
from lm.decoding.slots import Slots, Text
from lm.decoding.turns import Turns
from pipelines.evaluation.windows import sequence_windows
from pipelines.run.loaded_run import LoadedRun
from pipelines.run.text_ids import known_ids
from pipelines.scoring.predictions import Predictions, predict

T = TypeVar("T")

SLOTS = 16  # texts that a model generates at once
SCORED = 2048  # positions that a model scores in a turn, padding included
CLOSING_S = 0.5  # how long `close` waits for the end of a turn
CLOSED = "the server is shutting down"


class EngineClosedError(RuntimeError):
    """The engine was closed before the request was answered."""


class Engine:
    """Generates, scores and calls functions on one thread for several models. Further requests wait in a queue.

    Use it as a context manager, or call `start` and `close`. An error of a request, such as a ValueError, is raised in
    its caller and does not affect other requests.
    """

    def __init__(self, runs: Mapping[str, LoadedRun], *, slots: int = SLOTS) -> None:
        """Make an engine for `runs` by model name. Each model generates at most `slots` texts at once."""
        self._served = {name: _Served(run, slots) for name, run in runs.items()}
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="inference", daemon=True)

    def start(self) -> None:
        """Start the inference thread."""
        self._thread.start()

    def close(self) -> None:
        """End the inference thread. Unanswered requests raise EngineClosedError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSING_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self, model: str, request: GenerationRequest, owner: Hashable = None
    ) -> AsyncGenerator[GeneratedToken, None]:
        """Return an iterator over the tokens that continue a prompt, up to a stop id or `max_tokens`.

        Texts of one `owner` share its turns. Closing the iterator ends the work. Raises ValueError for an unknown
        model, a model that is not a decoder, a prompt that leaves less than `max_tokens` in the context, and ids
        outside the vocabulary.
        """
        served = self._find(model)
        request.check(served.run.model.config)
        assert served.slots is not None
        return self._generate(served.slots, served.streams, request, owner)

    async def _generate(
        self, slots: Slots, streams: dict[Text, _Stream], request: GenerationRequest, owner: Hashable
    ) -> AsyncGenerator[GeneratedToken, None]:
        if request.max_tokens == 0:
            return
        stream = _Stream(asyncio.get_running_loop())
        with self._wake:
            self._refuse_if_closed()
            text = slots.new_text(request, owner)
            streams[text] = stream  # before it is added: a turn in progress may generate it at once
            slots.add(text)
            self._wake.notify()
        try:
            while isinstance(item := await stream.tokens.get(), GeneratedToken):
                yield item
            if item is not None:
                raise item
        finally:
            text.left = True
            streams.pop(text, None)

    async def score(self, model: str, ids: Sequence[int], top: int = 0, owner: Hashable = None) -> Predictions:
        """Return the predictions of N `ids`, each from the ids before it; the first has no prediction.

        `top`: number of likeliest tokens to return for each id; `owner` as in `generate`. Raises ValueError for an
        unknown model, a model that is not a decoder, more ids than fit in the context, and ids outside the vocabulary.
        """
        served = self._find(model)
        config = served.run.model.config
        if config.architecture != "decoder":
            raise ValueError(f"the model is an {config.architecture}: only a decoder predicts the next token")
        if len(ids) > config.context_length:
            raise ValueError(
                f"there are {len(ids):,} tokens to score, more than the context of {config.context_length:,}: "
                "score parts of the text"
            )
        check_ids(ids, config)
        if top < 0:
            raise ValueError(f"top is {top}, but must not be negative")
        if len(ids) < 2:
            return Predictions.unknown(len(ids), min(top, config.vocab_size))
        sequence = _Sequence(np.array(ids, np.int64), top)
        with self._wake:
            self._refuse_if_closed()
            served.unscored.put(sequence if owner is None else owner, sequence)
            self._wake.notify()
        return await asyncio.wrap_future(sequence.future)

    async def call(self, function: Callable[[], T]) -> T:
        """Return function(), run on the inference thread."""
        future: Future[T] = Future()
        with self._wake:
            self._refuse_if_closed()
            self._calls.append((function, future))
            self._wake.notify()
        return await asyncio.wrap_future(future)

    def _find(self, model: str) -> _Served:
        if model not in self._served:
            raise ValueError(f"there is no model {model!r}: the models are {', '.join(self._served)}")
        return self._served[model]

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EngineClosedError(CLOSED)

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: self._closed or self._calls or any(map(_Served.busy, self._served.values()))
                )
                if self._closed:
                    break
            while self._calls and not _call(*self._calls.popleft()):
                pass  # its caller left
            for served in self._served.values():
                try:
                    served.take_turn()
                except Exception as error:  # such as out of memory; the other models continue
                    served.fail(error)
        closed = EngineClosedError(CLOSED)
        for served in self._served.values():
            served.fail(closed)
        for _, future in self._calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(closed)


class _Stream:
    """The tokens of a text, passed from the inference thread to a coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.tokens: asyncio.Queue[GeneratedToken | Exception | None] = asyncio.Queue()
        """The tokens, then None or an error"""
        self._loop = loop

    def send(self, item: GeneratedToken | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self.tokens.put_nowait, item)


@dataclass(eq=False)
class _Sequence:
    """Ids that wait for their predictions."""

    ids: np.ndarray
    top: int
    future: Future[Predictions] = field(default_factory=Future)


class _Served:
    """One model and its requests."""

    def __init__(self, run: LoadedRun, slots: int) -> None:
        self.run = run
        self.unscored: Turns[_Sequence] = Turns()
        self.streams: dict[Text, _Stream] = {}
        self.slots: Slots | None = None
        if run.model.config.architecture == "decoder":
            self.slots = Slots(prepare(run.model, slots), slots, allowed=known_ids(run.tokenizer, run.model))

    def busy(self) -> bool:
        return bool(self.unscored or self.streams)

    def take_turn(self) -> None:
        """Score some of the waiting sequences and generate one token of each text."""
        self._score([sequence for sequence in self._next_sequences() if sequence.future.set_running_or_notify_cancel()])
        if self.slots is None or not self.streams:
            return
        made = self.slots.step()  # two tokens of a text that lost its row and got it back
        for text, item in made:
            if (stream := self.streams.get(text)) is not None:  # else the client left
                stream.send(item)
        for text, _ in made:
            if text.ended and (stream := self.streams.pop(text, None)) is not None:
                stream.send(None)

    def _next_sequences(self) -> list[_Sequence]:
        """Remove the next sequences that fit in a turn from the queue, at least one, and return them."""
        sequences: list[_Sequence] = []
        longest = 0
        while (owner := self.unscored.next_owner()) is not None:
            longest = max(longest, len(self.unscored.peek(owner).ids))
            if sequences and (len(sequences) + 1) * longest > SCORED:
                break
            sequences.append(self.unscored.take(owner))
        return sequences

    def fail(self, error: Exception) -> None:
        """Answer all requests with `error`."""
        for text in list(self.streams):
            if (stream := self.streams.pop(text, None)) is not None:  # else the client left
                text.left = True
                stream.send(error)
        while (owner := self.unscored.next_owner()) is not None:
            sequence = self.unscored.take(owner)
            if sequence.future.set_running_or_notify_cancel():
                sequence.future.set_exception(error)

    def _score(self, sequences: list[_Sequence]) -> None:
        """Predict the sequences in one batch. If it fails, predict each alone, so that only faulty ones fail."""
        if not sequences:
            return
        try:
            found = self._predict(sequences)
        except Exception as error:
            if len(sequences) == 1:
                sequences[0].future.set_exception(error)
                return
            for sequence in sequences:
                self._score([sequence])
            return
        for sequence, predictions in zip(sequences, found, strict=True):
            sequence.future.set_result(predictions)

    def _predict(self, sequences: list[_Sequence]) -> list[Predictions]:
        ids = [sequence.ids for sequence in sequences]
        starts = np.cumsum([0, *map(len, ids)]).tolist()
        windows = sequence_windows(ids)
        found = predict(self.run.model, windows, starts[-1], top=max(sequence.top for sequence in sequences))
        return [
            replace(
                part := found.part(start, start + len(sequence.ids)),
                top_ids=part.top_ids[:, : sequence.top],
                top_log_probabilities=part.top_log_probabilities[:, : sequence.top],
            )
            for sequence, start in zip(sequences, starts[:-1], strict=True)
        ]


def _call(function: Callable[[], Any], future: Future[Any]) -> bool:
    """Set the result of a function. Return False, without a call, if the future was cancelled."""
    if not future.set_running_or_notify_cancel():
        return False
    try:
        result = function()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    return True
