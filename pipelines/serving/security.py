"""Who can reach the server: its address, and the checks of every request (Host header, origin, JSON body, token).

A page of another site can make its reader's browser send requests to a server on this machine. It cannot read the
answers, because the server sends CORS headers only to the origins that `allow_origin` names. A site whose name resolves
to this machine (DNS rebinding) could read them, so the Host header must be an allowed name. (Starlette's
TrustedHostMiddleware ignores the port and a second Host header, and it answers in plain text.)
"""

import hmac
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.serving.errors import error_response

BACKLOG = 2048  # connections that wait to be accepted
LEAST_TOKEN = 16  # characters of a token from a file
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
PAGE = "/page/"
"""Path of the page's files, which need no token because they hold no data"""
HEALTH = "/health"
"""Path that anyone, such as a load balancer, may read: it says only whether the server answers"""
METHODS, SENT_HEADERS = ("GET", "POST"), ("Authorization", "Content-Type")
"""What pages of allowed origins may send"""
OTHER_SITE = (
    "pages of other sites may not use this server: `bytelm serve --allow-origin ORIGIN` lets those of ORIGIN in, such "
    "as http://localhost:3000"
)
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
    """None: requests need no token"""
    origins: frozenset[str] = frozenset()
    """Sites whose pages may send requests and read the answers"""


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free port. Raises ValueError for an address that cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ValueError(f"`host='{host}'` is not an address of this machine: {error}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise ValueError(
            f"cannot listen on {host}, port {port} ({error.strerror}): choose another `port` or `host`"
        ) from None
    return bound


def access_to(
    address: str, port: int, names: Iterable[str] = (), *, origins: Iterable[str] = (), token: str | None = None
) -> Access:
    """Return the access to a server on `address` and `port`, which other machines reach under one of `names`.

    Without `token`, the access has a new token if another machine could reach the server. Raises ValueError for a name
    with a scheme, a port or a path, and for an origin that is not a scheme, a host and perhaps a port.
    """
    for name in names:
        if not name or set(name) & set("/@?# ") or (":" in name and not name.startswith("[")):
            raise ValueError(f"`allow_host={name!r}` is not a host name: leave out scheme, port and path")
    hosts = {*LOCAL_NAMES, *(name.lower() for name in names)}
    if not is_any(address):
        hosts.add(f"[{address}]" if ":" in address else address.lower())
    named = {f"{host}:{port}" for host in hosts} | (hosts if port == 80 else set())  # browsers leave port 80 out
    elsewhere = bool([*names]) or not is_local(address)
    token = token or (secrets.token_urlsafe(32) if elsewhere else None)
    return Access(frozenset(named), token, frozenset(map(_origin, origins)))


def _origin(text: str) -> str:
    """Return an origin as browsers send it: in lower case, without the final slash and the scheme's default port."""
    found = re.fullmatch(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?/?", text.lower())
    if found is None:
        raise ValueError(
            f"`allow_origin={text!r}` is not an origin: give scheme, host and port only, such as http://localhost:3000"
        )
    scheme, host, port = found.groups()
    implied = {"http": ":80", "https": ":443"}.get(scheme)
    return f"{scheme}://{host}{'' if port in (None, implied) else port}"


def read_token(path: Path) -> str:
    """Return the token in a file. Raises ValueError for a file that others may read, and for a weak token."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(10_000).decode("ascii", "replace").strip()
    except OSError as error:
        raise ValueError(f"`token_file='{path}'` cannot be read: {error.strerror}") from None
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"other users may read or change {path}, the `token_file`: run chmod 600 {path}")
    if len(text) < LEAST_TOKEN or not re.fullmatch("[A-Za-z0-9._~+/=-]+", text):
        raise ValueError(
            f"{path}, the `token_file`, must hold one line of at least {LEAST_TOKEN} letters, digits and ._~+/=-: "
            f"run (umask 077; openssl rand -hex 32 > {path})"
        )
    return text


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


class AllowedOrigins(CORSMiddleware):
    """Middleware that lets pages of the allowed origins send requests and read the answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        super().__init__(
            app,
            allow_origins=list(access.origins),
            allow_methods=METHODS,
            allow_headers=SENT_HEADERS,
            allow_private_network=True,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the answer to a browser that asks what a page may send. A refusal is JSON, like every error."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        if not self.is_allowed_origin(request_headers["origin"]):
            return error_response(403, OTHER_SITE, HEADERS)
        message = f"a page may send {' and '.join(METHODS)} requests, with the headers {' and '.join(SENT_HEADERS)}"
        kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        return error_response(400, message, {**HEADERS, **kept})


def find_refusal(access: Access, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
    """Return the HTTP status and the message of a refusal, or None if the request is allowed."""
    reads = method in ("GET", "HEAD")
    if reads and path == HEALTH:
        return None
    named = [host.lower() for host in headers.getlist("host")]
    if len(named) != 1 or named[0] not in access.hosts:
        return (
            403,
            f"the Host header {', '.join(named)!r} is not allowed: `bytelm serve --allow-host NAME`, without the port, "
            "admits a name",
        )
    own = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    asks_for_others = method == "OPTIONS" and "access-control-request-method" in headers
    if (asks_for_others or not own) and headers.get("origin") not in access.origins:
        return 403, OTHER_SITE
    is_page = reads and (path == "/" or path.startswith(PAGE))
    if access.token is not None and not is_page:
        given = headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {access.token}".encode()):
            return 401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN"
    if not reads and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "the body must be JSON: send the header Content-Type: application/json"
    return None
