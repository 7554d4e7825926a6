"""Activity: which programs missed lately and why, for whoever asks what to do about it. Bounded, in memory.

Counts per reason are in the tally and never forget; names are kept here for as long as there is room.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from coldstart.outcomes import Outcome, Reason

MAX_RECENT = 500
MAX_PROGRAMS = 2000  # (reason, name) pairs; the one that was quiet longest gives way
OTHERS = "(others)"  # where those that gave way are counted


@dataclass(frozen=True, slots=True)
class Missed:
    """One lookup that did not end in a hit."""

    unix_seconds: float
    outcome: Outcome
    reason: Reason
    program_name: str
    key: str  # "": it was never known
    holder: str
    compile_seconds: float  # that it then took


@dataclass(frozen=True, slots=True)
class ProgramSum:
    """What one program cost for one reason."""

    outcome: Outcome
    reason: Reason
    program_name: str
    count: int
    compile_seconds: float


@dataclass(frozen=True, slots=True)
class Compiling:
    """One compile that a client is at under a lease."""

    key: str
    program_name: str
    holder: str
    seconds: float  # since the lease was given
    expected_seconds: float  # what it took before, or its own guess; 0: nobody knows


class Activity:
    """Fed with every lookup's end."""

    def __init__(self) -> None:
        self.recent: deque[Missed] = deque(maxlen=MAX_RECENT)  # the latest is last
        self._count: OrderedDict[tuple[Outcome, Reason, str], int] = OrderedDict()
        self._seconds: Counter[tuple[Outcome, Reason, str]] = Counter()

    def missed(self, missed: Missed) -> None:
        self.recent.append(missed)
        self._add((missed.outcome, missed.reason, missed.program_name), 1, missed.compile_seconds)
        while len(self._count) > MAX_PROGRAMS:
            oldest = next(iter(self._count))
            count, seconds = self._count.pop(oldest), float(self._seconds.pop(oldest))
            self._add((oldest[0], oldest[1], OTHERS), count, seconds)

    def programs(self) -> Iterator[ProgramSum]:
        """The most compile seconds first, then the most lookups."""
        pairs = sorted(
            self._count.items(), key=lambda pair: (-self._seconds[pair[0]], -pair[1], pair[0][2])
        )
        for (outcome, reason, name), count in pairs:
            seconds = float(self._seconds[outcome, reason, name])
            yield ProgramSum(outcome, reason, name, count, seconds)

    def _add(self, place: tuple[Outcome, Reason, str], count: int, seconds: float) -> None:
        self._count[place] = self._count.pop(place, 0) + count  # now the latest
        self._seconds[place] += seconds  # type: ignore[assignment]  # Counter's values may be floats
