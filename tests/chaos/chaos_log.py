"""The log of a run: one JSON line for each event, in a file for each process; all clocks are the machine's one.

client   started asked by-digest unrewritten misfit answered compiling compiled sending published unpublished loaded
         ended failed counting counted down up stalled bye
harness  begun fault healed starved daemon-up stats client-gone calm settled lost over
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """One line."""

    at: float  # seconds of the monotonic clock
    who: str  # "harness", or a client process: slot, dot, how many there were before it
    what: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(f"{self.what} has no {name}") from None

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.who} {self.what} {self.facts}"


class Log:
    """A file to write to. Every line is written at once: whoever is killed has said what it did."""

    def __init__(self, path: Path, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, what: str, **facts: Any) -> float:
        at = time.monotonic()
        line = json.dumps([round(at, 6), self.who, what, facts]) + "\n"
        os.write(self._file, line.encode())
        return at

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path) -> list[Event]:
    """Everything that was logged, in order of time. The last line of a killed process may be torn."""
    events = []
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            try:
                at, who, what, facts = json.loads(line)
            except ValueError:
                continue
            events.append(Event(at, who, what, facts))
    return sorted(events, key=lambda event: event.at)
