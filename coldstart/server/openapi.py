"""The OpenAPI document of /api/v1. A test compares its paths with the routes, and its fields with answers."""

from __future__ import annotations

from typing import Any

from coldstart import __version__

# path -> what it is, parameters (name, what it is), fields of the answer
PATHS: dict[str, tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]] = {
    "/api/v1/overview": (
        "The headline numbers, each with what it was made of; tiers; the latest events, newest first.",
        (),
        (
            *(
                "version",
                "mode",
                "uptime_seconds",
                "seconds_ratio",
                "hit_ratio",
                "chip_hours_saved",
            ),
            *("compile_seconds_saved", "compile_seconds", "compiles", "takeovers"),
            *("groups_in_disagreement", "open_lookups", "leases", "leases_kept", "leases_trouble"),
            *("fleet", "lookups", "tiers", "events", "redacted"),
        ),
    ),
    "/api/v1/stats": ("What `coldstart stats --json` prints.", (), ()),
    "/api/v1/misses": (
        "Programs that missed, by reason, the most compile seconds first; and the latest lookups that were no hits.",
        (("limit", "of each list, 1 to 500"),),
        ("programs", "recent"),
    ),
    "/api/v1/live": ("What clients of this daemon compile under a lease now.", (), ("compiles",)),
    "/api/v1/history": (
        "What was counted, in steps; survives a restart.",
        (("minutes", "how far back"), ("step", "seconds of a step, at least 60")),
        ("step_seconds", "since_unix", "until_unix", "trouble", "steps"),
    ),
    "/api/v1/artifacts": (
        "All artifacts of all tiers; as of some seconds ago.",
        (
            ("search", "text in name, key, digest, producer or target"),
            ("sort", "name, seconds, bytes, created, used or key"),
            ("offset", "of the first that is wanted"),
            ("limit", "how many, 1 to 500"),
        ),
        ("as_of_unix", "total", "troubles", "cut", "artifacts"),
    ),
    "/api/v1/artifacts/{key}": (
        "One key: its artifacts, its record, and which rules took something out of the program.",
        (("key", "cs1- and 64 hex digits"),),
        ("key", "artifacts", "record", "left_out", "remembered"),
    ),
    "/api/v1/explain": (
        "What `coldstart explain LEFT RIGHT --json` prints.",
        (("left", "a key"), ("right", "another; without it, the nearest that was asked for")),
        (),
    ),
    "/api/v1/stream": (
        "Server-sent events named `state`: the overview and what is live, when it changed.",
        (),
        (),
    ),
    "/api/v1/openapi.json": ("This document.", (), ()),
}


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Coldstart daemon",
            "version": __version__,
            "description": "Read-only. Fields are added, never renamed.",
        },
        "paths": {path: {"get": _operation(path, *about)} for path, about in PATHS.items()},
    }


def _operation(
    path: str, words: str, parameters: tuple[tuple[str, str], ...], fields: tuple[str, ...]
) -> dict[str, Any]:
    kind = "text/event-stream" if path.endswith("/stream") else "application/json"
    schema: dict[str, Any] = {"type": "string" if kind.startswith("text") else "object"}
    if fields:
        schema |= {"properties": {name: {} for name in fields}, "required": list(fields)}
    return {
        "summary": words,
        "parameters": [
            {
                "name": name,
                "in": "path" if f"{{{name}}}" in path else "query",
                "required": f"{{{name}}}" in path,
                "description": about,
                "schema": {"type": "string"},
            }
            for name, about in parameters
        ],
        "responses": {
            "200": {"description": words, "content": {kind: {"schema": schema}}},
            "400": {"description": "A parameter that means nothing; `detail` says which."},
        },
    }
