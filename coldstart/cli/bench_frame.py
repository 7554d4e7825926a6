"""What the commands of `coldstart bench` have in common: a room to work in, --json, --keep, progress, an exit code."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coldstart.bench.progress import Progress
from coldstart.cli.keep import made
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption, interruptible
from coldstart.demo.processes import Daemon

if TYPE_CHECKING:  # brought in only where a table is shown
    from rich.console import Console

TERMINAL_SECONDS, FILE_SECONDS = 2.0, 30.0  # from one line of progress to the next


@dataclass(frozen=True, slots=True)
class Room:
    """Where one bench works."""

    scratch: Path  # with a short name, for sockets; gone at the end
    folder: Path  # what --keep names, else in scratch
    interruption: Interruption
    progress: Progress

    @contextmanager
    def daemon(self, *, limit: str = "") -> Iterator[Daemon]:
        """One whose store lies in `folder`."""
        with processes.daemon(
            self.scratch,
            self.folder / "store",
            "--log-level=warning",
            limit=limit,
            interruption=self.interruption,
        ) as found:
            yield found


@dataclass(frozen=True, slots=True)
class Found:
    """What a bench found."""

    numbers: dict[str, Any]  # what --json prints
    show: Callable[[Console], None]
    bad: bool = False  # exit code 1


Rooms = Callable[[], AbstractContextManager[Room]]
Body = Callable[..., Found]


def measuring(
    group: click.Group,
    *,
    short_help: str,
    example: str,
    keep: str = "",
    resumes: Callable[[Path], bool] | None = None,
) -> Callable[[Body], click.Command]:
    """A command of the group: calls the body with `rooms`, then the command's own options; prints what it found.

    Args:
        keep: the help of --keep; without it there is none.
        resumes: whether the bench can go on in a folder with things in it.
    """

    def decorate(body: Body) -> click.Command:
        @functools.wraps(body)
        def run(as_json: bool, keep_in: Path | None = None, **options: Any) -> int:
            def rooms() -> AbstractContextManager[Room]:
                return _room(keep_in)

            if keep_in is not None and keep_in.exists() and any(keep_in.iterdir()):
                if resumes is None:
                    raise click.UsageError(
                        f"--keep {keep_in}: is not empty; name a new or an empty folder"
                    )
                if not resumes(keep_in):
                    raise click.UsageError(
                        f"--keep {keep_in}: holds other things; name a new or an empty folder"
                    )
            found = body(rooms, **options)
            if as_json:
                click.echo(json.dumps(found.numbers, indent=2))
            else:
                from rich.console import Console

                found.show(Console(highlight=False))
            return 1 if found.bad else 0

        shared = [_JSON, *([_keep_option(keep)] if keep else [])]
        run.__click_params__ = [*shared, *getattr(body, "__click_params__", [])]  # type: ignore[attr-defined]
        return group.command(short_help=short_help, epilog=f"Example: {example}")(run)

    return decorate


_JSON = click.Option(["--json", "as_json"], is_flag=True, help="One JSON object on stdout.")


def _keep_option(words: str) -> click.Option:
    kind = click.Path(path_type=Path, file_okay=False)
    return click.Option(["--keep", "keep_in"], type=kind, metavar="DIR", help=words)


def repeats(words: str, default: int = 5) -> Callable[[Body], Body]:
    kind = click.IntRange(1, 1000)
    return click.option("--repeats", type=kind, default=default, show_default=True, help=words)


def rounds(default: int) -> Callable[[Body], Body]:
    words = "Of all phases in turns; medians are shown."
    kind = click.IntRange(1, 100)
    return click.option("--rounds", type=kind, default=default, show_default=True, help=words)


def give_up(hours: int) -> Callable[[Body], Body]:
    words = f"Give up when it takes longer; default: {hours} hours."
    kind = click.FloatRange(1)
    return click.option("--seconds", type=kind, default=hours * 3600.0, metavar="S", help=words)


@contextmanager
def _room(keep: Path | None) -> Iterator[Room]:
    from coldstart.demo.run import check_packages

    check_packages()
    with interruptible() as interruption, ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="coldstart-bench-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        folder = made(keep or scratch / "kept")
        seconds = TERMINAL_SECONDS if sys.stderr.isatty() else FILE_SECONDS
        yield Room(scratch, folder, interruption, Progress(_say, seconds))


def _say(line: str) -> None:
    click.echo(line, err=True)
