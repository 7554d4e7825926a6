"""`coldstart top`: a daemon as it works, in a terminal; or one look, for scripts."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from coldstart import wire
from coldstart.cli import reach
from coldstart.client.client import CacheClient
from coldstart.dashboard import report
from coldstart.errors import ConfigError, UnknownCall
from coldstart.rpc.v1 import admin_pb2
from coldstart.server.stats_json import stats_json

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS = 10


@click.command(epilog="Example: coldstart top --once --json | jq '.recent[0].key'")
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option(
    "--every",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--once", is_flag=True, help="One look; so is every one that isn't to a terminal.")
@click.option("--json", "as_json", is_flag=True, help="One look, as one JSON object on stdout.")
def top(address: str | None, every: float, once: bool, as_json: bool) -> None:
    """Show who compiles now, which programs missed and why, and how the tiers stand. Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with reach.daemon(address) as client:
        if as_json:
            click.echo(json.dumps(look(client), indent=2))
            return
        if once or not console.is_terminal:
            console.print(picture(look(client)))
            return
        try:
            with Live(
                picture(look(client)), console=console, screen=True, auto_refresh=False
            ) as live:
                while True:
                    time.sleep(every)
                    live.update(picture(look(client)), refresh=True)
        except KeyboardInterrupt:  # how it is meant to end
            pass


def look(client: CacheClient) -> dict[str, Any]:
    """One moment as plain data. Raises ConfigError for a daemon that is too old."""
    stats = stats_json(client.stats())
    try:
        activity = client.activity()
    except UnknownCall as exc:
        raise ConfigError(
            f"the daemon at {client.address} is older than this command; update it, or use coldstart stats"
        ) from exc
    ends: dict[str, float] = {}
    for count in stats["lookups"]:
        ends[count["outcome"]] = ends.get(count["outcome"], 0.0) + count["count"]
    by_seconds = report.seconds_ratio(stats["compile_seconds_saved"], stats["compile_seconds"])
    return {
        "version": stats["version"],
        "uptime_seconds": stats["uptime_seconds"],
        "hit_ratio": report.hit_ratio(ends).as_json(),
        "seconds_ratio": by_seconds.as_json(),
        "live": [_live(one) for one in activity.live],
        "programs": [_program(one) for one in activity.programs],
        "recent": [_missed(one) for one in activity.recent],
        "tiers": stats["tiers"],
        "leases_trouble": stats["leases_trouble"],
    }


def _live(one: admin_pb2.LiveCompile) -> dict[str, Any]:
    return {
        "key": one.key,
        "program_name": one.program_name,
        "holder": one.holder,
        "seconds": one.seconds,
        "expected_seconds": one.expected_seconds,
    }


def _program(one: admin_pb2.ProgramSum) -> dict[str, Any]:
    return {
        "outcome": wire.outcome_from_pb(one.outcome).value,
        "reason": wire.reason_from_pb(one.reason).value,
        "program_name": one.program_name,
        "count": one.count,
        "compile_seconds": one.compile_seconds,
    }


def _missed(one: admin_pb2.MissedLookup) -> dict[str, Any]:
    return {
        "unix_seconds": one.unix_seconds,
        "outcome": wire.outcome_from_pb(one.outcome).value,
        "reason": wire.reason_from_pb(one.reason).value,
        "program_name": one.program_name,
        "key": one.key,
        "holder": one.holder,
        "compile_seconds": one.compile_seconds,
    }


def picture(seen: dict[str, Any]) -> RenderableType:
    """For people."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = [
        f"hit ratio by compile seconds {_ratio(seen['seconds_ratio'])}   by count {_ratio(seen['hit_ratio'])}",
        *(f"degraded: {t['name']}: {t['trouble']}" for t in seen["tiers"] if t["trouble"]),
    ]
    if seen["leases_trouble"]:
        lines.append(f"degraded: leases are this daemon's alone: {seen['leases_trouble']}")
    live = Table("program", "by", "for", "expected", title="Compiling now", expand=True)
    for one in seen["live"][:ROWS]:
        expected = f"{one['expected_seconds']:.0f} s" if one["expected_seconds"] else "not known"
        name = one["program_name"] or one["key"][:16]
        live.add_row(_text(name), _text(one["holder"]), f"{one['seconds']:.0f} s", expected)
    sums = Table("program", "reason", "lookups", "compiled for", title="What missed", expand=True)
    for one in seen["programs"][:ROWS]:
        sums.add_row(
            _text(one["program_name"]),
            one["reason"],
            str(one["count"]),
            f"{one['compile_seconds']:.1f} s",
        )
    parts: list[RenderableType] = [Text(line) for line in lines]
    parts += [table for table in (live, sums) if table.row_count]
    if seen["recent"]:
        parts.append(Text("Latest misses; say `coldstart explain KEY --nearest` to learn why"))
    for one in seen["recent"][:ROWS]:  # the key first: then it is in one piece on narrow terminals
        moment = time.strftime("%H:%M:%S", time.localtime(one["unix_seconds"]))
        parts.append(
            Text(f"{one['key'] or '(no key)':<68} {moment} {one['reason']} ")
            + _text(one["program_name"])
        )
    if len(parts) == len(lines):
        parts.append(Text("nothing has missed, and nobody compiles"))
    return Group(*parts)


def _ratio(ratio: dict[str, Any]) -> str:
    if ratio["value"] is None:
        return "none yet"
    return f"{100 * ratio['value']:.1f} % ({ratio['part']:.0f} of {ratio['whole']:.0f})"


def _text(name: str) -> Any:
    """A stranger's name: no markup, no control characters, one line."""
    from rich.text import Text

    plain = "".join(c if c.isprintable() else " " for c in name[:200])
    return Text(plain or "(no name)", overflow="ellipsis", no_wrap=True)
