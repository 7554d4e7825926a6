"""The site for people: the page, its parts, and /api/v1; and who may see it.

Every answer forbids what the page doesn't need: no other origin is asked for anything, nothing is framed, and text is
never taken for markup. On a loopback address a request must name a loopback host, or a page on another site could
have a browser read this one (DNS rebinding). With `http_token_file`, whoever asks must know the token.
"""

from __future__ import annotations

import hmac
import importlib.resources
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coldstart.config import is_loopback
from coldstart.errors import ConfigError
from coldstart.server.api import Api

if TYPE_CHECKING:
    from coldstart.server.app import App

COOKIE = "coldstart-token"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_app(app: App) -> Gate:
    """Raises ConfigError where the token can't be read."""
    folder = importlib.resources.files("coldstart.dashboard") / "page"
    api = Api(app)
    app.standing.page_streams = lambda: api.streams

    async def page(request: Request) -> Response:
        return FileResponse(str(folder / "index.html"))

    async def stats(request: Request) -> Response:  # its place before /api/v1
        return await api.stats(request)

    site = Starlette(
        routes=[
            Route("/", page),
            Route("/api/stats", stats),
            *api.routes(),
            Mount("/page", StaticFiles(directory=str(folder))),
        ],
        exception_handlers={HTTPException: _refused},
    )
    token = b""
    if app.config.http_token_file is not None:
        token = _token(app)
    return Gate(site, loopback=is_loopback(app.config.http or ""), token=token)


class Gate:
    """ASGI around ASGI: who may come in, and what every answer forbids."""

    def __init__(self, inner: ASGIApp, *, loopback: bool, token: bytes) -> None:
        self._inner = inner
        self._loopback = loopback
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        refusal = self._refusal(scope)
        await (refusal or self._inner)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._loopback and not _names_this_host(headers.get("host", "")):
            return PlainTextResponse("this page is for this host only\n", status_code=421)
        if not self._token:
            return None
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if "token" in asked and self._knows(asked["token"][0]):
            # Into a cookie, which scripts can't read, and out of the address, which people copy.
            response = Response(status_code=303, headers={"Location": "/"})
            response.set_cookie(COOKIE, asked["token"][0], httponly=True, samesite="strict")
            return response
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._knows(given):
            return None
        if self._knows(Request(scope).cookies.get(COOKIE, "")):
            return None
        return PlainTextResponse(
            "a token is needed: Authorization: Bearer TOKEN, or ?token=TOKEN once\n",
            status_code=401,
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)


def _names_this_host(host: str) -> bool:
    """A Host header, with or without a port."""
    bare = not host.rpartition(":")[2].isdigit() or host.endswith("]")
    return is_loopback(f"{host}:0" if bare else host)


def _token(app: App) -> bytes:
    path = app.config.http_token_file
    assert path is not None
    try:
        token = path.read_bytes().strip()
    except OSError as exc:
        raise ConfigError(f"http_token_file={path} can't be read: {exc.strerror or exc}") from exc
    if len(token) < 16:
        raise ConfigError(
            f"http_token_file={path} holds fewer than 16 characters; write a longer token"
        )
    return token


async def _refused(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    return JSONResponse({"detail": exc.detail}, status_code=exc.status_code)
