"""Errors of requests, in the format of OpenAI's API: {"error": {"message", "type", "param", "code"}}."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from pipelines.cli.errors import one_sentence

MOST_CHARACTERS = 300  # of a message, which may quote what a client sent
MOST_QUOTED = 60  # characters of a value or a name in a message
CHAT = "the models served here have no chat template and are not chat models: use POST /v1/completions with a decoder"


class RequestError(Exception):
    """A request that cannot be answered, with its HTTP status, a message and the field at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


@contextmanager
def blamed_on(param: str) -> Iterator[None]:
    """Turn a ValueError into a RequestError with status 400 about the field `param`."""
    try:
        yield
    except ValueError as error:
        raise RequestError(400, str(error), param=param) from None


def cut(text: str, most: int = MOST_QUOTED) -> str:
    """Return a text of at most `most` characters, the last one … if the text is cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    """Return the JSON object of an error. A long message is cut; line ends and lone surrogates are escaped."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {
        "error": {"message": _show(message), "type": kind, "param": param and _show(param, MOST_QUOTED), "code": code}
    }


def _show(text: str, most: int = MOST_CHARACTERS) -> str:
    return cut(text[: most + 1].replace("\n", "\\n").encode("utf-8", "backslashreplace").decode(), most)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response of an error."""
    return JSONResponse(error_body(status, message), status, headers)


def answer_request_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response of a RequestError that an endpoint raised."""
    assert isinstance(error, RequestError)
    return JSONResponse(error_body(error.status, error.message, error.param, error.code), error.status)


def answer_failure(request: Request, error: Exception) -> JSONResponse:
    """Return the response of an error that no endpoint expects. `Lifetime` reports it."""
    return error_response(500, f"the server failed: {one_sentence(error)}")


def answer_wrong_route(request: Request, error: Exception) -> JSONResponse:
    """Return the response for a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    message = f"{request.method} {path} is not allowed" if error.status_code == 405 else f"there is no {path} here"
    if "/chat" in path and error.status_code == 404:
        message += ": models with a chat template answer POST /v1/chat/completions, the others POST /v1/completions"
    return error_response(error.status_code, message, error.headers)
