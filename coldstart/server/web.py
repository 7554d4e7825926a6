"""HTTP: health and metrics for machines, a plain page and its numbers as JSON for people.

Runs in the daemon's event loop, each site on its own port, and only where asked. The health site has no names of
programs, keys or holders in it; the page is for whoever may see those.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import prometheus_client
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from coldstart import metrics
from coldstart.config import parse_host_port
from coldstart.errors import ColdstartError
from coldstart.server.admin_servicer import stats_reply
from coldstart.server.standing import Snapshot, readings
from coldstart.server.stats_json import stats_json

if TYPE_CHECKING:
    from coldstart.server.app import App

REFRESH_SECONDS = 5


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the daemon has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Site:
    """One HTTP site on one address."""

    def __init__(self, app: Starlette, where: str) -> None:
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


def page_app(app: App) -> Starlette:
    """/ for people, /api/stats with the same numbers."""

    async def numbers() -> dict[str, Any]:
        return stats_json(stats_reply(await app.standing.snapshot()))

    async def page(request: Request) -> Response:
        return HTMLResponse(render(await numbers()))

    async def stats(request: Request) -> Response:
        return JSONResponse(await numbers())

    return Starlette(routes=[Route("/", page), Route("/api/stats", stats)])


def render(stats: dict[str, Any]) -> str:
    """The page: no script, no outside resource; reloads itself."""
    rate = "no finished lookups yet"
    if stats["hit_rate"] is not None:
        rate = (
            f"{100 * stats['hit_rate']:.1f} % "
            f"({stats['hits']} hits of {stats['finished_lookups']} finished lookups)"
        )
    facts = (
        ("hit rate", rate),
        ("compile seconds saved", f"{stats['compile_seconds_saved']:.1f}"),
        ("compile seconds spent", f"{stats['compile_seconds']:.1f}"),
        ("seconds waited for others' compiles", f"{stats['wait_seconds']:.1f}"),
        ("compiles offered", stats["compiles"]),
        ("open lookups", stats["open_lookups"]),
        ("compiling now", stats["leases"]),
        ("leases kept by", stats["leases_kept"]),
        ("the fleet", ", ".join(f"{n} {v:g}" for n, v in stats["fleet"].items()) or "no Redis"),
        ("trouble with leases", stats["leases_trouble"] or "none known"),
        ("mode", stats["mode"]),
        ("addresses", " ".join(stats["addresses"])),
        ("up", f"{stats['uptime_seconds']:.0f} s, pid {stats['pid']}, {stats['version']}"),
    )
    reasons = [
        (c["outcome"], c["reason"], c["tier"], c["count"]) for c in stats["lookups"] if c["count"]
    ]
    tiers = [
        (
            t["name"],
            t["url"],
            _known(t["artifacts"]),
            _known(t["bytes"]),
            t["limit_bytes"] or "none",
            ", ".join(f"{name} {n}" for name, n in t["operations"].items()),
            t["trouble"] or "none known",
        )
        for t in stats["tiers"]
    ]
    events = [(f"{e['unix_seconds']:.0f}", e["kind"], e["message"]) for e in stats["events"]][::-1]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8>"
        f"<meta http-equiv=refresh content={REFRESH_SECONDS}><title>Coldstart</title>"
        "<style>body{font:15px system-ui;margin:2em;max-width:70em}table{border-collapse:collapse}"
        "td,th{text-align:left;padding:.2em 1.2em .2em 0;border-bottom:1px solid #8884}"
        "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}</style>"
        "<h1>Coldstart</h1>"
        + _table((), facts)
        + "<h2>How lookups ended</h2>"
        + _table(("outcome", "reason", "tier", "count"), reasons)
        + "<h2>Tiers</h2>"
        + _table(("tier", "where", "artifacts", "bytes", "limit", "operations", "trouble"), tiers)
        + "<h2>Events, newest first</h2>"
        + _table(("unix time", "kind", "what"), events)
        + "<p><a href=api/stats>the same as JSON</a></p></html>"
    )


def _known(value: int) -> object:
    return "not known" if value < 0 else value


def _table(heads: tuple[str, ...], rows: Any) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    head = "<tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in heads) + "</tr>"
    return f"<table>{head if heads else ''}{body or '<tr><td>none yet</td></tr>'}</table>"
