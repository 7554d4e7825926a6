"""The failure matrix as data: what each fault of each place does to each verb, and the table that is made of it.

A tier's test file holds its cells and runs every one of them; `table` turns cells into the lines of tests/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

FAULTS = (
    "refused",
    "slow",
    "black hole",
    "full",
    "read-only",
    "evicting",
    "truncated",
    "bit-flipped",
    "wrong size",
    "wrong key",
    "old format",
    "lost mid-read",
    "back again",
)
VERBS = ("lookup", "fetch", "publish", "lease")


@dataclass(frozen=True)
class Cell:
    """One fault and one verb: how it ends, the reason that is given, and the counter that shows it."""

    place: str  # disk, redis, gcs
    fault: str  # one of FAULTS
    verb: str  # one of VERBS
    outcome: str
    reason: str
    counter: str  # as in `coldstart stats`: tier.op.outcome

    def __post_init__(self) -> None:
        assert self.fault in FAULTS and self.verb in VERBS, self

    def __str__(self) -> str:
        return f"{self.place}-{self.fault}-{self.verb}".replace(" ", "-")


@dataclass(frozen=True)
class NotApplicable:
    """A fault that can't happen to a verb, and why."""

    place: str
    fault: str
    verb: str
    why: str


def cells_of(place: str) -> Callable[..., Cell | NotApplicable]:
    """A maker of the cells of one place: fault, verb, outcome, reason, counter; or fault, verb, "n/a", why."""

    def cell(
        fault: str, verb: str, outcome: str, reason: str, counter: str = ""
    ) -> Cell | NotApplicable:
        if outcome == "n/a":
            return NotApplicable(place, fault, verb, reason)
        return Cell(place, fault, verb, outcome, reason, counter)

    return cell


def to_run(cells: Iterable[Cell | NotApplicable]) -> list[Cell]:
    """The cells that are tests."""
    return [cell for cell in cells if isinstance(cell, Cell)]


def complete(cells: Iterable[Cell | NotApplicable], place: str) -> bool:
    """Every pair is there, once."""
    pairs = [(cell.fault, cell.verb) for cell in cells if cell.place == place]
    return sorted(pairs) == sorted((fault, verb) for fault in FAULTS for verb in VERBS)


def table(cells: Iterable[Cell | NotApplicable]) -> list[str]:
    """Markdown: a row for each place and fault, a column for each verb."""
    by_place = {(cell.place, cell.fault, cell.verb): cell for cell in cells}
    lines = [
        f"| place | fault | {' | '.join(VERBS)} |",
        f"|---|---|{'---|' * len(VERBS)}",
    ]
    for place in dict.fromkeys(key[0] for key in by_place):
        for fault in FAULTS:
            said = [_said(by_place.get((place, fault, verb))) for verb in VERBS]
            lines.append(f"| {place} | {fault} | {' | '.join(said)} |")
    return lines


def _said(cell: Cell | NotApplicable | None) -> str:
    if cell is None:
        return "**no test**"
    if isinstance(cell, NotApplicable):
        return f"n/a: {cell.why}"
    return f"{cell.outcome}, {cell.reason}; `{cell.counter}`"
