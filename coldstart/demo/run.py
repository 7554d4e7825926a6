"""The demo: the same participants cold-start under JAX's own cache and under Coldstart, then both once more, warm.

    stock-cold ▸ coldstart-cold ▸ stock-warm ▸ coldstart-warm

JAX's cache gets a folder that all share and thresholds at their lowest, so that it keeps everything; Coldstart a
daemon on an empty disk. Nothing is counted by either cache: compiles are counted where JAX enters the compiler, and
results are compared bit for bit. JSON, as `to_json` makes it (fields are added, never renamed;
tests/demo/golden/demo.json holds names and types):

    arms[].compiled, reused     calls of the compiler, and programs that a participant got without one; where no compile
                                fails, together participants x programs
    arms[].compile_seconds      wall clock inside the compiler, summed over the participants
    arms[].seconds              by phase, summed over the participants; cpu is processor time of the processes
    arms[].lookups              Coldstart's own count, by outcome and reason; warnings: what its client warned of
    wrong                       outputs that differ from those of the first arm; the command fails where there is one
    daemon                      null once it is stopped (--exit)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coldstart import __version__
from coldstart.demo.fleet import Arm, start_fleet, wrong_results
from coldstart.demo.interruption import Interruption
from coldstart.demo.participant import Work
from coldstart.demo.processes import Daemon

NEEDED = ("jax", "grpc_health", "grpc_reflection", "starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class Result:
    """What the demo found."""

    work: Work
    arms: tuple[Arm, ...]
    wrong: tuple[str, ...]

    def to_json(self, daemon: Daemon | None) -> dict[str, Any]:
        running = None
        if daemon is not None:
            running = {
                "pid": daemon.pid,
                "addresses": list(daemon.addresses),
                "http": f"http://{daemon.http}",
            }
        return {
            "version": __version__,
            "jax": self.arms[0].participants[0]["jax"],
            "participants": self.work.participants,
            "programs": self.work.programs,
            "branch": self.work.branch,
            "cores": os.cpu_count(),
            "arms": [arm.to_json() for arm in self.arms],
            "wrong": len(self.wrong),
            "daemon": running,
        }


def check_packages() -> None:
    """Raises ModuleNotFoundError, as an import would, for an optional package that the demo needs and isn't there."""
    for name in NEEDED:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def run(
    work: Work,
    daemon: Daemon,
    folder: Path,
    *,
    at_once: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    interruption: Interruption | None = None,
) -> Result:
    """Run the four arms against a daemon with an empty store; `say` hears how it goes.

    Raises:
        ColdstartError: a participant failed.
    """
    stock = folder / "jax-cache"
    stock.mkdir()
    arms: list[Arm] = []
    for state in ("cold", "warm"):
        for cache in ("stock", "coldstart"):
            say(f"{cache}-{state}: {work.participants} participants start ...")
            arm = start_fleet(
                f"{cache}-{state}",
                work,
                cache=cache,
                folder=folder,
                stock_folder=stock,
                address=daemon.address,
                at_once=at_once,
                interruption=interruption,
            )
            say(
                f"{arm.name}: {arm.compiled} compiled, {arm.reused} reused, "
                f"{arm.wall_seconds:.1f} s"
            )
            arms.append(arm)
    return Result(work, tuple(arms), tuple(wrong_results(arms)))
