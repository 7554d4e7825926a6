"""`bench hit`: what a warm start costs under JAX's own cache and under Coldstart, phase by phase.

    fill stock ▸ fill coldstart ▸ (stock ▸ coldstart | coldstart ▸ stock) x repeats

Every start is a new process that obtains all programs of a plan and runs none; see `start`. Both caches lie on the
same disk and keep everything; the arms take turns, and in every other round the other one comes first, so that drift
of a shared machine hits both alike. Medians are compared, phase by phase. JSON (fields are added, never renamed;
tests/bench/golden/hit.json holds names and types):

    stock_jax, coldstart   cold_compiles, cold_wall; warm_compiles (0 where all were hits), seconds: medians of the warm
                           starts by phase, with wall and cpu; coldstart.parts: what key and load consist of
    ratio                  coldstart / stock_jax of those medians; null where stock's is next to nothing
    wall_ratios            of every round, in order
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart.bench.progress import Progress, quiet
from coldstart.bench.start import PHASES
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption
from coldstart.demo.processes import Daemon
from coldstart.errors import ConfigError
from coldstart.warmup.plan import Plan

START = "coldstart.bench.start"
ARMS = ("stock", "coldstart")
START_SECONDS = 900.0  # a cold start on a busy machine
LEAST = 0.005  # seconds; a phase shorter than this has no ratio that means anything

Said = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HitResult:
    """Cold starts that filled the caches, and warm ones in pairs."""

    plan: str
    devices: int
    cold: dict[str, Said]  # by arm
    warm: tuple[dict[str, Said], ...]  # of each round

    def medians(self, arm: str, group: str = "seconds") -> dict[str, float]:
        """Of the warm starts of an arm, by phase."""
        starts = [each[arm][group] for each in self.warm]
        return {name: statistics.median(start[name] for start in starts) for name in starts[0]}

    @property
    def ratio(self) -> dict[str, float | None]:
        """Coldstart's medians over stock's."""
        stock, ours = self.medians("stock"), self.medians("coldstart")
        return {
            name: ours[name] / stock[name] if stock[name] >= LEAST else None
            for name in (*PHASES, "wall", "cpu")
        }

    @property
    def wall_ratios(self) -> list[float]:
        return [
            each["coldstart"]["seconds"]["wall"] / each["stock"]["seconds"]["wall"]
            for each in self.warm
        ]

    def warm_compiles(self, arm: str) -> int:
        """Compiles in all warm starts of an arm: each one is a program that the cache did not give back."""
        return sum(each[arm]["compiles"] for each in self.warm)

    def to_json(self) -> dict[str, Any]:
        def arm(name: str) -> dict[str, Any]:
            cold = self.cold[name]
            return {
                "cold_compiles": cold["compiles"],
                "cold_wall": round(cold["seconds"]["wall"], 4),
                "warm_compiles": self.warm_compiles(name),
                "seconds": _rounded(self.medians(name)),
            }

        return {
            "plan": self.plan,
            "devices": self.devices,
            "programs": self.cold["stock"]["programs"],
            "repeats": len(self.warm),
            "jax": self.cold["stock"]["jax"],
            "cores": os.cpu_count(),
            "stock_jax": arm("stock"),
            "coldstart": {
                **arm("coldstart"),
                "parts": _rounded(self.medians("coldstart", "parts")),
            },
            "ratio": {name: value and round(value, 3) for name, value in self.ratio.items()},
            "wall_ratios": [round(value, 3) for value in self.wall_ratios],
        }


def check_devices(plan: Plan, devices: int) -> None:
    """Raises ConfigError: the plan needs other devices."""
    if plan.devices is not None and plan.devices > devices:
        raise ConfigError(
            f"plan {plan.source} needs {plan.devices} devices, --target gives {devices}; "
            f"a target that works: cpu:{plan.devices}"
        )


def run(
    plan: Plan,
    word: str,
    devices: int,
    daemon: Daemon,
    folder: Path,
    *,
    repeats: int,
    interruption: Interruption | None = None,
    progress: Progress | None = None,
) -> HitResult:
    """Fill both caches, then start warm in turns.

    Args:
        word: how the plan was named; the started processes read it again.
        daemon: with an empty store.
        folder: empty; gets JAX's cache and what the processes print.

    Raises:
        ConfigError: as `check_devices`. ColdstartError: a process failed.
    """
    check_devices(plan, devices)
    stock = folder / "jax-cache"
    stock.mkdir(parents=True)
    environ = processes.plain_environment()
    flag = f"--xla_force_host_platform_device_count={devices}"
    environ["XLA_FLAGS"] = f"{environ.get('XLA_FLAGS', '')} {flag}".strip()

    def start(arm: str, name: str) -> Said:
        scratch = folder / f"{name}-{arm}"
        scratch.mkdir()
        ours = {"COLDSTART_ADDRESS": daemon.address} if arm == "coldstart" else {}
        arguments = [f"--plan={word}", f"--cache={arm}", f"--folder={stock}"]
        (said,) = processes.run_all(
            START,
            [[*arguments, f"--began={time.monotonic()}"]],
            environ | ours,
            scratch,
            at_once=1,
            seconds=START_SECONDS,
            interruption=interruption,
        )
        ended.append(said)
        return said

    ended: list[Said] = []
    total = len(ARMS) * (1 + repeats)
    with (progress or quiet()).of("starts", lambda: len(ended), 0, total, "starts"):
        cold = {arm: start(arm, "cold") for arm in ARMS}
        rounds: list[dict[str, Said]] = []
        for number in range(repeats):
            order: Sequence[str] = ARMS if number % 2 == 0 else ARMS[::-1]
            rounds.append({arm: start(arm, f"warm-{number + 1}") for arm in order})
    return HitResult(plan.name, devices, cold, tuple(rounds))


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in seconds.items()}
