"""One cold start of a whole fleet: participants as real processes, all at once, under one cache. And what it came to.

    arm = start_fleet("stock-cold", Work(), cache="stock", folder=scratch, stock_folder=cache)

`wrong_results` compares what the arms computed. Anything that measures reuse among participants starts here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart.demo import processes
from coldstart.demo.interruption import Interruption
from coldstart.demo.participant import Work
from coldstart.errors import ColdstartError

PARTICIPANT = "coldstart.demo.participant"


@dataclass(frozen=True, slots=True)
class Arm:
    """One cold start of all participants."""

    name: str
    cache: str
    wall_seconds: float  # from the first process's start to the last one's end
    participants: tuple[dict[str, Any], ...]  # what each said, by rank; see `participant.run`

    @property
    def compiled(self) -> int:
        """Calls of the compiler, counted below every cache."""
        return sum(said["compiles"] for said in self.participants)

    @property
    def reused(self) -> int:
        """Programs that a participant obtained without a compile of its own."""
        return sum(said["reused"] for said in self.participants)

    @property
    def compile_seconds(self) -> float:
        """Wall clock inside the compiler, summed over the participants."""
        return float(sum(said["compile_seconds"] for said in self.participants))

    def seconds(self, phase: str) -> float:
        """Sum over the participants."""
        return float(sum(said["seconds"][phase] for said in self.participants))

    @property
    def lookups(self) -> dict[str, int]:
        """How Coldstart's lookups ended, by outcome and reason."""
        total: Counter[str] = Counter()
        for said in self.participants:
            total.update(said["lookups"])
        return dict(sorted(total.items()))

    @property
    def warnings(self) -> list[str]:
        """What Coldstart's client warned of, each once."""
        return sorted({text for said in self.participants for text in said["warnings"]})

    def by_program(self) -> list[dict[str, Any]]:
        """One entry per program and bucket, over all participants."""
        entries: list[dict[str, Any]] = []
        for same in zip(*(said["programs"] for said in self.participants), strict=True):
            entries.append(
                {
                    "name": same[0]["name"],
                    "own_fragment": same[0]["own"],
                    "compiled": sum(program["compiles"] for program in same),
                    "reused": sum(program["compiles"] == 0 for program in same),
                    "compile_seconds": sum(program["compile_seconds"] for program in same),
                }
            )
        return entries

    def to_json(self) -> dict[str, Any]:
        phases = self.participants[0]["seconds"]
        return {
            "name": self.name,
            "cache": self.cache,
            "compiled": self.compiled,
            "reused": self.reused,
            "compile_seconds": round(self.compile_seconds, 3),
            "wall_seconds": round(self.wall_seconds, 3),
            "seconds": {phase: round(self.seconds(phase), 3) for phase in phases},
            "programs": [
                {**entry, "compile_seconds": round(entry["compile_seconds"], 3)}
                for entry in self.by_program()
            ],
            "lookups": self.lookups,
            "warnings": self.warnings,
        }


def start_fleet(
    name: str,
    work: Work,
    *,
    cache: str,
    folder: Path,
    stock_folder: Path | None = None,
    address: str | None = None,
    at_once: int | None = None,
    seconds: float = 600.0,
    interruption: Interruption | None = None,
) -> Arm:
    """Start every participant in a new process, and wait for all.

    Args:
        cache: none, stock (JAX's own, in `stock_folder`) or coldstart (the daemon at `address`).
        folder: gets a folder with what each process printed.
        at_once: how many run together; default: all.

    Raises:
        ColdstartError: a participant failed, or they took longer than `seconds`.
        KeyboardInterrupt: by `interruption`. Every process is ended in either case.
    """
    if cache == "coldstart" and address is None:
        raise ValueError("the cache coldstart needs an address")
    if cache == "stock" and stock_folder is None:
        raise ValueError("the cache stock needs a folder")
    scratch = folder / name
    scratch.mkdir(parents=True)
    environ = processes.plain_environment()
    arguments = [*work.arguments(), f"--cache={cache}"]
    if cache == "coldstart":
        environ["COLDSTART_ADDRESS"] = str(address)
    elif cache == "stock":
        arguments.append(f"--folder={stock_folder}")
    began = time.monotonic()
    said = processes.run_all(
        PARTICIPANT,
        [[f"--rank={rank}", *arguments] for rank in range(work.participants)],
        environ,
        scratch,
        at_once=at_once or work.participants,
        seconds=seconds,
        interruption=interruption,
    )
    wall = time.monotonic() - began
    return Arm(name, cache, wall, tuple(said))


def wrong_results(arms: Sequence[Arm]) -> list[str]:
    """Outputs that differ, bit for bit, from the first arm's, rank by rank and program by program."""
    found = []
    for arm in arms[1:]:
        for rank, (first, other) in enumerate(
            zip(arms[0].participants, arm.participants, strict=True)
        ):
            for a, b in zip(first["programs"], other["programs"], strict=True):
                if a["name"] != b["name"]:
                    raise ColdstartError(f"{arms[0].name} and {arm.name} ran other programs")
                if a["digest"] != b["digest"]:
                    found.append(f"{arm.name}: rank {rank}: {a['name']}")
    return found
