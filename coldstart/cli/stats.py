"""`coldstart stats`: what a daemon has counted, for people or as JSON (schema: server/stats_json.py)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import click

from coldstart.cli import reach
from coldstart.server.stats_json import stats_json


@click.command(epilog="Example: coldstart stats --json | jq .hit_rate")
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def stats(address: str | None, as_json: bool) -> None:
    """Show what a daemon has counted since it started."""
    with reach.daemon(address) as client:
        numbers = stats_json(client.stats())
    if as_json:
        click.echo(json.dumps(numbers, indent=2))
    else:
        show(numbers)


def show(numbers: dict[str, Any]) -> None:
    """As tables on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"daemon {numbers['version']}, pid {numbers['pid']}, up {numbers['uptime_seconds']:.0f} s, "
        f"mode {numbers['mode']}, at {' '.join(numbers['addresses'])}",
        markup=False,
        soft_wrap=True,
    )
    if numbers["hit_rate"] is None:
        console.print("hit rate: no lookup has finished yet")
    else:
        console.print(
            f"hit rate: {100 * numbers['hit_rate']:.1f} % = {numbers['hits']} hits of "
            f"{numbers['finished_lookups']} finished lookups"
        )
    console.print(
        f"compile seconds: {numbers['compile_seconds_saved']:.1f} saved, "
        f"{numbers['compile_seconds']:.1f} spent, {numbers['wait_seconds']:.1f} waited for others; "
        f"{numbers['compiles']} compiles offered, {numbers['leases']} going on, "
        f"{numbers['open_lookups']} lookups open",
        soft_wrap=True,
    )
    if numbers["fleet"]:
        fleet = ", ".join(f"{name} {number:g}" for name, number in numbers["fleet"].items())
        console.print(f"the fleet, some seconds ago: {fleet}", markup=False, soft_wrap=True)
    if numbers["lookups"]:
        table = Table("outcome", "reason", "tier", "count", title="How lookups ended")
        for count in numbers["lookups"]:
            table.add_row(count["outcome"], count["reason"], count["tier"], str(count["count"]))
        console.print(table)
    table = Table("tier", "where", "artifacts", "bytes", "limit", title="Tiers")
    for tier in numbers["tiers"]:
        table.add_row(
            tier["name"],
            tier["url"],
            _known(tier["artifacts"]),
            _known(tier["bytes"]),
            f"{tier['limit_bytes']:,}" if tier["limit_bytes"] else "-",
        )
    console.print(table)
    for tier in numbers["tiers"]:
        if tier["trouble"]:
            console.print(
                f"degraded: {tier['name']}: {tier['trouble']}", markup=False, soft_wrap=True
            )
    if numbers["leases_trouble"]:
        console.print(
            f"degraded: leases are this daemon's alone, not the fleet's: {numbers['leases_trouble']}",
            markup=False,
            soft_wrap=True,
        )
    for line in list(_events(numbers["events"]))[-10:]:
        console.print(line, markup=False, soft_wrap=True)


def _events(events: list[dict[str, Any]]) -> Iterator[str]:
    """One line for each run of equal events, with the time of the last."""
    for (kind, message), group in groupby(events, key=lambda e: (e["kind"], e["message"])):
        alike = list(group)
        moment = time.strftime("%H:%M:%S", time.localtime(alike[-1]["unix_seconds"]))
        times = f" ({len(alike)} times)" if len(alike) > 1 else ""
        yield f"{moment} {kind}: {message}{times}"


def _known(value: int) -> str:
    return "not known" if value < 0 else f"{value:,}"
