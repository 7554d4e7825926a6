"""One participant of `bench reuse`: a process that obtains every program with its own fragment in it.

    python -m coldstart.bench.reuse_participant --rank 0 --participants 8 --programs 132 --cache stock --record FILE ...

Each program is traced, obtained, run on inputs of its own and compared with the NumPy reference; then a line of JSON
is appended to the record, and what the record holds already is not done again. Participants begin at different places
of the list, so that those that run together compile different programs. Compiles are counted below every cache.
With a plan it is the plan's programs instead, as this participant has them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart.bench import participant_plan, pieces
from coldstart.bench.caches import CACHES, use_cache
from coldstart.bench.pieces import Shape

BRANCHES = ("sparse", "dense")


@dataclass(frozen=True, slots=True)
class Part:
    """What one participant of one arm does."""

    rank: int
    participants: int
    programs: int
    layers: int
    branch: str
    cache: str
    folder: str  # of JAX's own cache
    record: Path
    plan: str = ""  # "": attention pieces

    def arguments(self) -> list[str]:
        """The command line that says this."""
        return [
            f"--{name}={getattr(self, name)}"
            for name in self.__slots__  # the fields, in order
        ]


def read_record(path: Path) -> list[dict[str, Any]]:
    """What a participant has done so far. A line that was cut off counts as not done."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            found.append(json.loads(line))
    return found


def run(part: Part) -> None:
    """Obtain what the record lacks, and record it."""
    done = {line["program"] for line in read_record(part.record)}
    drop_torn_line(part.record)
    import jax

    from coldstart.client import jax_internals

    compiles = jax_internals.count_backend_compiles()
    use_cache(part.cache, part.folder)
    device = jax.devices()[0]
    programs: list[Any] = list(pieces.shapes(part.programs))
    if part.plan:
        programs = participant_plan.programs_of(
            part.plan, part.rank, part.participants, part.branch
        )
    first = part.rank * part.programs // part.participants
    with part.record.open("a") as record:
        for program in (*range(first, part.programs), *range(first)):
            if program in done:
                continue
            with Counted(part.cache, compiles) as counted:
                if part.plan:
                    found = _run_planned(programs[program], program, device, counted)
                else:
                    found = _run_piece(part, programs[program], program, device, counted)
            line = {"program": program, **found, **counted.numbers}
            record.write(json.dumps({**line, "jax": jax.__version__}) + "\n")
            record.flush()
    if part.cache == "coldstart":
        import coldstart

        coldstart.flush()


class Counted:
    """What one program cost: compiles by the compiler's own count, seconds, and how its lookups ended."""

    def __init__(self, cache: str, compiles: Any) -> None:
        self._cache, self._compiles = cache, compiles
        self._seconds: dict[str, float] = {}
        self.numbers: dict[str, Any] = {}

    def __enter__(self) -> Counted:
        self._before = self._compiles.count, self._compiles.seconds
        self._ended = _ended(self._cache)
        return self

    def __exit__(self, *_: object) -> None:
        self.numbers = {
            "compiles": self._compiles.count - self._before[0],
            "compile_seconds": self._compiles.seconds - self._before[1],
            **self._seconds,
            "lookups": [
                name
                for name, count in _ended(self._cache).items()
                if count > self._ended.get(name, 0)
            ],
        }

    def obtain(self, lower: Callable[[], Any]) -> tuple[Any, Any]:
        """Trace, lower and compile; returns both results."""
        began = time.perf_counter()
        lowered = lower()
        traced = time.perf_counter()
        compiled = lowered.compile()
        self._seconds = {
            "trace_seconds": traced - began,
            "obtain_seconds": time.perf_counter() - traced,
        }
        return lowered, compiled


def _run_piece(
    part: Part, shape: Shape, program: int, device: Any, counted: Counted
) -> dict[str, Any]:
    import jax
    import numpy as np

    from coldstart.models.config import TINY
    from coldstart.models.participant import PieceShape, attention_piece

    piece = attention_piece(
        part.rank,
        part.participants,
        TINY,
        PieceShape(shape.tokens, shape.kv, layers=part.layers),
        branch=part.branch,
        device=device,
    )
    _, compiled = counted.obtain(piece.lower)
    arguments = piece.sample_arguments(seed=program * part.participants + part.rank)
    output = np.asarray(compiled(*jax.device_put(arguments, device)))
    wanted = pieces.expected(
        arguments,
        branch=part.branch,
        rank=part.rank,
        participants=part.participants,
        latent=TINY.latent,
        scale=TINY.scale,
    )
    return {
        "name": f"{piece.name} {shape}",
        "digest": hashlib.sha256(output.tobytes()).hexdigest(),
        "error": pieces.error(output, wanted),
    }


def _run_planned(program: Any, number: int, device: Any, counted: Counted) -> dict[str, Any]:
    import jax

    lowered, compiled = counted.obtain(lambda: program.lower([device]))
    arguments = participant_plan.arguments_for(lowered, seed=number)
    output = compiled(*jax.device_put(arguments, device))
    return {
        "name": participant_plan.name_of(program),
        "digest": participant_plan.digest_of(output),
        "error": None,
    }


def _ended(cache: str) -> dict[str, int]:
    """How Coldstart's lookups of this process ended so far."""
    if cache != "coldstart":
        return {}
    import coldstart

    report = coldstart.report()
    assert report is not None
    return {f"{outcome} {reason}": count for (outcome, reason), count in report.lookups.items()}


def drop_torn_line(path: Path) -> None:
    """A process that was killed may have left half a line, which the next one must not continue."""
    if path.exists():
        data = path.read_bytes()
        kept = data[: data.rfind(b"\n") + 1]
        if kept != data:
            path.write_bytes(kept)


def main() -> None:
    parser = argparse.ArgumentParser(prog="coldstart.bench.reuse_participant")
    for name in ("rank", "participants", "programs", "layers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--branch", choices=BRANCHES, required=True)
    parser.add_argument("--cache", choices=CACHES, required=True)
    parser.add_argument("--folder", default="")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--plan", default="")
    part = Part(**vars(parser.parse_args()))
    run(part)
    print(json.dumps({"rank": part.rank}), flush=True)


if __name__ == "__main__":
    main()
