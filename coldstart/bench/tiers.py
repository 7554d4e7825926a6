"""`bench hit`, tier by tier: what a hit costs from each, beside the same file read by hand and JAX's own cache.

Each tier has a daemon with that store only; memory, the disk by path and by stream and a Redis of the bench's own,
where there is a redis-server; and any store that is named. One process obtains the same programs from all, in turns.
JSON, `tiers` (fields are added, never renamed; tests/bench/golden/hit.json):

    sizes[].raw_bytes, payload_bytes     of the executable, and compressed as it lies in each tier
    sizes[].stock_bytes                  the file of JAX's own cache
    sizes[].places[].place               plain (a file read by hand), a tier, a store's URL, or stock (JAX's own cache)
    sizes[].places[].p50, p99            seconds of a hit: asked, read, checked, decompressed; plain: without asking
    sizes[].places[].hits_per_second     with 4 at once, and bytes_per_second, of the executable
    sizes[].places[].program, load       seconds in which JAX gets its executable; of it to read and load
    sizes[].places[].over_plain, over_stock    p50 over the plain one's; program over stock's
    left_out                             tiers that couldn't be had here, and why
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from coldstart.bench import redis_here
from coldstart.bench.progress import Progress, count_noted, quiet
from coldstart.bench.tiers_client import IN_FLIGHT, PLAIN, STOCK, Place, Work
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption
from coldstart.errors import ColdstartError

CLIENT = "coldstart.bench.tiers_client"
REDIS = "coldstart.bench.redis_here"
SECRET = "COLDSTART_REDIS_PASSWORD"  # of a store that is named; everything else of ours stays away
DISK, STREAM = "disk, by path", "disk, by stream"
WORDS = {PLAIN: "plain file read", STOCK: "JAX's own cache"}

Found = dict[str, Any]


def run(
    folder: Path,
    scratch: Path,
    *,
    sizes: Sequence[int],
    stores: Sequence[str],
    repeats: int,
    seconds: float,
    interruption: Interruption | None = None,
    progress: Progress | None = None,
) -> Found:
    """Measure.

    Args:
        folder: empty; gets the disk store, JAX's cache and what the processes print.
        scratch: with a short name; sockets lie in it.
        sizes: of executables, in bytes.
        stores: URLs of further stores; what is published there stays there.
        seconds: for each rate.

    Raises:
        ColdstartError: a store can't be used, or a hit was none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        places, left_out = _places(stack, folder, scratch, stores, interruption)
        work = Work(
            places=tuple(places),
            store=str(folder / "store"),
            stock=str(folder / "jax-cache"),
            sizes=tuple(sizes),
            repeats=repeats,
            seconds=seconds,
            record=str(folder / "progress"),
        )
        work.write(folder / "work.json")
        environ = processes.plain_environment()
        noted = partial(count_noted, Path(work.record))
        with (progress or quiet()).of("tiers", noted, 0, work.steps, "measurements"):
            (found,) = processes.run_all(
                CLIENT,
                [[f"--work={folder / 'work.json'}"]],
                environ,
                folder,
                at_once=1,
                seconds=3600.0,
                interruption=interruption,
            )
    return {
        "sizes": [_size(size) for size in found["sizes"]],
        "left_out": left_out,
        "in_flight": IN_FLIGHT,
    }


