"""`bench soundness`: may programs that share a key really share an executable?

N pairs: a random program and a mutation of it. Both go the client's way to their keys; where those are equal, both raw
programs are executed without any cache on the same inputs, and so is the executable that the one would publish, loaded
for the other. *Wrong* is a pair with equal keys whose results differ in a bit, and a program whose canonical form
computes something else. JSON (fields are added, never renamed; tests/bench/golden/soundness.json):

    pairs, shared, executed, wrong     executed = shared: every equal key is tried
    stripped                           shared pairs that one rule at least made equal: without it they have two keys
    per_rule                           how often each rule did; a pair may need several
    same, missed                       pairs that mean the same by construction; those of them that got two keys
    chance                             pairs that were to differ, and have one key and equal results
    stock_shared                       pairs that JAX's own cache key shares
    failed                             pairs that could not be judged: a program that JAX or the client refused
    kinds                              the same counts by kind of mutation; a pair may hold several
    bad_pairs                          the wrong and failed ones, with both programs

Everything about a pair follows from the seed and its number: `--seed S --only NUMBER` judges one again.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coldstart.bench.progress import Progress, count_lines, quiet
from coldstart.bench.reuse_participant import read_record
from coldstart.bench.soundness_judge import Line
from coldstart.bench.soundness_mutations import NAMES, known, pair
from coldstart.bench.soundness_spec import DEVICES, FAMILIES
from coldstart.bench.soundness_worker import Piece
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption
from coldstart.errors import ColdstartError, ConfigError
from coldstart.identity import rules

MARK = "soundness.json"
WORKER = "coldstart.bench.soundness_worker"
PIECE = 250  # pairs that one process judges
COUNTED = ("pairs", "shared", "missed", "chance", "wrong")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which pairs are judged, and how."""

    seed: int
    pairs: int
    kinds: tuple[str, ...] = ()  # of mutations; all where none is named
    optimized: bool = False  # compile as JAX does by default; else quickly
    only: int | None = None  # this pair alone

    def __post_init__(self) -> None:
        known(self.kinds)

    @property
    def repeat(self) -> str:
        """The options that bring the same pairs about."""
        kinds = f' --kinds "{",".join(self.kinds)}"' if self.kinds else ""
        return f"--seed {self.seed}{kinds}{' --optimized' if self.optimized else ''}"

    def mark(self) -> str:
        return json.dumps({"seed": self.seed, "kinds": self.kinds, "optimized": self.optimized})

    def pieces(self, folder: Path) -> list[Piece]:
        """Ranges for one process each. They don't depend on how many pairs there are: more can follow."""
        first, end = (0, self.pairs) if self.only is None else (self.only, self.only + 1)
        return [
            Piece(
                self.seed,
                max(first, start),
                min(start + PIECE, end),
                self.kinds,
                self.optimized,
                folder / f"pairs-{start}.jsonl",
            )
            for start in range(first - first % PIECE, end, PIECE)
        ]


@dataclass(frozen=True, slots=True)
class SoundnessResult:
    """What the pairs came to."""

    plan: Plan
    lines: tuple[Line, ...]
    seconds: float  # of this run
    resumed: int

    def count(self, name: str) -> int:
        return sum(bool(line[name]) for line in self.lines)

    @property
    def bad(self) -> list[Line]:
        """The wrong and failed ones, with both programs."""
        return [self.whole(line) for line in self.lines if line["wrong"] or line["failed"]]

    def whole(self, line: Line) -> Line:
        """A line with both programs of its pair, printed."""
        program, mutation = pair(self.plan.seed, known(self.plan.kinds), line["pair"])
        return line | {"programs": [repr(program), repr(mutation.program)]}

    @property
    def per_rule(self) -> dict[str, int]:
        fired = Counter(rule for line in self.lines for rule in line["fired"])
        return {rule.name: fired[rule.name] for rule in rules.RULES}

    @property
    def kinds(self) -> dict[str, dict[str, int]]:
        """Counts by kind of mutation, in the order of their list."""
        counts = {name: dict.fromkeys(COUNTED, 0) for name in NAMES}
        for line in self.lines:
            for name in line["kinds"]:
                of = counts[name]
                of["pairs"] += 1
                of["shared"] += line["shared"]
                of["missed"] += is_missed(line)
                of["chance"] += is_chance(line)
                of["wrong"] += bool(line["wrong"])
        return {name: of for name, of in counts.items() if of["pairs"]}

    def to_json(self) -> dict[str, Any]:
        families = Counter(line.get("family") for line in self.lines)
        return {
            "pairs": len(self.lines),
            "shared": self.count("shared"),
            "stripped": self.count("fired"),
            "executed": self.count("executed"),
            "wrong": self.count("wrong"),
            "per_rule": self.per_rule,
            "same": self.count("same"),
            "missed": sum(map(is_missed, self.lines)),
            "chance": sum(map(is_chance, self.lines)),
            "stock_shared": self.count("stock"),
            "failed": self.count("failed"),
            "families": {name: families[name] for name in FAMILIES},
            "kinds": self.kinds,
            "bad_pairs": self.bad,
            "seed": self.plan.seed,
            "optimized": self.plan.optimized,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(sum(line["cpu"] for line in self.lines), 1),
            "resumed": self.resumed,
            "jax": self.lines[0]["jax"] if self.lines else "",
            "cores": os.cpu_count(),
        }


