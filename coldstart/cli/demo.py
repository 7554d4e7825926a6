"""`coldstart demo`: participants cold-start with JAX's own cache and with Coldstart, side by side."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from coldstart.cli.keep import made
from coldstart.config import parse_host_port
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption, interruptible
from coldstart.demo.participant import BRANCHES, SHAPES, Work
from coldstart.errors import ColdstartError, ConfigError

USUAL = Work()


@click.command(epilog="Example: coldstart demo --exit --participants 4")
@click.option("--participants", type=click.IntRange(1, 32), default=USUAL.participants,
              show_default=True, help="Processes that start at once; divides 32, the model's heads.")  # fmt: skip
@click.option("--programs", "pieces", type=click.IntRange(1, len(SHAPES)), default=USUAL.pieces,
              show_default=True, help="Attention programs of each participant, of distinct shapes.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1, 32), default=USUAL.layers, show_default=True,
              help="Layers in each attention program.")  # fmt: skip
@click.option("--branch", type=click.Choice(BRANCHES), default=USUAL.branch, show_default=True,
              help="Sparse: the fragment is never read. Dense: it is, and nothing can be shared.")  # fmt: skip
@click.option("--at-once", type=click.IntRange(1), metavar="N",
              help="Run at most N participants together; default: all.")  # fmt: skip
@click.option(
    "--http",
    default="127.0.0.1:0",
    metavar="HOST:PORT",
    help="The daemon's page; port 0: a free one.",
)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Keep both caches and all output in this empty folder.")  # fmt: skip
@click.option("--exit", "leave", is_flag=True, help="Stop the daemon after the table.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def demo(
    participants: int,
    pieces: int,
    layers: int,
    branch: str,
    at_once: int | None,
    http: str,
    keep: Path | None,
    leave: bool,
    as_json: bool,
) -> int:
    """Cold-start participants under JAX's cache and under Coldstart, cold and warm, and compare.

    Afterwards the daemon and its page stay up until Ctrl-C, unless --exit is given.
    """
    from coldstart.demo import run, table

    if 32 % participants:
        raise click.UsageError(f"--participants {participants}: wants 1, 2, 4, 8, 16 or 32")
    try:
        parse_host_port(http)
    except ValueError as exc:
        raise ConfigError(f"--http={http!r}: {exc}; a value that works: 127.0.0.1:0") from None
    run.check_packages()
    work = Work(participants, pieces, layers, branch)
    with interruptible() as interruption, ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="coldstart-demo-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        folder = made(_kept(keep) if keep else scratch / "kept")
        # The socket lies in the scratch folder: the path of one can't be long.
        daemon = stack.enter_context(
            processes.daemon(
                scratch,
                folder / "store",
                f"--http={http}",
                "--log-level=warning",
                interruption=interruption,
            )
        )
        result = run.run(
            work, daemon, folder, at_once=at_once, say=_progress, interruption=interruption
        )
        if as_json:
            numbers = result.to_json(None if leave else daemon)
            click.echo(json.dumps(numbers, indent=2))
        else:
            from rich.console import Console

            table.show(result, Console(highlight=False))
        if not leave:
            _stay(daemon, interruption)
        return 1 if result.wrong else 0


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _kept(folder: Path) -> Path:
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise click.UsageError(f"--keep {folder}: is not empty; name a new or an empty folder")
    return folder


def _stay(daemon: processes.Daemon, interruption: Interruption) -> None:
    click.echo(
        f"The daemon (pid {daemon.pid}) stays up until Ctrl-C:\n"
        f"  page       http://{daemon.http}\n"
        f"  address    {daemon.address}\n"
        f"  try        COLDSTART_ADDRESS={daemon.address} coldstart stats",
        err=True,
    )
    try:
        daemon.wait(interruption)
    except KeyboardInterrupt:
        click.echo("stopping", err=True)
        return
    raise ColdstartError(f"the daemon ended by itself, exit {daemon.process.wait()}")
