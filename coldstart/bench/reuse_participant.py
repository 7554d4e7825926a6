"""One participant of `bench reuse`: a process that obtains every program with its own fragment in it.

    python -m coldstart.bench.reuse_participant --rank 0 --participants 8 --programs 132 --cache stock --record FILE ...

Each program is traced, obtained, run on inputs of its own and compared with the NumPy reference; then a line of JSON
is appended to the record, and what the record holds already is not done again. Participants begin at different places
of the list, so that those that run together compile different programs. Compiles are counted below every cache.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart.bench import pieces
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
    shapes = pieces.shapes(part.programs)
    first = part.rank * part.programs // part.participants
    with part.record.open("a") as record:
        for program in (*range(first, part.programs), *range(first)):
            if program in done:
                continue
            line = {"program": program, **_obtain(part, shapes[program], program, device, compiles)}
            record.write(json.dumps({**line, "jax": jax.__version__}) + "\n")
            record.flush()
    if part.cache == "coldstart":
        import coldstart

        coldstart.flush()


def _obtain(part: Part, shape: Shape, program: int, device: Any, compiles: Any) -> dict[str, Any]:
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
    before, ended = (compiles.count, compiles.seconds), _ended(part.cache)
    began = time.perf_counter()
    lowered = piece.lower()
    traced = time.perf_counter()
    compiled = lowered.compile()
    obtained = time.perf_counter()
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
        "compiles": compiles.count - before[0],
        "compile_seconds": compiles.seconds - before[1],
        "trace_seconds": traced - began,
        "obtain_seconds": obtained - traced,
        "lookups": [
            name for name, count in _ended(part.cache).items() if count > ended.get(name, 0)
        ],
        "digest": hashlib.sha256(output.tobytes()).hexdigest(),
        "error": pieces.error(output, wanted),
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
    part = Part(**vars(parser.parse_args()))
    run(part)
    print(json.dumps({"rank": part.rank}), flush=True)


if __name__ == "__main__":
    main()
