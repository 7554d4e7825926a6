"""`coldstart warm`: compile a plan's programs ahead of time and publish them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from coldstart.cli import reach
from coldstart.cli.warm_progress import progress_for, show
from coldstart.config import client_settings
from coldstart.errors import ConfigError
from coldstart.warmup.manifest import recorded_seconds, write_manifest
from coldstart.warmup.plan import read_plan
from coldstart.warmup.run import Run
from coldstart.warmup.targets import EXAMPLES, parse_target

MOST_JOBS = 8  # by default; a worker for a large model takes a gigabyte or two


@click.command(epilog="Example: coldstart warm demo --target cpu:16")
@click.argument("plan")
@click.option("--target", required=True, metavar="TARGET", help=f"What to compile for: {EXAMPLES}.")
@click.option("--address", metavar="ADDRESS", help=reach.ADDRESS_HELP)
@click.option(
    "--store", "stores", multiple=True, metavar="URL", help="Warm these, without a daemon."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Worker processes; default: one for each core for cpu targets, else for two.",
)
@click.option(
    "--manifest",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write which artifact each entry has, once all have one; compile seconds in it order the next run.",
)
@click.option("--dry-run", is_flag=True, help="Trace and ask, compile nothing.")
@click.option(
    "--json", "as_json", is_flag=True, help="No table: only the JSON, which is always last."
)
def warm(
    plan: str,
    target: str,
    address: str | None,
    stores: tuple[str, ...],
    jobs: int | None,
    manifest: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Compile what PLAN lists and the cache lacks, and publish it.

    PLAN is a preset (demo, fleet) or a TOML file (ends in .toml or has a /) with model = "tiny-moe" or, for your own,
    programs = "my_module:function"; coldstart/warmup/README.md shows one. Progress goes to stderr; the last line of
    stdout is one JSON object. Exit code 1 where something failed or was refused.
    """
    wanted, aim = read_plan(plan), parse_target(target)
    aim.environment(os.environ)  # complains before anything is started
    if client_settings(os.environ).mode == "observe":
        raise ConfigError("COLDSTART_MODE=observe publishes nothing; unset it to warm")
    progress = progress_for()
    try:
        with _signals(), reach.daemon_or_store(address, stores) as client, progress:
            run = Run(
                wanted,
                aim,
                client,
                progress,
                environ=os.environ,
                jobs=jobs or default_jobs(aim.kind),
                known_seconds=recorded_seconds(manifest) if manifest else None,
                dry_run=dry_run,
            )
            warmed = run.warm()
    except _Stopped as stop:
        name = signal.Signals(stop.number).name
        click.echo(f"coldstart warm: {name}: stopped; what was compiled stays published", err=True)
        return 128 + stop.number
    if not as_json:
        show(warmed)
    if manifest and not dry_run:
        entries = warmed.manifest_entries()
        if entries is None:
            click.echo(f"{manifest} is not written: some entries have no artifact", err=True)
        else:
            write_manifest(
                manifest,
                plan=wanted.name,
                manifest=warmed.manifest,
                target=aim.name,
                entries=entries,
            )
    click.echo(json.dumps(warmed.summary()))
    return 0 if warmed.ok else 1


def default_jobs(kind: str) -> int:
    """A CPU compile keeps about one core busy, one of libtpu's nearly two."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(MOST_JOBS, cores if kind.startswith("cpu") else cores // 2))


class _Stopped(BaseException):
    """SIGINT or SIGTERM; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _signals() -> Iterator[None]:
    """Inside, the first signal unwinds; a second one while leases are given back is left to the default."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
