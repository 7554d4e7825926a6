"""One participant: a process that starts cold, obtains its programs, runs each once and says what that took.

    python -m coldstart.demo.participant --rank 0 --participants 8 --cache stock --folder DIR

It is what `fleet` starts many of. Its programs are a decode step that is the same for all ranks, and attention pieces
that hold the offset of its own fragment. The number of compiles is counted below every cache, at the function where
JAX enters the compiler. The last line of stdout is JSON: see `run`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

BRANCHES = ("sparse", "dense")
CACHES = ("none", "stock", "coldstart")
# Shapes of the attention pieces: sequences and cached positions, each a program of its own.
SHAPES = ((8, 128), (16, 128), (8, 256), (16, 256), (32, 128), (32, 256))
DECODE_BATCH = 4
DECODE_LAYERS = 2  # a plain one and one with experts


@dataclass(frozen=True, slots=True)
class Work:
    """What every participant of a run compiles."""

    participants: int = 8
    pieces: int = 3  # attention programs of distinct shapes, out of SHAPES
    layers: int = 1  # of each piece: compile seconds grow with them
    branch: str = "sparse"

    def __post_init__(self) -> None:
        if not 1 <= self.pieces <= len(SHAPES):
            raise ValueError(f"pieces={self.pieces}: wants 1 to {len(SHAPES)}")
        if self.branch not in BRANCHES:
            raise ValueError(f"branch={self.branch!r}: wants one of {', '.join(BRANCHES)}")

    @property
    def programs(self) -> int:
        """Programs of one participant: its pieces and the decode step."""
        return self.pieces + 1

    def arguments(self) -> list[str]:
        """The command line that says the same."""
        return [
            f"--participants={self.participants}",
            f"--pieces={self.pieces}",
            f"--layers={self.layers}",
            f"--branch={self.branch}",
        ]


@dataclass(frozen=True, slots=True)
class _Task:
    """One program: how to lower it, and what it makes of fixed inputs."""

    name: str
    own: bool  # holds the rank's own fragment; else it is the same for all ranks
    lower: Callable[[], Any]
    run: Callable[[Any], Any]


def run(work: Work, rank: int, cache: str, folder: str) -> dict[str, Any]:
    """Obtain and run this rank's programs.

    Returns:
        compiles and compile_seconds as the compiler saw them; reused: programs that needed no compile; seconds by
        phase, of wall clock but for cpu; lookups by outcome and reason (Coldstart's own count) and what its client
        warned of; and of every program a digest of its output.
    """
    began = time.perf_counter()
    seconds = dict.fromkeys(("import", "trace", "obtain", "run", "publish"), 0.0)
    import jax

    from coldstart.client import jax_internals

    warned = _Warned()
    logging.getLogger("coldstart").addHandler(warned)
    compiles = jax_internals.count_backend_compiles()
    _use_cache(cache, folder)
    device = jax.devices()[0]
    tasks = list(_tasks(work, rank, device))
    seconds["import"] = time.perf_counter() - began

    programs = []
    for task in tasks:
        before, start = (compiles.count, compiles.seconds), time.perf_counter()
        lowered = task.lower()
        traced = time.perf_counter()
        compiled = lowered.compile()
        obtained = time.perf_counter()
        digest = hashlib.sha256(task.run(compiled)).hexdigest()
        seconds["trace"] += traced - start
        seconds["obtain"] += obtained - traced
        seconds["run"] += time.perf_counter() - obtained
        programs.append(
            {
                "name": task.name,
                "own": task.own,
                "compiles": compiles.count - before[0],
                "compile_seconds": compiles.seconds - before[1],
                "digest": digest,
            }
        )

    report = None
    if cache == "coldstart":  # else not even imported: that would be on the other caches' bill
        import coldstart

        start = time.perf_counter()
        coldstart.flush()
        seconds["publish"] = time.perf_counter() - start
        report = coldstart.report()
    return {
        "rank": rank,
        "cache": cache,
        "jax": jax.__version__,
        "device": str(device.device_kind),
        "compiles": compiles.count,
        "compile_seconds": compiles.seconds,
        "reused": sum(program["compiles"] == 0 for program in programs),
        "seconds": {**seconds, "wall": time.perf_counter() - began, "cpu": time.process_time()},
        "lookups": {
            f"{outcome} {reason}": count
            for (outcome, reason), count in (report.lookups if report else {}).items()
        },
        "warnings": warned.messages,
        "programs": programs,
    }


class _Warned(logging.Handler):
    """Keeps what Coldstart's client warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _use_cache(cache: str, folder: str) -> None:
    import jax

    if cache == "stock":
        # Thresholds at their lowest: JAX's own cache keeps everything, as Coldstart does here.
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    elif cache == "coldstart":
        import coldstart

        # An installed package is found by JAX itself; from a bare checkout this line does it.
        if not coldstart.install():
            raise RuntimeError("the hook was not installed: is COLDSTART_ADDRESS set?")


def _tasks(work: Work, rank: int, device: Any) -> Iterator[_Task]:
    import jax
    import numpy as np

    from coldstart.models.config import TINY
    from coldstart.models.participant import PieceShape, attention_piece
    from coldstart.models.tiny_moe import TinyMoe

    model = TinyMoe(replace(TINY, layers=DECODE_LAYERS), [device])

    def decode(compiled: Any) -> Any:
        tokens = model.put(np.arange(DECODE_BATCH))
        positions = model.put(np.zeros(DECODE_BATCH))
        logits, _ = compiled(model.params(), model.empty_cache(), tokens, positions)
        return np.asarray(logits).tobytes()

    yield _Task(
        f"decode batch={DECODE_BATCH}", False, lambda: model.lower_decode(DECODE_BATCH), decode
    )
    for tokens, kv in SHAPES[: work.pieces]:
        piece = attention_piece(
            rank,
            work.participants,
            TINY,
            PieceShape(tokens, kv, layers=work.layers),
            branch=work.branch,
            device=device,
        )

        def attend(compiled: Any, piece: Any = piece) -> Any:
            arguments = jax.device_put(piece.sample_arguments(), device)
            return np.asarray(compiled(*arguments)).tobytes()

        yield _Task(f"{piece.name} tokens={tokens},kv={kv}", True, piece.lower, attend)


def main() -> None:
    usual = Work()
    parser = argparse.ArgumentParser(prog="coldstart.demo.participant")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--participants", type=int, required=True)
    parser.add_argument("--pieces", type=int, default=usual.pieces)
    parser.add_argument("--layers", type=int, default=usual.layers)
    parser.add_argument("--branch", choices=BRANCHES, default=usual.branch)
    parser.add_argument("--cache", choices=CACHES, required=True)
    parser.add_argument("--folder", default="", help="of JAX's own cache")
    given = parser.parse_args()
    work = Work(given.participants, given.pieces, given.layers, given.branch)
    result = run(work, given.rank, given.cache, given.folder)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # whoever asked is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
