"""`POST /v1/completions`: continued prompts and log-probabilities."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pipelines.scoring.predictions import Predictions
from pipelines.serving.choices import Choice, Piece, Writer, whole
from pipelines.serving.engine import GeneratedToken, GenerationRequest
from pipelines.serving.errors import RequestError
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.requests import CompletionRequest

DEFAULT_TOKENS = 16
MOST_TOKENS = 1 << 18  # in all texts of a request, prompts included
MOST_ENTRIES = 250_000  # log-probabilities in an answer


def completion_routes(service: Service) -> list[Route]:
    """Return the routes of this module."""

    async def completions(request: Request) -> Response:
        asked = await CompletionRequest.of(request)
        served = service.model(asked.model)
        if served.architecture != "decoder":
            message = f"{served.name} is an {served.architecture}: only a decoder completes a prompt"
            raise RequestError(400, message, param="model")
        prompts = [await _prompt_ids(served, prompt) for prompt in asked.prompt or [None]]
        job = Job(service, served, asked, prompts)
        if asked.stream:
            return StreamingResponse(job.events(), media_type="text/event-stream")
        return await asyncio.to_thread(JSONResponse, await job.answer())

    return [Route("/v1/completions", completions, methods=["POST"])]


async def _prompt_ids(served: ServedModel, prompt: str | list[int] | None) -> list[int]:
    """Return the ids of a prompt; None is the start token. Raises RequestError for a prompt without tokens.

    Special tokens at the start of a text are read as special tokens, because a text prompt can name a start token in no
    other way. Later ones are ordinary text.
    """
    if isinstance(prompt, list):
        served.check_ids(prompt[: served.context_length + 1], "prompt")  # a longer prompt is refused for its length
        return prompt
    around = served.run.around
    if prompt is None:
        if around.start is None:
            raise RequestError(400, "prompt is missing, and the model has no start token", param="prompt")
        return [*around.before] or [around.start]
    ids = await served.encode_prompt(prompt)
    if not ids:
        raise RequestError(400, "the prompt is empty: leave it out to begin with the start token", param="prompt")
    return ids


class Job:
    """A completion request in progress. Raises RequestError for a prompt that does not fit."""

    kind, object = "cmpl", "text_completion"
    read, param = "prompt", "prompt"
    """What the model reads, and the field of the request that holds it"""
    entries, fewer = "logprobs", ", or send fewer prompts"
    """The field that asks for log-probabilities, and the end of a message about too much work"""
    default_tokens: int | None = DEFAULT_TOKENS
    """New tokens of a text without max_tokens; None: as many as the context and the limits of a request allow"""

    def __init__(
        self, service: Service, served: ServedModel, asked: CompletionRequest, prompts: Sequence[list[int]]
    ) -> None:
        self.service, self.served, self.asked = service, served, asked
        self.prompt_tokens = sum(map(len, prompts))
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        self.choices = [
            Choice(index, prompt, self._max_tokens(prompt), (seed + index) % 2**63)
            for index, prompt in enumerate(prompt for prompt in prompts for _ in range(asked.n))
        ]
        self._check_work()
        self._scores: dict[tuple[int, ...], asyncio.Task[Predictions]] = {}
        self.head: dict[str, Any] = {
            "id": f"{self.kind}-{secrets.token_hex(12)}",
            "object": self.object,
            "created": int(time.time()),
            "model": served.name,
        }
        self._with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        if self._with_usage:  # in the last event only, but the others have the field
            self.head["usage"] = None

    def _max_tokens(self, prompt: list[int]) -> int:
        room = self.served.context_length - len(prompt)
        wanted = self.asked.max_tokens
        if wanted is None:
            wanted = max(1, min(room, self.default_tokens or self._most_tokens(prompt)))
        if wanted > room:
            raise RequestError(
                400,
                f"the {self.read} has {len(prompt):,} tokens and max_tokens is {wanted:,}, together more than the "
                f"model's context of {self.served.context_length:,} tokens: shorten the {self.read} or lower "
                "max_tokens",
                param=self.param,
                code="context_length_exceeded",
            )
        return wanted

    def _most_tokens(self, prompt: list[int]) -> int:
        """Return the number of new tokens of each of the `n` texts of a single prompt that the limits allow."""
        most = MOST_TOKENS // self.asked.n - len(prompt)
        if self.asked.logprobs is None:
            return most
        return min(most, MOST_ENTRIES // (self.asked.n * (1 + self.asked.logprobs)))

    def _check_work(self) -> None:
        """Raise RequestError if the request asks for too many tokens or log-probabilities."""
        tokens = sum(len(choice.prompt) + choice.max_tokens for choice in self.choices)
        if tokens > MOST_TOKENS:
            raise RequestError(
                400,
                f"the texts and prompts of this request may have {tokens:,} tokens, but at most {MOST_TOKENS:,} are "
                f"allowed: lower n or max_tokens{self.fewer}",
                param="n",
            )
        if self.asked.logprobs is None:
            return
        echoed = self.prompt_tokens * self.asked.n if self.asked.echo else 0
        entries = (1 + self.asked.logprobs) * (echoed + sum(choice.max_tokens for choice in self.choices))
        if entries > MOST_ENTRIES:
            raise RequestError(
                400,
                f"the answer may have {entries:,} log-probabilities, but at most {MOST_ENTRIES:,} are allowed: lower "
                f"{self.entries}, n or max_tokens{self.fewer}",
                param=self.entries,
            )

    async def answer(self) -> dict[str, Any]:
        """Return the JSON object of the whole answer."""
        made: list[list[Piece]] = [[] for _ in self.choices]
        async with aclosing(self.pieces()) as pieces:
            async for index, piece in pieces:
                made[index].append(piece)
        texts = [whole(each) for each in made]
        return self._answer(enumerate(texts)) | {"usage": self.usage(sum(text.tokens for text in texts))}

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield the server-sent events of a stream."""
        tokens = 0
        async with aclosing(self.pieces()) as pieces:
            async for index, piece in pieces:
                tokens += piece.tokens
                if piece.text or piece.logprobs or piece.finish_reason:
                    yield event(self._answer([(index, piece)]))
        for last in self.last_events(self._answer([]), tokens):
            yield last

    def last_events(self, empty: dict[str, Any], tokens: int) -> list[str]:
        """Return the events that end a stream: the token counts, added to `empty`, if requested; then the end."""
        counted = [event(empty | {"usage": self.usage(tokens)})] if self._with_usage else []
        return [*counted, "data: [DONE]\n\n"]

    def _answer(self, pieces: Iterable[tuple[int, Piece]]) -> dict[str, Any]:
        choices = [
            {"index": index, "text": piece.text, "logprobs": piece.logprobs, "finish_reason": piece.finish_reason}
            for index, piece in pieces
        ]
        return self.head | {"choices": choices}

    def usage(self, completion_tokens: int) -> dict[str, int]:
        """Return the token counts of an answer."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield the pieces of all choices as they come, with the index of their choice."""
        queue: asyncio.Queue[tuple[int, Piece] | Exception | None] = asyncio.Queue()

        async def work(choice: Choice) -> None:
            try:
                async with aclosing(self._pieces_of(choice)) as pieces:
                    async for piece in pieces:
                        queue.put_nowait((choice.index, piece))
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(work(choice)) for choice in self.choices]
        try:
            working = len(tasks)
            while working:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    working -= 1
                else:
                    yield item
        finally:
            tasks += self._scores.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pieces_of(self, choice: Choice) -> AsyncGenerator[Piece, None]:
        asked = self.asked
        writer = Writer(self.served, asked.stop, asked.logprobs)
        first = None
        if asked.echo:
            predictions, first = await self._scored(choice) if asked.exact else (None, None)
            yield await asyncio.to_thread(writer.prompt, choice.prompt, predictions)
        if first is not None:
            yield writer.token(first)
        else:
            async with aclosing(self._generate(choice)) as tokens:
                async for token in tokens:
                    yield writer.token(token)
                    if writer.over and not asked.exact:
                        break
        yield writer.end()

    async def _scored(self, choice: Choice) -> tuple[Predictions, GeneratedToken | None]:
        """Return the predictions of a prompt, and the next token if one greedy token is asked for, otherwise None.

        lm-evaluation-harness asks for one greedy token, so its requests need a single pass of the model.
        """
        prompt = choice.prompt
        likeliest = choice.max_tokens == 1 and self.asked.temperature == 0
        # The prediction after the prompt does not depend on the id that is scored there.
        ids, top = [*prompt, *prompt[: int(likeliest)]], max(self.asked.logprobs or 0, int(likeliest))
        found = await self._score_once(ids, top)
        first = None
        if likeliest and self.served.known[found.top_ids[-1, 0]]:
            best, values = found.top_ids[-1].tolist(), found.top_log_probabilities[-1].tolist()
            first = GeneratedToken(best[0], values[0], float(found.entropies[-1]), 1, best, values)
        return found.part(0, len(prompt)), first

    async def _score_once(self, ids: list[int], top: int) -> Predictions:
        """Return the predictions of `ids`. The texts of one prompt share them."""
        key = tuple(ids)
        if key not in self._scores:
            scoring = self.service.engine.score(self.served.name, ids, top, owner=self)
            self._scores[key] = asyncio.create_task(scoring)
        return await self._scores[key]

    def _generate(self, choice: Choice) -> AsyncGenerator[GeneratedToken, None]:
        asked = self.asked
        request = GenerationRequest(
            prompt_ids=choice.prompt,
            max_tokens=choice.max_tokens,
            seed=choice.seed,
            stop_ids=() if asked.exact else self.served.run.around.stops,
            top=asked.logprobs or 0,
            **asked.options(),
        )
        return self.service.engine.generate(self.served.name, request, owner=self)


def event(content: dict[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n"
