"""Report: counters -> the numbers that people are shown. Pure, and each number says what it was made of.

seconds-weighted hit ratio   saved / (saved + spent)
    saved: recorded compile seconds of the artifacts that were hit
    spent: seconds that clients compiled after a lookup that wasn't a hit
hit ratio                    hits / finished lookups
chip-hours saved             saved * chips of a participant / 3600
    a participant's chips stand idle while it compiles; how many those are is a setting (`chips`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coldstart.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Ratio:
    """A part of a whole, with both."""

    part: float
    whole: float
    words: str  # part and whole, named

    @property
    def value(self) -> float | None:
        """None while there is nothing to divide by."""
        return self.part / self.whole if self.whole > 0 else None

    def as_json(self) -> dict[str, object]:
        return {"value": self.value, "part": self.part, "whole": self.whole, "words": self.words}


def hit_ratio(lookups: Mapping[str, float]) -> Ratio:
    """`lookups`: finished ones by outcome."""
    return Ratio(
        lookups.get(Outcome.HIT.value, 0.0), sum(lookups.values()), "hits / finished lookups"
    )


def seconds_ratio(saved_seconds: float, spent_seconds: float) -> Ratio:
    return Ratio(
        saved_seconds,
        saved_seconds + spent_seconds,
        "compile seconds saved / (saved + spent)",
    )


def chip_hours(saved_seconds: float, chips: int) -> float:
    """Hours that chips would have stood idle."""
    return saved_seconds * chips / 3600


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the history, as it is drawn."""

    unix_seconds: int
    hits: Mapping[str, float]  # by tier
    others: Mapping[str, float]  # finished lookups that were no hits, by reason
    saved_seconds: float
    spent_seconds: float


def steps(points: Iterable[tuple[int, Mapping[str, float]]]) -> list[Step]:
    """From the names that `totals` writes."""
    found = []
    for unix, counts in points:
        hits: dict[str, float] = {}
        others: dict[str, float] = {}
        for name, n in counts.items():
            kind, _, rest = name.partition(".")
            if kind == "hit":
                hits[rest] = hits.get(rest, 0.0) + n
            elif kind == "other":
                others[rest] = others.get(rest, 0.0) + n
        found.append(Step(unix, hits, others, counts.get("saved", 0.0), counts.get("spent", 0.0)))
    return found


def totals(
    lookups: Mapping[tuple[str, str, str], float], saved_seconds: float, spent_seconds: float
) -> dict[str, float]:
    """What the history keeps. `lookups`: finished ones by outcome, reason and tier."""
    found: dict[str, float] = {"saved": saved_seconds, "spent": spent_seconds}
    for (outcome, reason, tier), count in lookups.items():
        hit = outcome == Outcome.HIT.value
        name = f"hit.{tier or 'unknown'}" if hit else f"other.{reason}"
        found[name] = found.get(name, 0.0) + count
    return found
