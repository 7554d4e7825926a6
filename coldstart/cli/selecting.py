"""Which artifacts a command is about: options, and the selection they make; and the rows that come back, shown."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from coldstart.client.client import CacheClient
from coldstart.errors import ConfigError, UnknownCall
from coldstart.identity import rules
from coldstart.identity.key import is_key
from coldstart.rpc.v1 import admin_pb2

F = TypeVar("F", bound=Callable[..., Any])
_AGE = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
TOLD_SECONDS = 1.0  # between two lines of progress


class Age(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases only
    """`30d`: seconds."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        match = _AGE.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is no age; write for instance 30d, 12h or 90s", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


AGE = Age()


# Of a command that is about some artifacts: name, parameter, what it takes, help.
_OPTIONS = (
    ("--key", "keys", "KEY", "This key."),
    ("--producer", "producers", "PATTERN", "Published by; * and ? are wild."),
    ("--program", "programs", "PATTERN", "The program's name; * and ? are wild."),
    ("--platform", "platforms", "NAME", "cpu, gpu or tpu."),
    ("--compiler", "compilers", "TEXT", "Text in the compiler's build or in the target."),
    ("--rule", "rule_names", "RULE", "A rule that took something out of the program."),
    ("--tier", "tiers", "NAME", "Only there: memory, disk, redis or gcs."),
)
_AGES = (
    ("--older-than", "Published so long ago, e.g. 30d."),
    ("--newer-than", "Published since then, e.g. 2h."),
    ("--unused-for", "Last used so long ago, e.g. 7d."),
)


def options(command: F) -> F:
    """The options that `selection` reads."""
    for name, words in reversed(_AGES):
        command = click.option(name, type=AGE, metavar="AGE", help=words)(command)
    for name, parameter, takes, words in reversed(_OPTIONS):
        command = click.option(name, parameter, multiple=True, metavar=takes, help=words)(command)
    return command


def selection(
    *,
    keys: tuple[str, ...],
    producers: tuple[str, ...],
    programs: tuple[str, ...],
    platforms: tuple[str, ...],
    compilers: tuple[str, ...],
    rule_names: tuple[str, ...],
    older_than: float | None,
    newer_than: float | None,
    unused_for: float | None,
    tiers: tuple[str, ...],
) -> admin_pb2.Selection:
    """What the options say. Raises UsageError for what can select nothing."""
    for key in keys:
        if not is_key(key):
            raise click.UsageError(f"{key!r} is not a key; a key is cs1- and 64 hex digits")
    try:
        rules.known(rule_names)
    except ConfigError as exc:
        raise click.UsageError(str(exc)) from exc
    for name, value in (
        ("--producer", producers), ("--program", programs), ("--compiler", compilers), ("--platform", platforms)
    ):  # fmt: skip
        if "" in value:
            raise click.UsageError(f"{name} is empty; leave it out, or say which")
    now = time.time()
    return admin_pb2.Selection(
        keys=keys,
        producers=producers,
        programs=programs,
        platforms=platforms,
        compilers=compilers,
        rules=rule_names,
        made_before_unix=0.0 if older_than is None else now - older_than,
        made_after_unix=0.0 if newer_than is None else now - newer_than,
        unused_since_unix=0.0 if unused_for is None else now - unused_for,
        tiers=tiers,
    )


def is_empty(chosen: admin_pb2.Selection) -> bool:
    """Nothing but tiers is named: everything in them is meant."""
    rest = admin_pb2.Selection()
    rest.CopyFrom(chosen)
    del rest.tiers[:]
    return rest == admin_pb2.Selection()


class Told:
    """What came back, counted by tier and outcome; progress on stderr."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._began = self._last = time.monotonic()
        self.rows: list[admin_pb2.UpkeepRow] = []
        self.failed: list[admin_pb2.UpkeepRow] = []
        self.negatives = 0
        self._in_tier = 0

    def hear(self, client: CacheClient, call: str, request: Any) -> Told:
        """Everything that the daemon tells. Raises ConfigError for a daemon that is too old."""
        try:
            for reply in client.upkeep(call, request):
                self.negatives += reply.negatives
                for row in reply.rows:
                    self._one(row)
        except UnknownCall as exc:
            raise ConfigError(
                f"the daemon at {client.address} is older than this command; update it, or use --store"
            ) from exc
        return self

    def _one(self, row: admin_pb2.UpkeepRow) -> None:
        if not row.key:
            self.failed.append(row)
            click.echo(f"{row.tier}: {row.detail}", err=True)
            return
        last = self.rows[-1].tier if self.rows else ""
        self._in_tier = self._in_tier + 1 if row.tier == last else 1
        self.rows.append(row)
        now = time.monotonic()
        if now - self._last >= TOLD_SECONDS:
            self._last = now
            eta = ""
            if row.of:
                left = (now - self._began) / len(self.rows) * (row.of - self._in_tier)
                eta = f" of {row.of}, about {left:.0f} s left"
            click.echo(f"{self._doing}: {row.tier} {self._in_tier}{eta}", err=True)

    def counts(self) -> dict[str, dict[str, dict[str, float]]]:
        """tier -> outcome -> artifacts, bytes, compile_seconds."""
        found: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
        for row in self.rows:
            sums = found[row.tier].setdefault(
                row.outcome, {"artifacts": 0, "bytes": 0, "compile_seconds": 0.0}
            )
            sums["artifacts"] += 1
            sums["bytes"] += row.bytes
            sums["compile_seconds"] += row.compile_seconds
        return dict(found)

    def as_json(self, *, rows: bool, **more: Any) -> str:
        """The counts; with every artifact where that is wanted."""
        found: dict[str, Any] = {
            **more,
            "tiers": self.counts(),
            "failed": [{"tier": row.tier, "detail": row.detail} for row in self.failed],
        }
        if rows:
            found["artifacts"] = [row_json(row) for row in self.rows]
        return json.dumps(found, indent=2)

    def lines(self, nothing: str) -> Iterator[str]:
        """The counts for people."""
        for tier, outcomes in self.counts().items():
            for outcome, sums in outcomes.items():
                word = "would go" if outcome == "meant" else outcome
                yield (
                    f"{tier}: {sums['artifacts']:g} {word}, {sums['bytes']:g} bytes, "
                    f"{sums['compile_seconds']:.3g} compile seconds"
                )
        if not self.rows and not self.failed:
            yield nothing


def row_json(row: admin_pb2.UpkeepRow) -> dict[str, Any]:
    """One artifact."""
    return {
        "tier": row.tier,
        "outcome": row.outcome,
        "detail": row.detail,
        "key": row.key,
        "digest": row.digest,
        "program_name": row.program_name,
        "platform": row.platform,
        "producer": row.producer,
        "compiler": row.compiler,
        "bytes": row.bytes,
        "compile_seconds": row.compile_seconds,
        "created_unix": row.created_unix,
        "used_unix": row.used_unix,
    }
