"""The lifetime of a request: limits on its body and time, and an end when the client leaves or the server stops."""

import asyncio
import os
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.cli.errors import complain, one_sentence
from pipelines.serving.errors import error_response

CLOSING_S = 0.2  # time for a client to read the end of an interrupted answer


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a request."""

    body: int = 4 << 20
    """bytes"""
    body_s: float = 30.0
    """seconds for the body to arrive"""
    seconds: float = 600.0
    """seconds for the answer, including the wait in the queue"""


class Lifetime:
    """Middleware that reads the body, runs the work, and cancels it.

    It cancels when the client leaves, the time is up or the server stops. An unexpected error of an endpoint becomes
    status 500 and a line on standard error.
    """

    def __init__(self, app: ASGIApp, limits: Limits, stopping: asyncio.Event) -> None:
        self.app, self.limits, self.stopping = app, limits, stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_s):
                whole = await self._read(receive, body)
        except TimeoutError:
            await answer.fail(408, f"the body took longer than {self.limits.body_s:g} s")
            return
        if len(body) > self.limits.body:
            await answer.fail(413, f"the body is longer than {self.limits.body:,} bytes")
        elif whole:
            await self._work(scope, bytes(body), receive, answer)

    async def _read(self, receive: Receive, body: bytearray) -> bool:
        """Append the request's body to `body` and return whether it is complete.

        Stops when the body exceeds the limit or the client leaves.
        """
        while len(body) <= self.limits.body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            body += message.get("body", b"")
            if not message.get("more_body"):
                return True
        return False

    async def _work(self, scope: Scope, body: bytes, receive: Receive, answer: "_Answer") -> None:
        left = asyncio.create_task(_client_leaves(receive))
        stopped = asyncio.create_task(self.stopping.wait())
        work = asyncio.ensure_future(self.app(scope, _Replay(body, left), answer.send))
        try:
            await asyncio.wait({work, left, stopped}, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            in_time, stops, absent = work.done(), stopped.done(), left.done()
        finally:
            await _cancel((work, left, stopped))
        if in_time:
            error = work.exception()
            if error is None:
                return
            _report(error)
            with suppress(OSError):
                await answer.fail(500, f"the server failed: {one_sentence(error)}")
        elif stops:
            await answer.fail(503, "the server is shutting down")
        elif not absent:
            await answer.fail(504, f"the request took longer than {self.limits.seconds:g} s: ask for less")


class _Replay:
    """A `receive` that returns the body, and then waits until the client leaves."""

    def __init__(self, body: bytes, left: "asyncio.Task[None]") -> None:
        self.body: bytes | None = body
        self.left = left

    async def __call__(self) -> Message:
        body, self.body = self.body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.wait({self.left})
        return {"type": "http.disconnect"}


class _Answer:
    """An answer that keeps track of the parts sent so far."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._started = self._ended = self._events = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            self._events = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
        else:
            self._ended = not message.get("more_body")
        await self._send(message)

    async def fail(self, status: int, message: str) -> None:
        """Answer with an error. If a stream of events has started, the error is its last event."""
        if self._ended:
            return
        response: Response = error_response(status, message)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                if not self._started:
                    await response(self._scope, _nothing, self._send)
                    return
                event = b"data: " + bytes(response.body) + b"\n\n" if self._events else b""
                await self._send({"type": "http.response.body", "body": event, "more_body": False})


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(tasks: "Iterable[asyncio.Future[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _report(error: BaseException) -> None:
    if os.environ.get("BYTELM_DEBUG"):
        traceback.print_exception(error)
    else:
        complain("serve", f"a request failed: {type(error).__name__}: {one_sentence(error)}")
