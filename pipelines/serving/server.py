"""The server process: its web application, uvicorn, and a shutdown within a second after Ctrl-C."""

import asyncio
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipelines.serving.catalogue import catalogue_routes
from pipelines.serving.chat import chat_routes
from pipelines.serving.completions import completion_routes
from pipelines.serving.errors import RequestError, answer_failure, answer_request_error, answer_wrong_route
from pipelines.serving.inside import inspection_routes
from pipelines.serving.lifetime import Lifetime, Limits
from pipelines.serving.models import Service
from pipelines.serving.page_api import page_routes
from pipelines.serving.predictions import prediction_routes
from pipelines.serving.security import PAGE, Access, AllowedOrigins, Security

LEAVING_S = 1  # time for connections to close after their answers are interrupted
HEAD_S = 10  # time for the request line and headers to arrive
KEEP_ALIVE_S = 75  # long, because a request on a connection that is being closed fails


def serve_until_interrupted(app: ASGIApp, bound: socket.socket, stopping: asyncio.Event) -> None:
    """Serve `app` until Ctrl-C, which sets `stopping` and then raises KeyboardInterrupt."""
    # asyncio warns about each client that disconnects before its answer.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        http=_Protocol,
        log_config=None,
        log_level="critical",  # errors are reported by the application
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LEAVING_S,
    )
    _Server(config, stopping).run(sockets=[bound])


class _Protocol(H11Protocol):
    """A connection that is closed if the request line and headers do not arrive within HEAD_S seconds.

    uvicorn has no such limit: clients could hold any number of connections open with half a request.
    """

    _awaited: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in H11Protocol
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._awaited is None and self.conn.their_state is h11.IDLE:
            self._await_head()  # of another request on this connection
        super().data_received(data)
        if self._awaited is not None and self.conn.their_state is not h11.IDLE:
            self._awaited.cancel()
            self._awaited = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._awaited = self.loop.call_later(HEAD_S, self.transport.close)


class _Server(uvicorn.Server):
    """A server that ends open streams when interrupted. uvicorn alone would wait for them and then print errors."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(_Threads())
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._stopping.set)


class _Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. The server ends without them: the requests that they work for are over."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


PAGE_FOLDER = Path(__file__).with_name("page")


def create_app(service: Service, access: Access, stopping: asyncio.Event, limits: Limits | None = None) -> ASGIApp:
    """Return the application. Setting `stopping` cuts short all requests in progress."""

    async def page(request: Request) -> FileResponse:
        return FileResponse(PAGE_FOLDER / "index.html")

    routes = [
        Route("/", page, methods=["GET"]),
        Mount(PAGE.rstrip("/"), StaticFiles(directory=PAGE_FOLDER)),
        *catalogue_routes(service),
        *completion_routes(service),
        *chat_routes(service),
        *page_routes(service),
        *prediction_routes(service),
        *inspection_routes(service),
    ]
    handlers = {
        RequestError: answer_request_error,
        HTTPException: answer_wrong_route,
        Exception: answer_failure,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    guarded = Security(Lifetime(app, limits or Limits(), stopping), access)
    if not access.origins:
        return guarded
    # Outermost: a preflight has no token, and a page of an allowed origin must be able to read a refusal.
    return AllowedOrigins(guarded, access)
