"""`coldstart bench …`: measurements that anybody can repeat, JAX's own cache beside Coldstart in the same run."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import click

from coldstart.cli.bench_frame import Found, Rooms, give_up, measuring, repeats, rounds
from coldstart.demo import processes
from coldstart.demo.processes import Daemon
from coldstart.errors import ConfigError

MOST_TOGETHER = 8  # by default; each participant holds half a gigabyte
LEAST_BYTES, MOST_BYTES = 1_000, 1 << 30


@click.group(epilog="Example: coldstart bench reuse --participants 2 --programs 6")
def bench() -> None:
    """Measure the cache, with the stock alternative in the same run."""


@measuring(
    bench,
    short_help="Warm starts phase by phase, hits tier by tier.",
    example="coldstart bench hit --repeats 7 --store gs://team-cache/bench",
    keep="Keep both caches and all output in this empty folder.",
)
@click.option("--plan", "word", default="demo", show_default=True, help="A preset or a .toml file.")
@click.option("--target", default="cpu:16", show_default=True, metavar="cpu:N", help="CPU devices.")
@repeats("Warm starts of each arm, and hits of each tier's programs.")
@click.option("--sizes", default="100kB,8MB", show_default=True, metavar="SIZE,...",
              help="Of the executables that each tier is asked for.")  # fmt: skip
@click.option("--store", "stores", multiple=True, metavar="URL",
              help="Another tier to measure; repeats. What is published there stays there.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0.05, 600), default=1.0, show_default=True,
              help="Length of each measurement of a rate.")  # fmt: skip
def hit(
    rooms: Rooms,
    word: str,
    target: str,
    repeats: int,
    sizes: str,
    stores: tuple[str, ...],
    seconds: float,
) -> Found:
    """Time warm starts of a plan phase by phase, then hits tier by tier, beside JAX's own cache and a plain read.

    Tiers are memory, disk by path and by stream, a Redis where there is a redis-server, and any --store. Exit code 1
    where a warm start had to compile.
    """
    from coldstart.bench import hit as measured
    from coldstart.bench import tables, tiers
    from coldstart.store.urls import parse_store
    from coldstart.warmup.plan import read_plan
    from coldstart.warmup.targets import parse_target

    plan, aim = read_plan(word), parse_target(target)
    if aim.kind != "cpu" or aim.count is None:
        raise click.UsageError(f"--target {target}: only CPU devices, as cpu:16")
    measured.check_devices(plan, aim.count)
    in_bytes = _sizes(sizes)
    for url in stores:
        parse_store(url)  # mistakes are told before anything is measured
    with rooms() as room:
        # First, as a store that can't be used is found here.
        by_tier = tiers.run(
            room.folder / "tiers",
            room.scratch,
            sizes=in_bytes,
            stores=stores,
            repeats=repeats,
            seconds=seconds,
            interruption=room.interruption,
            progress=room.progress,
        )
        with room.daemon() as daemon:
            result = measured.run(
                plan,
                word,
                aim.count,
                daemon,
                room.folder,
                repeats=repeats,
                interruption=room.interruption,
                progress=room.progress,
            )
    return Found(
        {**result.to_json(), "tiers": by_tier},
        lambda console: tables.show_hit(result, by_tier, console),
        bad=any(result.warm_compiles(arm) for arm in measured.ARMS),
    )


def _sizes(text: str) -> list[int]:
    from coldstart.store.url_options import parse_size

    try:
        sizes = [parse_size(size) for size in text.split(",")]
    except ConfigError:
        sizes = []
    if not sizes or not all(LEAST_BYTES <= size <= MOST_BYTES for size in sizes):
        raise click.UsageError(f"--sizes {text}: sizes from 1kB to 1GiB, as 100kB,8MB")
    return sizes


def _is_reuse(folder: Path) -> bool:
    from coldstart.bench import reuse as measured

    return measured.is_one(folder)


@measuring(
    bench,
    short_help="Compiles that participants spare each other.",
    example="coldstart bench reuse --participants 4 --programs 12 --keep /tmp/reuse",
    keep="Keep caches and records here; the same command goes on where it stopped.",
    resumes=_is_reuse,
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
@give_up(hours=6)
def reuse(
    rooms: Rooms,
    participants: int,
    programs: int,
    plan: str,
    layers: int,
    skip: str,
    parallel: int | None,
    seconds: float,
) -> Found:
    """Count what participants with a fragment of their own compile, and what they are spared.

    Sparse under Coldstart, then its dense twin, then sparse under JAX's own cache. Exit code 1 where a result was
    wrong.
    """
    from coldstart.bench import reuse as measured
    from coldstart.bench import tables

    skipped = [name.strip() for name in skip.split(",") if name.strip()]
    for name in skipped:
        if name not in ("dense", "stock"):
            raise click.UsageError(f"--skip {name}: wants dense, stock or dense,stock")
    if plan:
        from coldstart.bench.participant_plan import programs_of

        programs = len(programs_of(plan, 0, participants, "sparse"))
    size = measured.Size(participants, programs, layers, plan)
    with rooms() as room:

        def daemon(arm: str) -> AbstractContextManager[Daemon]:
            (room.scratch / arm).mkdir()
            store = room.folder / f"store-{arm}"
            return processes.daemon(
                room.scratch / arm, store, "--log-level=warning", interruption=room.interruption
            )

        result = measured.run(
            size,
            daemon,
            room.folder,
            skip=skipped,
            parallel=parallel or min(participants, MOST_TOGETHER),
            seconds=seconds,
            interruption=room.interruption,
            progress=room.progress,
        )
    return Found(
        result.to_json(),
        lambda console: tables.show_reuse(result, console),
        bad=bool(result.all_wrong),
    )


def _is_soundness(folder: Path) -> bool:
    from coldstart.bench import soundness as measured

    return measured.is_one(folder)


@measuring(
    bench,
    short_help="Results of programs that share a key.",
    example="coldstart bench soundness --pairs 500 --seed 7. One pair again: --seed 7 --only 123",
    keep="Keep records here; the same command goes on where it stopped.",
    resumes=_is_soundness,
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
@give_up(hours=24)
def soundness(
    rooms: Rooms,
    pairs: int,
    seed: int,
    jobs: int | None,
    kinds: str,
    optimized: bool,
    only: int | None,
    seconds: float,
) -> Found:
    """Execute random programs that share a key, and compare every bit.

    A pair is a program and a mutation of it, which keeps the meaning or may change it. Exit code 1 where equal keys had
    different results, or a pair could not be judged. No daemon is needed.
    """
    from coldstart.bench import soundness as measured
    from coldstart.bench import soundness_table

    chosen = tuple(name.strip() for name in kinds.split(",") if name.strip())
    plan = measured.Plan(seed, pairs, chosen, optimized, only)
    with rooms() as room:
        result = measured.run(
            plan,
            room.folder,
            jobs=jobs or os.cpu_count() or 1,
            seconds=seconds,
            interruption=room.interruption,
            progress=room.progress,
        )
    return Found(
        result.to_json(),
        lambda console: soundness_table.show(result, console),
        bad=bool(result.bad),
    )


@measuring(
    bench,
    short_help="What it costs to make a key.",
    example="coldstart bench identity --layers 1,32 --repeats 3",
)
@click.option("--layers", default="1,32,292", show_default=True, metavar="N,...",
              help="Lengths of the programs; a layer has about 67 ops.")  # fmt: skip
@repeats("Of which the least counts.")
def identity(rooms: Rooms, layers: str, repeats: int) -> Found:
    """Time how a program is identified, beside a plain walk of it and JAX's own cache key."""
    from coldstart.bench import identity as measured

    try:
        sizes = [int(text) for text in layers.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(1 <= size <= 2000 for size in sizes):
        raise click.UsageError(f"--layers {layers}: numbers from 1 to 2000, as 1,32,292")
    with rooms() as room, room.daemon() as daemon:
        found = measured.run(
            sizes,
            daemon.address,
            room.folder,
            repeats=repeats,
            interruption=room.interruption,
            progress=room.progress,
        )
    return Found(found, lambda console: measured.show(found, console))


@measuring(
    bench,
    short_help="What the hook costs on tiny programs.",
    example="coldstart bench small --programs 1000 --rounds 1",
)
@click.option("--programs", type=click.IntRange(1, 100_000), default=1000, show_default=True,
              help="Tiny eager programs, each compiled for itself.")  # fmt: skip
@rounds(default=1)
def small(rooms: Rooms, programs: int, rounds: int) -> Found:
    """Time tiny eager programs under stock JAX without a cache, and under Coldstart, empty and filled.

    Exit code 1 where a result was wrong, a second start compiled, or something left this host.
    """
    from coldstart.bench import small as measured
    from coldstart.bench import tables

    with rooms() as room:
        result = measured.run(
            programs,
            room.scratch,
            rounds=rounds,
            interruption=room.interruption,
            progress=room.progress,
        )
    return Found(
        result.to_json(),
        lambda console: tables.show_small(result, console),
        bad=bool(result.wrong or result.compiled_again or result.remote_objects),
    )


@measuring(
    bench,
    short_help="What one daemon bears.",
    example="coldstart bench load --seconds 3 --rounds 5",
)
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=3.0, show_default=True,
              help="Length of each phase.")  # fmt: skip
@rounds(default=5)
def load(rooms: Rooms, seconds: float, rounds: int) -> Found:
    """Ask one daemon as much as it bears: rates, latencies beside an upload, and a large hit by path.

    Beside them: an empty call, an idle daemon, and the same bytes read and unpacked plainly. A store of 2 GiB is used.
    """
    from coldstart.bench import load as measured

    with rooms() as room, room.daemon(limit="2GiB") as daemon:
        found = measured.run(
            daemon,
            room.folder,
            seconds=seconds,
            rounds=rounds,
            interruption=room.interruption,
            progress=room.progress,
        )
    return Found(found, lambda console: measured.show(found, console))
