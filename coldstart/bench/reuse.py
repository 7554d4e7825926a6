"""`bench reuse`: how much of each other's compiling the participants of a fleet are spared.

P participants, as processes, each obtain K attention programs of distinct shapes, and each program holds the offset of
the participant's own fragment. Three arms: sparse under Coldstart, where nobody reads the fragment; its dense twin,
where it is read and nothing may be shared; sparse under JAX's own cache in one folder that keeps everything.

Nothing here is any cache's own count. Compiles are counted where JAX enters the compiler. A result is *wrong* where it
isn't what the NumPy reference gives for its inputs, or where the sparse arm's differs by a bit from the one that the
stock arm computed for the same rank and inputs. JSON (fields are added, never renamed; tests/bench/golden/reuse.json):

    compiled, reused, wrong, compile_seconds     of the sparse arm; compiled + reused = participants x programs
    compile_seconds_saved                        of each reused program, what its compile took in the same arm
    median_compile_seconds, largest_error        of one compile; relative to the largest output, from the reference
    lookups                                      Coldstart's own count, by outcome and reason
    dense, stock_jax                             the same for the other arms; null where skipped

With a plan, its programs take the place of the attention pieces: `plan` names it, there is no reference, and only what
the stock arm computed tells a wrong result.

With a folder that is kept, every program that a participant finishes is recorded there, and the same command goes on
where it was stopped (`resumed`: how many were there already).
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coldstart.bench.pieces import TOLERANCE
from coldstart.bench.progress import Progress, count_lines, quiet
from coldstart.bench.reuse_participant import Part, read_record
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption
from coldstart.demo.processes import Daemon
from coldstart.errors import ColdstartError, ConfigError

MARK = "reuse.json"
PARTICIPANT = "coldstart.bench.reuse_participant"
ARMS = {"sparse": "coldstart", "dense": "coldstart", "stock": "stock"}  # and the cache of each
HEADS = 32  # the model's; the participants share them out evenly

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    participants: int
    programs: int
    layers: int = 1
    plan: str = ""  # whose programs, as each participant has them; "": attention pieces

    def __post_init__(self) -> None:
        if self.participants < 1 or HEADS % self.participants:
            raise ConfigError(
                f"--participants {self.participants}: must divide {HEADS} heads; a value that works: 8"
            )


@dataclass(frozen=True, slots=True)
class Arm:
    """What all participants recorded under one cache, by rank and in each rank's own order."""

    name: str
    records: tuple[tuple[Line, ...], ...]
    wall_seconds: float  # of this run; what was resumed is not in it

    @property
    def lines(self) -> list[Line]:
        return [line for record in self.records for line in record]

    @property
    def compiled(self) -> int:
        return sum(line["compiles"] for line in self.lines)

    @property
    def reused(self) -> int:
        return sum(line["compiles"] == 0 for line in self.lines)

    @property
    def compile_seconds(self) -> float:
        return float(sum(line["compile_seconds"] for line in self.lines))

    @property
    def compile_seconds_saved(self) -> float:
        """For each reused program the mean of its compiles in this arm: somebody's compile gave it."""
        by_program: defaultdict[int, list[float]] = defaultdict(list)
        for line in self.lines:
            if line["compiles"]:
                by_program[line["program"]].append(line["compile_seconds"])
        return sum(
            statistics.mean(by_program[line["program"]])
            for line in self.lines
            if not line["compiles"] and line["program"] in by_program
        )

    @property
    def median_compile_seconds(self) -> float | None:
        each = [
            line["compile_seconds"] / line["compiles"] for line in self.lines if line["compiles"]
        ]
        return statistics.median(each) if each else None

    @property
    def largest_error(self) -> float | None:
        """From the reference; None where there is none."""
        errors = [line["error"] for line in self.lines if line["error"] is not None]
        return max(errors, default=None)

    def to_json(self, wrong: int) -> dict[str, Any]:
        median = self.median_compile_seconds
        return {
            "compiled": self.compiled,
            "reused": self.reused,
            "wrong": wrong,
            "compile_seconds": round(self.compile_seconds, 2),
            "compile_seconds_saved": round(self.compile_seconds_saved, 2),
            "median_compile_seconds": median and round(median, 3),
            "largest_error": self.largest_error,
            "lookups": dict(
                sorted(Counter(n for line in self.lines for n in line["lookups"]).items())
            ),
            "wall_seconds": round(self.wall_seconds, 1),
        }


