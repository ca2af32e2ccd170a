"""The checks of every request: its Host header, its origin, a JSON body, and a token if other machines have access.

A page of another site can make its reader's browser send requests to a server on this machine. It cannot read the
answers, because the server never sends CORS headers. A site whose name resolves to this machine (DNS rebinding) could
read them, so the Host header must be an allowed name. (Starlette's TrustedHostMiddleware ignores the port and a second
Host header, and it answers in plain text.)
"""

import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.serving.errors import error_response

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
PAGE = "/page/"
"""Path of the page's files, which need no token because they hold no data"""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of every response"""


@dataclass(frozen=True)
class Access:
    """The allowed values of the Host header, and the token that requests must carry."""

    hosts: frozenset[str]
    token: str | None = None
    """None if only this machine can reach the server"""


def access_to(address: str, port: int, names: Iterable[str] = ()) -> Access:
    """Return the access to a server on `address` and `port`, which other machines reach under one of `names`.

    It has a new token if another machine could reach the server. Raises ValueError for a name with a scheme, a port or
    a path.
    """
    for name in names:
        if not name or set(name) & set("/@?# ") or (":" in name and not name.startswith("[")):
            raise ValueError(f"`allow_host={name!r}` is not a host name: leave out scheme, port and path")
    hosts = {*LOCAL_NAMES, *(name.lower() for name in names)}
    if not is_any(address):
        hosts.add(f"[{address}]" if ":" in address else address.lower())
    named = {f"{host}:{port}" for host in hosts} | (hosts if port == 80 else set())  # browsers leave port 80 out
    elsewhere = bool([*names]) or not is_local(address)
    return Access(frozenset(named), secrets.token_urlsafe(32) if elsewhere else None)


def is_local(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    return address == "localhost" or _is(address, "is_loopback")


def is_any(address: str) -> bool:
    """Return whether an address, such as 0.0.0.0, stands for all addresses of this machine."""
    return _is(address, "is_unspecified")


def _is(address: str, what: str) -> bool:
    try:
        return bool(getattr(ip_address(address), what))
    except ValueError:  # a name
        return False


class Security:
    """Middleware that refuses requests without access and adds HEADERS to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = find_refusal(self.access, scope["method"], scope["path"], Headers(scope=scope))
        if refusal is None:
            await self.app(scope, receive, send_with_headers)
            return
        status, message = refusal
        challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        await error_response(status, message, challenge)(scope, receive, send_with_headers)


def find_refusal(access: Access, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
    """Return the HTTP status and the message of a refusal, or None if the request is allowed."""
    named = [host.lower() for host in headers.getlist("host")]
    if len(named) != 1 or named[0] not in access.hosts:
        return (
            403,
            f"the Host header {', '.join(named)!r} is not allowed: `bytelm serve --allow-host NAME`, without the port, "
            "admits a name",
        )
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return 403, "requests from pages of other sites are not allowed"
    reads = method in ("GET", "HEAD")
    is_page = reads and (path == "/" or path.startswith(PAGE))
    if access.token is not None and not is_page:
        given = headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {access.token}".encode()):
            return 401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN"
    if not reads and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "the body must be JSON: send the header Content-Type: application/json"
    return None