def is_missed(line: Line) -> bool:
    """Two keys for what means the same by construction."""
    return bool(line["same"] and not line["shared"] and not line["failed"])


def is_chance(line: Line) -> bool:
    """One key and equal results, though the mutation was one that may change the meaning."""
    return bool(line["shared"] and not line["same"] and not line["wrong"])


def run(
    plan: Plan,
    folder: Path,
    *,
    jobs: int,
    seconds: float,
    interruption: Interruption | None = None,
    progress: Progress | None = None,
) -> SoundnessResult:
    """Judge the pairs, or what is left of them, in `jobs` processes at a time.

    Raises:
        ConfigError: the folder holds another bench. ColdstartError: a process failed or all took too long.
    """
    _claim(folder, plan)
    pieces = plan.pieces(folder)
    total = sum(piece.end - piece.first for piece in pieces)
    before = sum(piece.done for piece in pieces)
    left = [piece for piece in pieces if piece.done < piece.end - piece.first]
    began = time.monotonic()
    judged = partial(count_lines, [piece.record for piece in pieces])
    name = f"soundness, seed {plan.seed}"
    with (progress or quiet()).of(name, judged, before, total, "pairs"):
        try:
            processes.run_all(
                WORKER,
                [piece.arguments() for piece in left],
                _environment(),
                folder,
                at_once=jobs,
                seconds=seconds,
                interruption=interruption,
            )
        except ColdstartError as exc:
            raise ColdstartError(f"{exc}; {_in_progress(left)}") from exc
    lines = tuple(_lines(pieces))
    if len(lines) != total:
        raise ColdstartError(f"{len(lines)} of {total} pairs recorded")
    return SoundnessResult(plan, lines, time.monotonic() - began, before)


def _in_progress(pieces: Sequence[Piece]) -> str:
    """Where it stopped. A wrong hit can end a process, and then its pair is in no record."""
    begun = [piece for piece in pieces if piece.record.exists()]
    numbers = [str(piece.next) for piece in begun if piece.next is not None]
    return f"pairs that were being judged: {', '.join(numbers) or 'none'}"


def _lines(pieces: Sequence[Piece]) -> list[Line]:
    return [
        line
        for piece in pieces
        for line in read_record(piece.record)
        if piece.first <= line["pair"] < piece.end
    ]


def _environment() -> dict[str, str]:
    environ = processes.plain_environment()
    flags = f"{environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    return environ | {"XLA_FLAGS": flags.strip()}


def is_one(folder: Path) -> bool:
    """Does this folder hold a bench that can go on?"""
    return (folder / MARK).is_file()


def _claim(folder: Path, plan: Plan) -> None:
    """Mark the folder as this bench's, or find that it is."""
    folder.mkdir(parents=True, exist_ok=True)
    mark, text = folder / MARK, plan.mark()
    if mark.exists() and mark.read_text() != text:
        raise ConfigError(f"{folder} holds other pairs, {mark.read_text()}; name another folder")
    mark.write_text(text)
