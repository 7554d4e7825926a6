"""`bench small`: what the hook costs where there is nothing to gain: many tiny eager programs, each compiled once.

    (stock, cache off ▸ coldstart, empty store ▸ coldstart, filled store) x rounds

Stock JAX compiles every program in every start and asks no cache. Every round has a daemon and a store of its own, and
in every other one Coldstart comes first. JSON (fields are added, never renamed; tests/bench/golden/small.json holds
names and types):

    stock_jax, first, second   medians over the rounds: wall (the programs), finish (until what waited to be sent was),
                               cpu (of both, in the process), compiles
    ratio                      of the first start, and of the second, to stock: wall, wall with finish, cpu
    wall_ratios                of the first start, in every round
    daemon_cpu                 processor seconds of the daemon, all starts of a round
    remote_objects             artifacts written to tiers beyond this host (there are none of those in this release)
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldstart.bench.progress import Progress, quiet
from coldstart.client.client import CacheClient
from coldstart.demo import processes
from coldstart.demo.interruption import Interruption

START = "coldstart.bench.small_start"
START_SECONDS = 3600.0
LOCAL_TIERS = ("memory", "disk")
STARTS = ("stock", "first", "second")

Said = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SmallResult:
    """Three starts in each round."""

    programs: int
    rounds: tuple[dict[str, Said], ...]
    daemon_cpu: tuple[float, ...]
    remote_objects: int

    def median(self, start: str, what: str) -> float:
        return float(statistics.median(each[start]["seconds"][what] for each in self.rounds))

    def ratio(self, start: str) -> dict[str, float]:
        """To stock, of each round, the median."""
        found: dict[str, list[float]] = {"wall": [], "wall_with_finish": [], "cpu": []}
        for each in self.rounds:
            ours, stock = each[start]["seconds"], each["stock"]["seconds"]
            found["wall"].append(ours["wall"] / stock["wall"])
            found["wall_with_finish"].append((ours["wall"] + ours["finish"]) / stock["wall"])
            found["cpu"].append(ours["cpu"] / stock["cpu"])
        return {name: round(statistics.median(values), 3) for name, values in found.items()}

    @property
    def wall_ratios(self) -> list[float]:
        return [
            each["first"]["seconds"]["wall"] / each["stock"]["seconds"]["wall"]
            for each in self.rounds
        ]

    @property
    def wrong(self) -> int:
        return sum(said["wrong"] for each in self.rounds for said in each.values())

    @property
    def compiled_again(self) -> int:
        return sum(each["second"]["compiles"] for each in self.rounds)

    def to_json(self) -> dict[str, Any]:
        def numbers(start: str) -> dict[str, Any]:
            seconds = {w: round(self.median(start, w), 4) for w in ("wall", "finish", "cpu")}
            return {**seconds, "compiles": self.rounds[0][start]["compiles"]}

        return {
            "programs": self.programs,
            "rounds": len(self.rounds),
            "jax": self.rounds[0]["stock"]["jax"],
            "cores": os.cpu_count(),
            "stock_jax": numbers("stock"),
            "first": numbers("first"),
            "second": numbers("second"),
            "ratio": {"first": self.ratio("first"), "second": self.ratio("second")},
            "wall_ratios": [round(value, 3) for value in self.wall_ratios],
            "daemon_cpu": round(statistics.median(self.daemon_cpu), 3),
            "remote_objects": self.remote_objects,
            "wrong": self.wrong,
        }


def run(
    programs: int,
    folder: Path,
    *,
    rounds: int,
    interruption: Interruption | None = None,
    progress: Progress | None = None,
) -> SmallResult:
    """Start stock JAX, and Coldstart twice, `rounds` times.

    Args:
        folder: empty, with a short path (sockets lie in it).

    Raises:
        ColdstartError: a process failed.
    """
    ended: list[Said] = []
    with (progress or quiet()).of("small", lambda: len(ended), 0, len(STARTS) * rounds, "starts"):
        return _run(programs, folder, rounds, interruption, ended)


def _run(
    programs: int,
    folder: Path,
    rounds: int,
    interruption: Interruption | None,
    ended: list[Said],
) -> SmallResult:
    environ = processes.plain_environment()
    found: list[dict[str, Said]] = []
    daemon_cpu: list[float] = []
    remote_objects = 0
    for number in range(rounds):
        place = folder / str(number)
        place.mkdir()
        with processes.daemon(
            place, place / "store", "--log-level=warning", interruption=interruption
        ) as daemon:

            def start(name: str, place: Path = place, address: str = daemon.address) -> Said:
                (place / name).mkdir()
                ours = {} if name == "stock" else {"COLDSTART_ADDRESS": address}
                arm = "none" if name == "stock" else "coldstart"
                line = [f"--cache={arm}", f"--programs={programs}", f"--began={time.monotonic()}"]
                (said,) = processes.run_all(
                    START,
                    [line],
                    environ | ours,
                    place / name,
                    at_once=1,
                    seconds=START_SECONDS,
                    interruption=interruption,
                )
                ended.append(said)
                return dict(said)

            order = STARTS if number % 2 == 0 else ("first", "second", "stock")
            found.append({name: start(name) for name in order})
            daemon_cpu.append(_cpu_seconds(daemon.pid))
            remote_objects += _written_elsewhere(daemon.address)
    return SmallResult(programs, tuple(found), tuple(daemon_cpu), remote_objects)


def _cpu_seconds(pid: int) -> float:
    """Of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _written_elsewhere(address: str) -> int:
    client = CacheClient(address, holder="bench")
    try:
        tiers = client.stats().tiers
    finally:
        client.close()
    return sum(tier.operations["put.ok"] for tier in tiers if tier.name not in LOCAL_TIERS)
