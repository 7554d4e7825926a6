"""One process of `bench soundness`: it judges a range of pairs and appends a line of JSON for each to its record.

    python -m coldstart.bench.soundness_worker --seed 1 --first 0 --end 250 --record FILE

What the record holds already is not done again. A process is short-lived: what JAX remembers goes with it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from coldstart.bench.reuse_participant import drop_torn_line, read_record
from coldstart.bench.soundness_judge import Judge, Question


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of pairs."""

    seed: int
    first: int
    end: int  # exclusive
    kinds: tuple[str, ...]
    optimized: bool
    record: Path

    @property
    def done(self) -> int:
        """How many of them are recorded."""
        return sum(self.first <= line["pair"] < self.end for line in read_record(self.record))

    @property
    def next(self) -> int | None:
        """The first that isn't recorded; None where all are."""
        recorded = {line["pair"] for line in read_record(self.record)}
        return next((k for k in range(self.first, self.end) if k not in recorded), None)

    def arguments(self) -> list[str]:
        """The command line that says this."""
        return [
            f"--seed={self.seed}",
            f"--first={self.first}",
            f"--end={self.end}",
            f"--kinds={','.join(self.kinds)}",
            f"--record={self.record}",
            *(["--optimized"] if self.optimized else []),
        ]


def run(piece: Piece) -> None:
    """Judge what the record lacks, and record it."""
    done = {line["pair"] for line in read_record(piece.record)}
    drop_torn_line(piece.record)
    import jax

    judge = Judge(Question(piece.seed, piece.kinds, piece.optimized))
    with piece.record.open("a") as record:
        for number in range(piece.first, piece.end):
            if number not in done:
                line = judge.pair(number) | {"jax": jax.__version__}
                record.write(json.dumps(line) + "\n")
                record.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="coldstart.bench.soundness_worker")
    for name in ("seed", "first", "end"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--kinds", default="", type=_words)
    parser.add_argument("--optimized", action="store_true")
    parser.add_argument("--record", type=Path, required=True)
    piece = Piece(**vars(parser.parse_args()))
    run(piece)
    print(json.dumps({"first": piece.first}), flush=True)


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


if __name__ == "__main__":
    main()
