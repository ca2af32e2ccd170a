"""`POST /v1/chat/completions`: answers of runs with a chat template."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pipelines.chat.messages import conversation_of
from pipelines.serving.choices import Logprobs, Piece
from pipelines.serving.completions import Job, event
from pipelines.serving.errors import CHAT, RequestError, blamed_on
from pipelines.serving.models import ServedModel, Service
from pipelines.serving.requests import ChatRequest


def chat_routes(service: Service) -> list[Route]:
    """Return the routes of this module."""

    async def chat(request: Request) -> Response:
        chatting = [name for name, one in service.models.items() if one.run.run.chat_template]
        if not chatting:
            raise RequestError(404, CHAT)
        asked = await ChatRequest.of(request)
        served = service.model(asked.model)
        if served.name not in chatting:
            message = f"{served.name} has no chat template and is not a chat model: chat with {' or '.join(chatting)}"
            raise RequestError(404, message, param="model")
        prompt = await _prompt_ids(served, asked)
        job = _Answer(service, served, asked.as_completion(), [prompt])
        if asked.stream:
            return StreamingResponse(job.events(), media_type="text/event-stream")
        return await asyncio.to_thread(JSONResponse, await job.answer())

    return [Route("/v1/chat/completions", chat, methods=["POST"])]


async def _prompt_ids(served: ServedModel, asked: ChatRequest) -> list[int]:
    """Return the ids that the model continues; RequestError for messages that it cannot read."""
    with blamed_on("messages"):
        template = served.run.template
        assert template is not None
        messages = conversation_of(asked.messages, "messages")
        served.refuse_too_long(sum(len(message.content) for message in messages), "the conversation", "messages")
        return await asyncio.to_thread(template.prompt, messages)


class _Answer(Job):
    """A chat request in progress."""

    kind, object = "chatcmpl", "chat.completion"
    read, param = "conversation", "messages"
    entries, fewer = "top_logprobs", ""
    default_tokens = None

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield the server-sent events of a stream: the role of each choice, its text, and why it ends."""
        tokens = 0
        for choice in self.choices:
            yield event(self._chunk(choice.index, {"role": "assistant", "content": ""}))
        async with aclosing(self.pieces()) as pieces:
            async for index, piece in pieces:
                tokens += piece.tokens
                logprobs = self._logprobs(piece.logprobs)
                if piece.text or (logprobs and logprobs["content"]):
                    yield event(self._chunk(index, {"content": piece.text}, logprobs))
                if piece.finish_reason:
                    yield event(self._chunk(index, {}, reason=piece.finish_reason))
        for last in self.last_events(self._chunks([]), tokens):
            yield last

    def _answer(self, pieces: Iterable[tuple[int, Piece]]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": piece.text, "refusal": None},
                "logprobs": self._logprobs(piece.logprobs),
                "finish_reason": piece.finish_reason,
            }
            for index, piece in pieces
        ]
        return self.head | {"choices": choices}

    def _chunks(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self.head | {"object": "chat.completion.chunk", "choices": choices}

    def _chunk(
        self, index: int, delta: dict[str, str], logprobs: dict[str, Any] | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        return self._chunks([{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}])

    def _logprobs(self, given: Logprobs | None) -> dict[str, Any] | None:
        """Return log-probabilities in the form of chats; the token that ends an answer has none."""
        if given is None:
            return None
        ends = {self.served.token_names[i] for i in self.served.run.around.stops}
        rows = zip(given["tokens"], given["token_logprobs"], given["top_logprobs"], strict=True)
        return {
            "content": [
                {**self._entry(token, value), "top_logprobs": [self._entry(*pair) for pair in self._likeliest(top)]}
                for token, value, top in rows
                if token not in ends
            ],
            "refusal": None,
        }

    def _likeliest(self, top: dict[str, float]) -> list[tuple[str, float]]:
        """Return the likeliest tokens, likeliest first; the chosen token only if it is one of them."""
        ordered = sorted(top.items(), key=lambda pair: -pair[1])
        return ordered[: self.asked.logprobs or 0]

    def _entry(self, token: str, value: float) -> dict[str, Any]:
        """Return a token, its log-probability and its bytes; a token that adds no text has no bytes."""
        return {"token": token, "logprob": value, "bytes": self.served.token_bytes.get(token)}
