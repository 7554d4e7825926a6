"""/api/v1: the daemon's numbers and names as JSON, read-only, and a stream of what changes. For the page and scripts.

Every answer is made from the same counters as Stats and /metrics. Names can be hidden (`redact`): then programs,
holders and what is said of them are told apart by a short hash only, here and on the page.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from coldstart.dashboard import report
from coldstart.errors import ColdstartError
from coldstart.identity.key import KeyRecord, is_key
from coldstart.identity.used_rules import used_rules
from coldstart.server.admin_servicer import stats_reply
from coldstart.server.inventory import SORTS, Listed
from coldstart.server.openapi import document
from coldstart.server.stats_json import stats_json

if TYPE_CHECKING:
    from coldstart.server.app import App

MAX_STREAMS = 200
STREAM_SECONDS = 1.0
MAX_PAGE = 500
EXPLAIN_SECONDS = 60.0
EXPLAINS_AT_ONCE = 2  # each is a process, and the machine is there to serve models
MAX_STEPS = 2000


class Api:
    """The routes, over one daemon."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.streams = 0  # open now
        self._making = asyncio.Lock()
        self._made, self._made_at = "", -STREAM_SECONDS  # the latest state, and when it was made
        self._explaining = asyncio.Semaphore(EXPLAINS_AT_ONCE)

    def routes(self) -> list[Route]:
        """One for each path of the OpenAPI document."""
        handlers = {
            "/api/v1/overview": self.overview,
            "/api/v1/stats": self.stats,
            "/api/v1/misses": self.misses,
            "/api/v1/live": self.live,
            "/api/v1/history": self.history,
            "/api/v1/artifacts": self.artifacts,
            "/api/v1/artifacts/{key}": self.artifact,
            "/api/v1/explain": self.explain,
            "/api/v1/stream": self.stream,
            "/api/v1/openapi.json": self.openapi,
        }
        return [Route(path, handler, methods=["GET"]) for path, handler in handlers.items()]

    # --- answers -------------------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        return JSONResponse(await self.headline())

    async def stats(self, request: Request) -> Response:
        return JSONResponse(await self._stats())

    async def live(self, request: Request) -> Response:
        return JSONResponse({"compiles": self._compiles()})

    async def misses(self, request: Request) -> Response:
        activity = self._app.tally.activity
        limit = _number(request, "limit", 50, 1, MAX_PAGE)
        programs = [
            {
                "outcome": one.outcome.value,
                "reason": one.reason.value,
                "program_name": self._name(one.program_name),
                "count": one.count,
                "compile_seconds": one.compile_seconds,
            }
            for one in activity.programs()
        ]
        recent = [
            {
                "unix_seconds": one.unix_seconds,
                "outcome": one.outcome.value,
                "reason": one.reason.value,
                "program_name": self._name(one.program_name),
                "key": one.key,
                "holder": self._name(one.holder),
                "compile_seconds": one.compile_seconds,
            }
            for one in reversed(activity.recent)
        ]
        return JSONResponse({"programs": programs[:limit], "recent": recent[:limit]})

    async def history(self, request: Request) -> Response:
        minutes = _number(request, "minutes", 180, 1, 60 * 24 * 40)
        step = max(60, -(-minutes * 60 // MAX_STEPS), _number(request, "step", 60, 60, 86400))
        until = time.time()
        since = until - 60 * minutes
        await asyncio.to_thread(self._app.write_history)
        points = await asyncio.to_thread(self._app.history.points, since, step)
        steps = report.steps((point.unix_seconds, point.counts) for point in points)
        return JSONResponse(
            {
                "step_seconds": step,
                "since_unix": since,
                "until_unix": until,
                "trouble": self._app.history.trouble,
                "steps": [
                    {
                        "unix_seconds": one.unix_seconds,
                        "hits": one.hits,
                        "others": one.others,
                        "saved_seconds": one.saved_seconds,
                        "spent_seconds": one.spent_seconds,
                    }
                    for one in steps
                ],
            }
        )

    async def artifacts(self, request: Request) -> Response:
        offset = _number(request, "offset", 0, 0, 10_000_000)
        limit = _number(request, "limit", 100, 1, MAX_PAGE)
        sort = request.query_params.get("sort", "seconds")
        if sort not in SORTS:
            raise HTTPException(400, f"sort is one of {', '.join(SORTS)}")
        listing = await self._app.inventory.listing()
        text = request.query_params.get("search", "")[:200]
        found = await asyncio.to_thread(listing.found, text, sort)
        return JSONResponse(
            {
                "as_of_unix": listing.as_of_unix,
                "total": len(found),
                "troubles": listing.troubles,
                "cut": listing.cut,
                "artifacts": [self._listed(one) for one in found[offset : offset + limit]],
            }
        )

    async def artifact(self, request: Request) -> Response:
        key = _key(request.path_params["key"])
        listing = await self._app.inventory.listing()
        listed = [self._listed(one) for one in listing.artifacts if one.header.key == key]
        try:
            record = await self._app.lookups.record(key)
        except ColdstartError as exc:
            raise HTTPException(503, str(exc)) from exc
        if record is None and not listed:
            raise HTTPException(404, "no artifact and no record of that key is known here")
        return JSONResponse(
            {
                "key": key,
                "artifacts": listed,
                "record": None if record is None else self._record(record),
                "left_out": sorted(used_rules(record)) if record is not None else [],
                "remembered": len(self._app.lookups.programs.programs(key)),
            }
        )

    async def explain(self, request: Request) -> Response:
        """What `coldstart explain` says. In a process of its own: it takes memory and time that belong to others."""
        if self._app.config.redact:
            raise HTTPException(
                403, "names are hidden here (redact); run coldstart explain on the host"
            )
        left, right = request.query_params.get("left", ""), request.query_params.get("right", "")
        keys = [_key(key) for key in (left, right) if key]
        if not keys:
            raise HTTPException(
                400, "give left, a key, and right, another; without right, the nearest"
            )
        command = [sys.executable, "-m", "coldstart.cli.main", "explain", *keys, "--json"]
        command += [
            f"--address={self._app.addresses[0]}",
            *(["--nearest"] if len(keys) == 1 else []),
        ]
        async with self._explaining:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            try:
                async with asyncio.timeout(EXPLAIN_SECONDS):
                    out, err = await process.communicate()
            except BaseException as exc:
                process.kill()
                await process.wait()
                if isinstance(exc, TimeoutError):
                    raise HTTPException(504, "explaining took too long") from exc
                raise
        if not out.strip():
            words = err.decode(errors="replace").strip().splitlines() or ["nothing was said"]
            raise HTTPException(409, words[-1][:500])
        return Response(out, media_type="application/json")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(document())

    async def stream(self, request: Request) -> Response:
        """Server-sent events: `state` whenever something changed, a comment now and then to say that it lives."""
        if self.streams >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} streams are open; close some")
        return StreamingResponse(
            self._changes(request),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        self.streams += (
            1  # here: whoever is gone before the first word never gets to the end of this
        )
        try:
            said, quiet = "", 0
            while not self._app.stopping and not await request.is_disconnected():
                state = await self._shared()
                if state != said:
                    said, quiet = state, 0
                    yield f"event: state\ndata: {state}\n\n"
                else:
                    quiet += 1
                    if quiet % 15 == 0:
                        yield ": still here\n\n"
                await asyncio.sleep(STREAM_SECONDS)
        finally:
            self.streams -= 1

    # --- parts ---------------------------------------------------------------------------------

    async def headline(self) -> dict[str, Any]:
        """The tiles, each with what it was made of."""
        stats = await self._stats()
        tally = self._app.tally
        ends: dict[str, float] = {}
        for count in stats["lookups"]:
            ends[count["outcome"]] = ends.get(count["outcome"], 0.0) + count["count"]
        chips = self._app.config.chips
        saved = tally.compile_seconds_saved
        return {
            "version": stats["version"],
            "mode": stats["mode"],
            "uptime_seconds": stats["uptime_seconds"],
            "seconds_ratio": report.seconds_ratio(saved, tally.compile_seconds).as_json(),
            "hit_ratio": report.hit_ratio(ends).as_json(),
            "chip_hours_saved": {
                "value": report.chip_hours(saved, chips),
                "words": f"{saved:.0f} compile seconds saved x {chips} chips of a participant / 3600",
            },
            "compile_seconds_saved": saved,
            "compile_seconds": tally.compile_seconds,
            "compiles": stats["compiles"],
            "takeovers": tally.takeovers,
            "groups_in_disagreement": tally.event_counts["group-mismatch"],
            "open_lookups": stats["open_lookups"],
            "leases": stats["leases"],
            "leases_kept": stats["leases_kept"],
            "leases_trouble": stats["leases_trouble"],
            "fleet": stats["fleet"],
            "lookups": stats["lookups"],
            "tiers": stats["tiers"],
            "events": stats["events"][-50:][::-1],
            "redacted": self._app.config.redact,
        }

    async def _shared(self) -> str:
        """What all streams are told: made once a step, however many there are."""
        async with self._making:
            now = time.monotonic()
            if now - self._made_at >= STREAM_SECONDS / 2:
                state = await self.headline()
                del state["uptime_seconds"]  # would change every time
                self._made = json.dumps(state | {"live": self._compiles()})
                self._made_at = now
            return self._made

    def _compiles(self) -> list[dict[str, Any]]:
        return [
            {
                "key": one.key,
                "program_name": self._name(one.program_name),
                "holder": self._name(one.holder),
                "seconds": round(one.seconds),
                "expected_seconds": one.expected_seconds,
            }
            for one in self._app.lookups.compiling()
        ]

    async def _stats(self) -> dict[str, Any]:
        stats = stats_json(stats_reply(await self._app.standing.snapshot()))
        if self._app.config.redact:
            stats["addresses"] = []
            for tier in stats["tiers"]:
                tier["url"] = tier["url"].partition("://")[0] + "://"
                tier["trouble"] = "trouble" if tier["trouble"] else ""
            for event in stats["events"]:
                event["message"] = ""
            stats["leases_trouble"] = "trouble" if stats["leases_trouble"] else ""
        return stats

    def _listed(self, one: Listed) -> dict[str, Any]:
        header = one.header
        return {
            "key": header.key,
            "digest": header.digest,
            "program_name": self._name(header.program_name),
            "platform": header.platform,
            "producer": self._name(header.producer),
            "compiler": header.compiler,
            "variant": header.variant,
            "partitions": header.partitions,
            "bytes": header.payload_bytes,
            "raw_bytes": header.raw_bytes,
            "compile_seconds": header.compile_seconds,
            "created_unix": header.created_unix,
            "used_unix": one.used_unix,
            "tiers": one.tiers,
        }

    def _record(self, record: KeyRecord) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(record.to_json())
        if self._app.config.redact:
            found["program_name"] = self._name(record.program_name)
            found["notes"] = []
            for component in found["components"]:
                component["detail"] = ""
                if component["name"] == "flags":  # may hold paths
                    component["value"] = self._name(component["value"])
        return found

    def _name(self, text: str) -> str:
        """A stranger's text; or its hash, where names are hidden."""
        if not self._app.config.redact or not text:
            return text
        return "#" + hashlib.sha256(text.encode()).hexdigest()[:10]


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    try:
        number = int(text) if text.isascii() and len(text) < 12 else least - 1
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise HTTPException(400, f"{name} is a number from {least} to {most}")
    return number


def _key(text: str) -> str:
    if not is_key(text):
        raise HTTPException(400, "that is not a key; a key is cs1- and 64 hex digits")
    return text