@dataclass(frozen=True, slots=True)
class ReuseResult:
    """What the arms came to; those that were skipped are missing."""

    size: Size
    arms: dict[str, Arm]
    resumed: int

    def wrong(self, name: str) -> list[str]:
        """Rank and program of every wrong result of an arm."""
        arm, stock = self.arms[name], self.arms.get("stock")
        compared: dict[tuple[int, int], str] = {}
        if name == "sparse" and stock is not None:
            compared = {
                (rank, line["program"]): line["digest"]
                for rank, record in enumerate(stock.records)
                for line in record
            }
        return [
            f"{name}: rank {rank}: {line['name']}"
            for rank, record in enumerate(arm.records)
            for line in record
            if not (line["error"] is None or line["error"] <= TOLERANCE)
            or compared.get((rank, line["program"]), line["digest"]) != line["digest"]
        ]

    @property
    def all_wrong(self) -> list[str]:
        return [text for name in self.arms for text in self.wrong(name)]

    def to_json(self) -> dict[str, Any]:
        def numbers(name: str) -> dict[str, Any] | None:
            return self.arms[name].to_json(len(self.wrong(name))) if name in self.arms else None

        return {
            **dataclasses.asdict(self.size),
            **(numbers("sparse") or {}),
            "dense": numbers("dense"),
            "stock_jax": numbers("stock"),
            "resumed": self.resumed,
            "jax": self.arms["sparse"].lines[0]["jax"],
            "cores": os.cpu_count(),
        }


def run(
    size: Size,
    daemon: Callable[[str], AbstractContextManager[Daemon]],
    folder: Path,
    *,
    skip: Iterable[str] = (),
    parallel: int,
    seconds: float,
    interruption: Interruption | None = None,
    progress: Progress | None = None,
) -> ReuseResult:
    """Run the arms, or what is left of them.

    Args:
        daemon: starts one for an arm, over a store of that arm's own in `folder`: it goes on with what it held, and
            no arm finds what another compiled.
        folder: gets records, JAX's cache and what the processes print.
        skip: arms to leave out; never sparse.
        parallel: participants that run together.
        seconds: that an arm may take.

    Raises:
        ConfigError: the folder holds another bench. ColdstartError: a participant failed or an arm took too long.
    """
    _claim(folder, size)
    arms, resumed = {}, 0
    for name in ARMS:
        if name in skip:
            continue
        before = sum(len(read_record(part.record)) for part in _parts(name, size, folder))
        resumed += before
        total = size.participants * size.programs
        began = time.monotonic()
        records = _records(name, size, folder)
        with (progress or quiet()).of(name, partial(count_lines, records), before, total):
            _run_arm(name, size, daemon, folder, parallel, seconds, interruption)
        wall = time.monotonic() - began
        lines = tuple(tuple(read_record(part.record)) for part in _parts(name, size, folder))
        arms[name] = Arm(name, lines, wall)
        if len(arms[name].lines) != total:
            raise ColdstartError(f"{name}: {len(arms[name].lines)} of {total} programs recorded")
    versions = {line["jax"] for arm in arms.values() for line in arm.lines}
    if len(versions) > 1:
        raise ConfigError(f"{folder} holds records of JAX {' and '.join(sorted(versions))}")
    return ReuseResult(size, arms, resumed)


def _run_arm(
    name: str,
    size: Size,
    daemon: Callable[[str], AbstractContextManager[Daemon]],
    folder: Path,
    parallel: int,
    seconds: float,
    interruption: Interruption | None,
) -> None:
    environ = processes.plain_environment()
    left = [
        part for part in _parts(name, size, folder) if len(read_record(part.record)) < size.programs
    ]
    with ExitStack() as stack:
        if ARMS[name] == "coldstart":
            environ["COLDSTART_ADDRESS"] = stack.enter_context(daemon(name)).address
        processes.run_all(
            PARTICIPANT,
            [part.arguments() for part in left],
            environ,
            folder / name,
            at_once=parallel,
            seconds=seconds,
            interruption=interruption,
        )


def _parts(name: str, size: Size, folder: Path) -> list[Part]:
    return [
        Part(
            rank,
            size.participants,
            size.programs,
            size.layers,
            "dense" if name == "dense" else "sparse",
            ARMS[name],
            str(folder / "jax-cache"),
            path,
            size.plan,
        )
        for rank, path in enumerate(_records(name, size, folder))
    ]


def _records(name: str, size: Size, folder: Path) -> list[Path]:
    return [folder / name / f"rank-{rank}.jsonl" for rank in range(size.participants)]


def is_one(folder: Path) -> bool:
    """Does this folder hold a bench that can go on?"""
    return (folder / MARK).is_file()


def _claim(folder: Path, size: Size) -> None:
    """Mark the folder as this bench's, or find that it is."""
    folder.mkdir(parents=True, exist_ok=True)
    mark, text = folder / MARK, json.dumps(dataclasses.asdict(size), sort_keys=True)
    if mark.exists() and mark.read_text() != text:
        raise ConfigError(
            f"{folder} holds a bench of another size, {mark.read_text()}; name another folder"
        )
    mark.write_text(text)
    for name in (*ARMS, "jax-cache"):
        (folder / name).mkdir(exist_ok=True)
