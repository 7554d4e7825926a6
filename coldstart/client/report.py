"""What the cache did for this process: `coldstart.report()`, and one line at exit."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

from coldstart.outcomes import Outcome, Reason


@dataclass(frozen=True, slots=True)
class Report:
    """Totals since the process started. Seconds are wall clock."""

    lookups: dict[tuple[Outcome, Reason], int]
    compile_seconds: float  # spent in the compiler, by programs that came by the cache
    saved_seconds: float  # recorded compile seconds of the programs that were hit
    identify_seconds: float
    wait_seconds: float  # for somebody else's compile
    fetch_seconds: float
    load_seconds: float
    hook_seconds: float  # everything the hook took, the compiler's own time aside
    lost_seconds: float  # of these: on a daemon that did not answer
    group_mismatches: int = 0  # programs of several processes that other members have otherwise
    # Compiled here and meant for the others, and not stored: refused by the daemon, or it could not be sent.
    not_stored: dict[Reason, int] = field(default_factory=dict)

    def count(self, outcome: Outcome) -> int:
        return sum(n for (found, _), n in self.lookups.items() if found is outcome)

    @property
    def hits(self) -> int:
        return self.count(Outcome.HIT)

    @property
    def misses(self) -> dict[Reason, int]:
        """Lookups that ended otherwise than in a hit, by reason."""
        by_reason: Counter[Reason] = Counter()
        for (outcome, reason), n in self.lookups.items():
            if outcome is not Outcome.HIT:
                by_reason[reason] += n
        return dict(by_reason)

    def __str__(self) -> str:
        total = sum(self.lookups.values())
        reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(self.misses.items()))
        kept = ", ".join(f"{reason} {n}" for reason, n in sorted(self.not_stored.items()))
        return (
            f"coldstart: {self.hits} of {total} programs hit, {self.saved_seconds:.1f} s of compiling saved, "
            f"{self.compile_seconds:.1f} s spent; the hook took {self.hook_seconds:.1f} s"
            + (f"; not hit: {reasons}" if reasons else "")
            + (f"; compiled and not stored: {kept}" if kept else "")
            + (f"; group-mismatch: {self.group_mismatches}" if self.group_mismatches else "")
        )


@dataclass(slots=True)
class Tally:
    """Counts up to a Report. Thread-safe."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lookups: Counter[tuple[Outcome, Reason]] = field(default_factory=Counter)
    _seconds: Counter[str] = field(default_factory=Counter)
    _group_mismatches: int = 0
    _not_stored: Counter[Reason] = field(default_factory=Counter)

    def add(self, outcome: Outcome, reason: Reason, **seconds: float) -> None:
        """Count one finished lookup; `seconds` are Report's fields without `_seconds`."""
        with self._lock:
            self._lookups[outcome, reason] += 1
            for name, value in seconds.items():
                self._seconds[name] += value  # type: ignore[assignment]

    def add_group_mismatch(self) -> None:
        """Count one program; the lookup that it came by is counted for itself."""
        with self._lock:
            self._group_mismatches += 1

    def add_not_stored(self, reason: Reason) -> None:
        """Count one program that was compiled here, and that nobody else will find."""
        with self._lock:
            self._not_stored[reason] += 1

    def report(self, *, lost_seconds: float) -> Report:
        with self._lock:
            names = ("compile", "saved", "identify", "wait", "fetch", "load", "hook")
            totals = {f"{name}_seconds": float(self._seconds[name]) for name in names}
            return Report(
                lookups=dict(self._lookups),
                lost_seconds=lost_seconds,
                group_mismatches=self._group_mismatches,
                not_stored=dict(self._not_stored),
                **totals,
            )
