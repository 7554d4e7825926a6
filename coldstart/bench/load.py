"""`bench load`: what one daemon bears, and what a hit costs beside doing the same by hand.

Three parts, each by a client process of its own against one daemon with a disk store, its phases in turns. JSON (fields
are added, never renamed; tests/bench/golden/load.json):

    rates      calls a second with 32 in flight: `empty` (a health check), `lookup` (a warm one), `whole` (with Finish);
               `lookup_over_empty`
    paced      lookups started in step: p50 and p99 seconds with nothing else going on and while 50 MB artifacts are
               uploaded; `p99_busy_over_idle`
    hit        a hit of 8 MB by path, and its parts done plainly (read, one sha256, decompress), and a small call:
               `hit_over_plain` is (hit - call) / plain
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coldstart.bench.progress import Progress, count_noted, quiet
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption
from coldstart.demo.processes import Daemon

CLIENT = "coldstart.bench.load_client"
RATE = 200.0


def run(
    daemon: Daemon,
    folder: Path,
    *,
    seconds: float,
    rounds: int,
    interruption: Interruption | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure. Raises ColdstartError where a client fails.

    Args:
        seconds: that each phase of a round lasts.
        rounds: of which medians are taken; of hits five times as many.
    """

    def client(what: str, total: int, things: str, *arguments: str) -> dict[str, Any]:
        record = folder / f"{what}.progress"
        with (progress or quiet()).of(what, partial(count_noted, record), 0, total, things):
            (found,) = processes.run_all(
                CLIENT,
                [[what, f"--address={daemon.address}", f"--record={record}", *arguments]],
                processes.plain_environment(),
                folder,
                at_once=1,
                seconds=600.0 + 10 * rounds * seconds,
                interruption=interruption,
            )
        return found

    phases = (f"--seconds={seconds}", f"--rounds={rounds}")
    rates = client("rates", 3 * (rounds + 1), "phases", *phases)
    paced = client("paced", 2 * rounds, "phases", *phases, f"--rate={RATE}")
    hit = client("hit", 5 * rounds + 1, "hits", f"--rounds={5 * rounds}")
    rates["lookup_over_empty"] = round(rates["lookup"] / rates["empty"], 3)
    paced["p99_busy_over_idle"] = round(paced["busy_p99"] / paced["idle_p99"], 2)
    hit["hit_over_plain"] = round((hit["hit"] - hit["call"]) / hit["plain"], 2)
    return {"rates": rates, "paced": paced, "hit": hit, "cores": os.cpu_count()}


def show(found: dict[str, Any], console: Console) -> None:
    """The figures as a table for people."""
    rates, paced, hit = found["rates"], found["paced"], found["hit"]
    table = Table(title=f"One daemon under load, {found['cores']} cores")
    table.add_column("what")
    table.add_column("figure", justify="right")
    table.add_column("beside", justify="right")
    table.add_column("ratio", justify="right")
    table.add_row(
        "warm lookups a second / empty calls a second",
        f"{rates['lookup']:.0f}",
        f"{rates['empty']:.0f}",
        f"{rates['lookup_over_empty']:.2f}",
    )
    table.add_row("warm lookups with their Finish, a second", f"{rates['whole']:.0f}", "", "")
    table.add_row(
        f"p99 at {RATE:.0f}/s while 50 MB are uploaded / idle, ms",
        f"{paced['busy_p99'] * 1e3:.1f}",
        f"{paced['idle_p99'] * 1e3:.1f}",
        f"{paced['p99_busy_over_idle']:.2f}",
    )
    table.add_row(
        "p50 of the same, ms",
        f"{paced['busy_p50'] * 1e3:.1f}",
        f"{paced['idle_p50'] * 1e3:.1f}",
        "",
    )
    table.add_row(
        "8 MB hit by path, less a call / read, sha256, decompress, ms",
        f"{(hit['hit'] - hit['call']) * 1e3:.1f}",
        f"{hit['plain'] * 1e3:.1f}",
        f"{hit['hit_over_plain']:.2f}",
    )
    console.print(table)
    console.print(
        f"Uploaded meanwhile: {paced['uploaded_bytes'] / 2**20:.0f} MiB; "
        f"a small call takes {hit['call'] * 1e3:.2f} ms.",
        soft_wrap=True,
    )
