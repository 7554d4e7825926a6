"""HTTP: a site on an address, and the one for machines: health and metrics. The one for people is in page.py.

Runs in the daemon's event loop, each site on its own port, and only where asked. The health site has no names of
programs, keys or holders in it; the page is for whoever may see those.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import prometheus_client
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from coldstart import metrics
from coldstart.config import parse_host_port
from coldstart.errors import ColdstartError
from coldstart.server.standing import Snapshot, readings

if TYPE_CHECKING:
    from coldstart.server.app import App


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the daemon has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Site:
    """One HTTP site on one address."""

    def __init__(self, app: ASGIApp, where: str) -> None:
        self._where = where
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    async def start(self) -> str:
        """Listen; returns host:port with the port that was taken."""
        host, _, port = parse_host_port(self._where).rpartition(":")
        bare = host.strip("[]")
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bare, int(port)))
            listener.listen(128)
        except OSError as exc:
            listener.close()
            raise ColdstartError(
                f"can't serve HTTP at {self._where} ({exc.strerror or exc}); port 0 takes a free one"
            ) from exc
        listener.setblocking(False)
        self._socket = listener
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        return f"{host}:{listener.getsockname()[1]}"

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._socket is not None:
            self._socket.close()


def health_app(app: App) -> Starlette:
    """/healthz /readyz /startupz /metrics and nothing else."""
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    latest: list[Snapshot] = []

    def read() -> Iterator[metrics.Reading]:
        return readings(latest[-1], app.calls, app.holdings) if latest else iter(())

    metrics.register(registry, read)

    async def alive(request: Request) -> Response:
        return PlainTextResponse("ok\n")  # the event loop answers: that is all there is to say

    async def ready(request: Request) -> Response:
        if app.serving:  # also with a shared tier down: no state of a tier makes a pod unready
            degraded = ", ".join(app.standing.degraded)
            return PlainTextResponse(f"ok, degraded: {degraded}\n" if degraded else "ok\n")
        return PlainTextResponse("not serving\n", status_code=503)

    async def show_metrics(request: Request) -> Response:
        latest[:] = [await app.standing.snapshot()]
        return Response(
            prometheus_client.generate_latest(registry),
            media_type=prometheus_client.CONTENT_TYPE_LATEST,
        )

    return Starlette(
        routes=[
            Route("/healthz", alive),
            Route("/readyz", ready),
            Route("/startupz", ready),
            Route("/metrics", show_metrics),
        ]
    )
