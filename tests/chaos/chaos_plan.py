"""Plan: what goes wrong when, and when new keys appear; all of it drawn from a seed.

Faults come in episodes of one to three, with calm between them: what is compiled in a calm stretch must be compiled
once, whatever went wrong before. The kinds are dealt like cards, so that none waits for chance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

CI_SEED = 43  # one whose minute has faults of every kind
DAEMONS = 3
CLIENTS = 6  # client n talks to daemon n % DAEMONS
FIRST_KEYS = 4
WARM_SECONDS = 3.0  # before the first fault
CALM_SECONDS = (2.5, 5.5)  # between two episodes
FAULT_SECONDS = (0.6, 4.0)
LONG_FAULT_SECONDS = (
    10.0,
    15.0,
)  # longer than anybody's patience: one in ten, in runs that have the time
LONG_RUN_SECONDS = 100.0
BIRTH_SECONDS = (0.6, 2.0)  # from one new key to the next

# target, kind. `N` stands for a daemon's number, `C` for a client's. An island is a daemon without Redis and bucket; it
# may be killed before it has them again.
KINDS = (
    ("daemon:N", "kill"),
    ("daemon:N", "freeze"),
    ("daemon:N", "restart"),
    ("redis", "kill"),
    ("redis", "freeze"),
    ("gcs", "kill"),
    ("gcs", "freeze"),
    ("gcs", "refuse"),  # answers 503
    ("redis-link:N", "refuse"),
    ("redis-link:N", "silence"),
    ("redis-link:N", "slow"),
    ("gcs-link:N", "refuse"),
    ("gcs-link:N", "silence"),
    ("gcs-link:N", "cut"),  # once, within an answer
    ("island:N", "refuse"),
    ("island:N", "kill"),
    ("client:C", "kill"),
    ("client:C", "freeze"),
)


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong for a while. Times are seconds after the start."""

    at: float
    target: str
    kind: str
    seconds: float


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]
    births: tuple[float, ...]  # when the n-th key may be asked for
    hasty: bool = True  # short deadlines for the stores; else what daemons have by default
    leases: str = "redis"  # where the fleet keeps them; or "gcs"

    def to_json(self) -> dict[str, Any]:
        return {"seed": self.seed, "seconds": self.seconds, "births": list(self.births)}


def draw(seed: int, seconds: float, leases: str = "redis") -> Plan:
    """The plan of that seed. Where leases are kept changes no fault of it."""
    dice = random.Random(f"chaos {seed}")
    faults, births = tuple(_faults(dice, seconds)), tuple(_births(dice, seconds))
    return Plan(seed, seconds, faults, births, hasty=seed % 2 == 1, leases=leases)


def _faults(dice: random.Random, seconds: float) -> list[Fault]:
    faults: list[Fault] = []
    cards: list[tuple[str, str]] = []
    at = WARM_SECONDS
    while at < seconds - CALM_SECONDS[0] - FAULT_SECONDS[1]:
        episode: list[Fault] = []
        for _ in range(dice.choice((1, 2, 2, 3))):
            if not cards:
                cards = dice.sample(KINDS, len(KINDS))
            target, kind = cards.pop()
            target = target.replace("N", str(dice.randrange(DAEMONS)))
            target = target.replace("C", str(dice.randrange(CLIENTS)))
            longest = seconds > LONG_RUN_SECONDS and dice.random() < 0.1
            lasts = dice.uniform(*(LONG_FAULT_SECONDS if longest else FAULT_SECONDS))
            lasts = min(lasts, (seconds - CALM_SECONDS[0] - at - 1.0) / 1.3)  # calm at the end
            dealt = _dealt(at + dice.uniform(0.0, 1.0), target, kind, lasts)
            if {fault.target for fault in dealt}.isdisjoint(fault.target for fault in episode):
                episode += dealt
        faults += episode
        at = max(fault.at + fault.seconds for fault in episode) + dice.uniform(*CALM_SECONDS)
    return sorted(faults, key=lambda fault: fault.at)


def _dealt(at: float, target: str, kind: str, seconds: float) -> list[Fault]:
    place, _, number = target.partition(":")
    if place != "island":
        return [Fault(at, target, kind, seconds)]
    links = [Fault(at, f"{store}-link:{number}", "refuse", seconds) for store in ("redis", "gcs")]
    if kind == "kill":  # when it has taken something in, and before it can hand it on
        links.append(Fault(at + 0.7 * seconds, f"daemon:{number}", "kill", 0.5 * seconds))
    return links


def _births(dice: random.Random, seconds: float) -> list[float]:
    births, at = [0.0] * FIRST_KEYS, 0.0
    while True:
        at += dice.uniform(*BIRTH_SECONDS)
        if at > seconds - 2.0:
            return births
        births.append(at)
