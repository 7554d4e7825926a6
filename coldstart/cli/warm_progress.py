"""How a warm-up shows itself on stderr: a bar with an ETA on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from coldstart.warmup.plan import Entry
from coldstart.warmup.run import OUTCOMES, Program, Warmed

LINE_SECONDS = 1.0  # the least between two lines about tracing


class Lines:
    """One line for each thing that happens: for logs."""

    def __enter__(self) -> Self:
        self._said = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def lowered(self, entry: Entry, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._said > LINE_SECONDS:
            self._said = now
            click.echo(f"traced {done}/{total}", err=True)

    def missing(self, count: int, reused: int) -> None:
        click.echo(f"{reused} stored already, {count} to compile", err=True)

    def settled(self, program: Program, done: int, total: int, eta_seconds: float | None) -> None:
        left = f", about {duration(eta_seconds)} left" if eta_seconds else ""
        why = f": {program.message}" if program.message else ""
        click.echo(f"{done}/{total} {program.outcome} {program.entry}{why}{left}", err=True)


class Bar:
    """A live bar, with lines above it for what went wrong."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def lowered(self, entry: Entry, done: int, total: int) -> None:
        self._bar.update(self._task, description="tracing", completed=done, total=total)

    def missing(self, count: int, reused: int) -> None:
        self._bar.console.print(f"{reused} stored already, {count} to compile", highlight=False)
        self._bar.reset(self._task, description="compiling", total=count)

    def settled(self, program: Program, done: int, total: int, eta_seconds: float | None) -> None:
        if program.message:
            self._bar.console.print(
                f"{program.outcome} {program.entry}: {program.message}",
                markup=False,
                highlight=False,
            )
        left = f"ETA {duration(eta_seconds)}" if eta_seconds else ""
        self._bar.update(self._task, completed=done, left=left)


def progress_for() -> Bar | Lines:
    """What fits where stderr goes."""
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines()


def show(warmed: Warmed) -> None:
    """The result as a table."""
    console = Console(file=sys.stderr, highlight=False)
    summary = warmed.summary()
    title = f"{warmed.plan.name} for {warmed.target.name}"
    if warmed.dry_run:
        title += ", dry run"
    table = Table(title=title)
    outcomes = (*OUTCOMES, "missing") if warmed.dry_run else OUTCOMES
    for column in ("programs", "distinct", *outcomes):
        table.add_column(column, justify="right")
    table.add_row(*(str(summary[name]) for name in ("programs", "distinct", *outcomes)))
    console.print(table)
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in warmed.seconds.items())
    covered = summary["compile_seconds_covered"]
    console.print(f"seconds: {seconds}", soft_wrap=True)
    console.print(f"who finds these programs stored is spared {covered:.1f} s of compiling")
    for problem in summary["problems"]:
        console.print(
            f"{problem['outcome']}: {problem['program']}: {problem['message']}",
            markup=False,
            soft_wrap=True,
        )


def duration(seconds: float) -> str:
    """For people: 40 s, 3 min, 1 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
