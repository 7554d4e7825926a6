"""`coldstart bench …`: measurements that anybody can repeat, JAX's own cache beside Coldstart in the same run."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from coldstart.cli.keep import made
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption, interruptible
from coldstart.demo.processes import Daemon

MOST_TOGETHER = 8  # by default; each participant holds half a gigabyte


@click.group(epilog="Example: coldstart bench reuse --participants 2 --programs 6")
def bench() -> None:
    """Measure the cache, with the stock alternative in the same run."""


@bench.command(
    short_help="Warm starts, phase by phase.",
    epilog="Example: coldstart bench hit --plan demo --target cpu:16 --repeats 7",
)
@click.option("--plan", "word", default="demo", show_default=True, help="A preset or a .toml file.")
@click.option("--target", default="cpu:16", show_default=True, metavar="cpu:N", help="CPU devices.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="Warm starts of each arm.")  # fmt: skip
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Keep both caches and all output in this empty folder.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def hit(word: str, target: str, repeats: int, keep: Path | None, as_json: bool) -> int:
    """Time warm starts of a plan, phase by phase, under JAX's cache and under Coldstart in turns.

    Exit code 1 where a warm start had to compile.
    """
    from coldstart.bench import hit as measured
    from coldstart.bench import tables
    from coldstart.warmup.plan import read_plan
    from coldstart.warmup.targets import parse_target

    plan, aim = read_plan(word), parse_target(target)
    if aim.kind != "cpu" or aim.count is None:
        raise click.UsageError(f"--target {target}: only CPU devices, as cpu:16")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep}: is not empty; name a new or an empty folder")
    with _daemon(keep) as (folder, daemon, interruption):
        result = measured.run(
            plan,
            word,
            aim.count,
            daemon,
            folder,
            repeats=repeats,
            interruption=interruption,
            say=_progress,
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        tables.show_hit(result, _console())
    return 1 if any(result.warm_compiles(arm) for arm in measured.ARMS) else 0


@bench.command(
    short_help="Compiles that participants spare each other.",
    epilog="Example: coldstart bench reuse --participants 4 --programs 12 --keep /tmp/reuse",
)
@click.option("--participants", type=click.IntRange(1, 32), default=8, show_default=True,
              help="Processes; must divide the model's 32 heads.")  # fmt: skip
@click.option("--programs", type=click.IntRange(1, 1000), default=132, show_default=True,
              help="Attention programs of each, of distinct shapes.")  # fmt: skip
@click.option("--plan", default="", metavar="PLAN",
              help="A whole plan's programs instead, as each participant has them, say fleet.")  # fmt: skip
@click.option("--layers", type=click.IntRange(1, 32), default=1, show_default=True,
              help="Layers in each program: compile seconds grow with them.")  # fmt: skip
@click.option("--skip", default="", metavar="ARM,...", help="Leave out dense, stock or both.")
@click.option("--parallel", type=click.IntRange(1, 256), metavar="N",
              help=f"Participants that run together; default: all, up to {MOST_TOGETHER}.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(1), default=6 * 3600.0, metavar="S",
              help="Give up when an arm takes longer; default: 6 hours.")  # fmt: skip
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Keep caches and records here; the same command goes on where it stopped.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def reuse(
    participants: int,
    programs: int,
    plan: str,
    layers: int,
    skip: str,
    parallel: int | None,
    seconds: float,
    keep: Path | None,
    as_json: bool,
) -> int:
    """Count what participants with a fragment of their own compile, and what they are spared.

    Sparse under Coldstart, then its dense twin, then sparse under JAX's own cache. Exit code 1 where a result was
    wrong.
    """
    from coldstart.bench import reuse as measured
    from coldstart.bench import tables
    from coldstart.bench.progress import Progress

    skipped = [name.strip() for name in skip.split(",") if name.strip()]
    for name in skipped:
        if name not in ("dense", "stock"):
            raise click.UsageError(f"--skip {name}: wants dense, stock or dense,stock")
    if plan:
        from coldstart.bench.participant_plan import programs_of

        programs = len(programs_of(plan, 0, participants, "sparse"))
    size = measured.Size(participants, programs, layers, plan)
    if keep is not None and keep.exists() and any(keep.iterdir()) and not measured.is_one(keep):
        raise click.UsageError(f"--keep {keep}: holds other things; name a new or an empty folder")
    with _folder(keep) as (scratch, folder, interruption):

        def daemon(arm: str) -> AbstractContextManager[Daemon]:
            (scratch / arm).mkdir()
            store = folder / f"store-{arm}"
            return processes.daemon(
                scratch / arm, store, "--log-level=warning", interruption=interruption
            )

        result = measured.run(
            size,
            daemon,
            folder,
            skip=skipped,
            parallel=parallel or min(participants, MOST_TOGETHER),
            seconds=seconds,
            interruption=interruption,
            progress=Progress(_progress, 2.0 if sys.stderr.isatty() else 30.0),
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        tables.show_reuse(result, _console())
    return 1 if result.all_wrong else 0


@bench.command(
    short_help="Results of programs that share a key.",
    epilog="Example: coldstart bench soundness --pairs 500 --seed 7. One pair again: --seed 7 --only 123",
)
@click.option("--pairs", type=click.IntRange(1, 1_000_000), default=500, show_default=True,
              help="Pairs of programs.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="All programs follow from it.")
@click.option("--jobs", type=click.IntRange(1, 256), metavar="N",
              help="Processes that run together; default: one a core.")  # fmt: skip
@click.option("--kinds", default="", metavar="KIND,...", help="Only these kinds of mutations.")
@click.option("--optimized", is_flag=True,
              help="Compile what is executed as JAX does by default; takes twice as long.")  # fmt: skip
@click.option("--only", type=click.IntRange(0), metavar="NUMBER", help="Judge one pair alone.")
@click.option("--seconds", type=click.FloatRange(1), default=24 * 3600.0, metavar="S",
              help="Give up when it takes longer; default: 24 hours.")  # fmt: skip
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Keep records here; the same command goes on where it stopped.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def soundness(
    pairs: int,
    seed: int,
    jobs: int | None,
    kinds: str,
    optimized: bool,
    only: int | None,
    seconds: float,
    keep: Path | None,
    as_json: bool,
) -> int:
    """Execute random programs that share a key, and compare every bit.

    A pair is a program and a mutation of it, which keeps the meaning or may change it. Exit code 1 where equal keys had
    different results, or a pair could not be judged. No daemon is needed.
    """
    from coldstart.bench import soundness as measured
    from coldstart.bench import soundness_table
    from coldstart.bench.progress import Progress

    chosen = tuple(name.strip() for name in kinds.split(",") if name.strip())
    plan = measured.Plan(seed, pairs, chosen, optimized, only)
    if keep is not None and keep.exists() and any(keep.iterdir()) and not measured.is_one(keep):
        raise click.UsageError(f"--keep {keep}: holds other things; name a new or an empty folder")
    with _folder(keep) as (_, folder, interruption):
        result = measured.run(
            plan,
            folder,
            jobs=jobs or os.cpu_count() or 1,
            seconds=seconds,
            interruption=interruption,
            progress=Progress(_progress, 2.0 if sys.stderr.isatty() else 30.0),
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        soundness_table.show(result, _console())
    return 1 if result.bad else 0


@bench.command(
    short_help="What it costs to make a key.",
    epilog="Example: coldstart bench identity --layers 1,32 --repeats 3",
)
@click.option("--layers", default="1,32,292", show_default=True, metavar="N,...",
              help="Lengths of the programs; a layer has about 67 ops.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="Of which the least counts.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def identity(layers: str, repeats: int, as_json: bool) -> int:
    """Time how a program is identified, beside a plain walk of it and JAX's own cache key."""
    from coldstart.bench import identity as measured

    try:
        sizes = [int(text) for text in layers.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(1 <= size <= 2000 for size in sizes):
        raise click.UsageError(f"--layers {layers}: numbers from 1 to 2000, as 1,32,292")
    with _daemon(None) as (folder, daemon, interruption):
        found = measured.run(
            sizes, daemon.address, folder, repeats=repeats, interruption=interruption
        )
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        measured.show(found, _console())
    return 0


@bench.command(
    short_help="What the hook costs on tiny programs.",
    epilog="Example: coldstart bench small --programs 1000 --rounds 1",
)
@click.option("--programs", type=click.IntRange(1, 100_000), default=1000, show_default=True,
              help="Tiny eager programs, each compiled for itself.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 100), default=1, show_default=True,
              help="Times that all three starts are made.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def small(programs: int, rounds: int, as_json: bool) -> int:
    """Time tiny eager programs under stock JAX without a cache, and under Coldstart, empty and filled.

    Exit code 1 where a result was wrong, a second start compiled, or something left this host.
    """
    from coldstart.bench import small as measured
    from coldstart.bench import tables
    from coldstart.demo.run import check_packages

    check_packages()
    with interruptible() as interruption, ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="coldstart-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        result = measured.run(
            programs, folder, rounds=rounds, interruption=interruption, say=_progress
        )
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        tables.show_small(result, _console())
    return 1 if result.wrong or result.compiled_again or result.remote_objects else 0


@bench.command(
    short_help="What one daemon bears.",
    epilog="Example: coldstart bench load --seconds 3 --rounds 5",
)
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=3.0, show_default=True,
              help="Length of each phase.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True,
              help="Of all phases in turns.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def load(seconds: float, rounds: int, as_json: bool) -> int:
    """Ask one daemon as much as it bears: rates, latencies beside an upload, and a large hit by path.

    Beside them: an empty call, an idle daemon, and the same bytes read and unpacked plainly. A store of 2 GiB is used.
    """
    from coldstart.bench import load as measured

    with _daemon(None, limit="2GiB") as (folder, daemon, interruption):
        found = measured.run(
            daemon, folder, seconds=seconds, rounds=rounds, interruption=interruption
        )
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        measured.show(found, _console())
    return 0


@contextmanager
def _daemon(keep: Path | None, *, limit: str = "") -> Iterator[tuple[Path, Daemon, Interruption]]:
    """A folder for the bench, and a daemon whose store lies in it."""
    with ExitStack() as stack:
        scratch, folder, interruption = stack.enter_context(_folder(keep))
        # The socket lies in the scratch folder: the path of one can't be long.
        daemon = stack.enter_context(
            processes.daemon(
                scratch,
                folder / "store",
                "--log-level=warning",
                limit=limit,
                interruption=interruption,
            )
        )
        yield folder, daemon, interruption


@contextmanager
def _folder(keep: Path | None) -> Iterator[tuple[Path, Path, Interruption]]:
    """A scratch folder, the folder for the bench, and what tells that a signal came."""
    from coldstart.demo.run import check_packages

    check_packages()
    with interruptible() as interruption, ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="coldstart-bench-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        folder = made(keep or scratch / "kept")
        yield scratch, folder, interruption


def _progress(line: str) -> None:
    click.echo(line, err=True)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False)
