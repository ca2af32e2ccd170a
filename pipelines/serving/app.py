"""The web application of `bytelm serve`: its routes, wrapped in the checks of every request."""

import asyncio
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from pipelines.serving.catalogue import catalogue_routes
from pipelines.serving.completions import completion_routes
from pipelines.serving.errors import RequestError, answer_failure, answer_request_error, answer_wrong_route
from pipelines.serving.lifetime import Lifetime, Limits
from pipelines.serving.models import Service
from pipelines.serving.page_api import page_routes
from pipelines.serving.security import PAGE, Access, Security

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
        *page_routes(service),
    ]
    handlers = {
        RequestError: answer_request_error,
        HTTPException: answer_wrong_route,
        Exception: answer_failure,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Security(Lifetime(app, limits or Limits(), stopping), access)
