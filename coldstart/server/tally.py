"""Tally: what the daemon counted since it started. Plain numbers, one writer (the event loop), no locks.

Everything that shows numbers (Stats, the page, Prometheus) reads this, so that they can't disagree.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from coldstart.outcomes import Outcome, Reason
from coldstart.server.activity import Activity, Missed

MAX_EVENTS = 200


@dataclass(frozen=True, slots=True)
class Event:
    """Something that an operator should know."""

    unix_seconds: float
    # A reason (a client's notice too), or one of: replaced, evicted, quarantined, lease-expired, not-canonicalized,
    # tier-up, leases-alone, leases-shared, trust-file.
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How one lookup ended."""

    outcome: Outcome
    reason: Reason
    tier: str = ""  # of a hit
    program_name: str = ""
    compile_seconds: float = 0.0  # of a hit: saved; else: spent
    fetch_seconds: float = 0.0
    load_seconds: float = 0.0
    identify_seconds: float = 0.0
    wait_seconds: float = 0.0
    key: str = ""
    holder: str = ""


class Tally:
    """Counts since the start."""

    def __init__(self, unix_now: Callable[[], float] = time.time) -> None:
        self._unix_now = unix_now
        self.lookups: Counter[tuple[Outcome, Reason, str]] = Counter()
        self.activity = Activity()
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.event_counts: Counter[str] = Counter()
        self.published = 0  # artifacts that became authoritative or were adopted: one compile each
        self.adopted = 0  # of those: somebody had been first
        self.kept_local = 0  # compiles that were not stored
        self.published_bytes = 0  # of those that were
        self.served_bytes: Counter[str] = Counter()  # of hits, by way: path or stream
        self.takeovers = 0  # leases that went on after their holder was lost
        self.compile_seconds = 0.0
        self.compile_seconds_saved = 0.0
        self.wait_seconds = 0.0
        self.load_seconds = 0.0
        self.fetch_seconds = 0.0
        self.identify_seconds = 0.0

    @property
    def compiles(self) -> int:
        return self.published + self.kept_local

    def end(self, ending: Ending) -> None:
        """Count one lookup; the caller makes sure that it is counted once."""
        tier = ending.tier if ending.outcome is Outcome.HIT else ""
        self.lookups[ending.outcome, ending.reason, tier] += 1
        if ending.outcome is Outcome.HIT:
            self.compile_seconds_saved += ending.compile_seconds
        else:
            self.compile_seconds += ending.compile_seconds
            self.activity.missed(
                Missed(
                    self._unix_now(),
                    ending.outcome,
                    ending.reason,
                    ending.program_name,
                    ending.key,
                    ending.holder,
                    ending.compile_seconds,
                )
            )
        self.wait_seconds += ending.wait_seconds
        self.load_seconds += ending.load_seconds
        self.fetch_seconds += ending.fetch_seconds
        self.identify_seconds += ending.identify_seconds

    def event(self, kind: str, message: str) -> None:
        self.events.append(Event(self._unix_now(), kind, message))
        self.event_counts[kind] += 1