def _places(
    stack: ExitStack,
    folder: Path,
    scratch: Path,
    stores: Sequence[str],
    interruption: Interruption | None,
) -> tuple[list[Place], dict[str, str]]:
    """A daemon for each tier, started; and the tiers that can't be had, with the reason."""

    def daemon(number: int, url: str, environ: dict[str, str]) -> str:
        place = scratch / f"tier-{number}"
        place.mkdir()
        options = (place, [url], "--log-level=warning")
        try:
            found = processes.daemon_on(*options, environ=environ, interruption=interruption)
            return stack.enter_context(found).address
        except ColdstartError as exc:
            raise ColdstartError(f"store {url}: {exc}") from exc

    secret = {SECRET: os.environ[SECRET]} if SECRET in os.environ else {}
    disk = daemon(0, f"disk://{folder / 'store'}", {})
    memory = daemon(1, "memory://", {})
    places = [Place(DISK, disk, True), Place(STREAM, disk, False), Place("memory", memory, False)]
    left_out: dict[str, str] = {}
    missing = redis_here.missing()
    if missing:
        left_out["redis"] = missing
    else:
        url = stack.enter_context(_redis(folder / "redis", interruption))
        places.append(Place("redis", daemon(2, url, {}), False))
    for number, url in enumerate(stores, start=3):
        places.append(Place(url, daemon(number, url, secret), False))
    return places, left_out


@contextmanager
def _redis(folder: Path, interruption: Interruption | None) -> Iterator[str]:
    """The URL of a Redis of our own."""
    folder.mkdir()
    process = processes.start(
        REDIS, [f"--folder={folder}"], processes.plain_environment(), folder, "redis"
    )
    wait = time.sleep if interruption is None else interruption.wait
    try:
        while not (folder / "port").exists():
            if process.poll() is not None:
                raise ColdstartError(f"no Redis: {processes.last_words(folder, 'redis')}")
            wait(0.02)  # a file has no event to wait for
        yield f"redis://127.0.0.1:{(folder / 'port').read_text()}/0"
    finally:
        processes.end(process)


def _size(found: Found) -> Found:
    """With what follows from the figures."""
    places = found["places"]
    plain, stock, raw = places[PLAIN]["p50"], places[STOCK]["program"], found["raw_bytes"]

    def place(name: str, of: dict[str, float | None]) -> Found:
        rate, p50, program = of["hits_per_second"], of["p50"], of["program"]
        rounded = {key: value and round(value, 6) for key, value in of.items()}
        return {
            "place": name,
            **rounded,
            "bytes_per_second": rate and round(rate * raw),
            "over_plain": p50 and round(p50 / plain, 2),
            "over_stock": program and round(program / stock, 2),
        }

    return {**found, "places": [place(name, of) for name, of in places.items()]}


def show(found: Found, console: Console) -> None:
    """The figures as a table for people."""
    table = Table(
        title="Hits, tier by tier: milliseconds; rates with 4 at once",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("from", max_width=21, overflow="fold")
    for heading in ("p50", "p99", "/plain", "hits/s", "MB/s", "program", "load", "/JAX"):
        table.add_column(heading, justify="right", no_wrap=True)
    for size in found["sizes"]:
        table.add_section()
        raw, payload = _bytes(size["raw_bytes"]), _bytes(size["payload_bytes"])
        table.add_row(f"{raw}, stored {payload}", style="bold")
        for place in size["places"]:
            rate = place["bytes_per_second"]
            table.add_row(
                WORDS.get(place["place"], place["place"]),
                *(_ms(place[name]) for name in ("p50", "p99")),
                _number(place["over_plain"], 1),
                _number(place["hits_per_second"], 0),
                _number(rate and rate / 1e6, 0),
                *(_ms(place[name]) for name in ("program", "load")),
                _number(place["over_stock"], 2),
            )
    console.print(table)
    console.print(
        "p50, p99: from the question to checked and decompressed bytes (/plain: over a plain read, which asks nobody). "
        "program: the one function in which JAX asks a cache (/JAX: over its own); load: of it, to read bytes and "
        "hand them to the runtime.",
        soft_wrap=True,
    )
    for name, why in found["left_out"].items():
        console.print(f"{name} was left out: {why}.", soft_wrap=True)


def _ms(seconds: float | None) -> str:
    return _number(seconds and seconds * 1e3, 1)


def _number(value: float | None, digits: int) -> str:
    """With fewer digits where it is large: a table has 80 columns."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.{digits}f}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{count / 1e3:.0f} kB"
