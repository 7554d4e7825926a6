"""Watched: a file's content, read again when the file changes. How keys and lists are exchanged without a restart.

Asked on the way of every lookup, so it looks at the file at most once a second, with one stat. What can't be read or
makes no sense leaves what was read before in force, and is told once: a list that is being written must not let go of
what it said. Thread-safe where `read` is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from coldstart.errors import ConfigError

T = TypeVar("T")

LOOK_SECONDS = 1.0


class Watched(Generic[T]):
    """What `read(path)` returned for the file as it is now, or as it was when it could be read last."""

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], T],
        *,
        trouble: Callable[[str], None] = lambda words: None,
        look_seconds: float = LOOK_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError where it can't be read now. `trouble` is told where it can't be later."""
        self.path = path
        self._read = read
        self._trouble = trouble
        self._look_seconds = look_seconds
        self._now = now
        self._facts = _facts_of(path)
        self._value = read(path)
        self._looked = now()
        self.changes = 0  # how often something else was read

    def get(self) -> T:
        now = self._now()
        if now - self._looked >= self._look_seconds:
            self._looked = now
            self._look()
        return self._value

    def _look(self) -> None:
        facts = _facts_of(
            self.path
        )  # before the file is read: a change in between is seen next time
        if facts == self._facts:
            return
        self._facts = facts
        try:
            self._value = self._read(self.path)
        except ConfigError as exc:
            self._trouble(f"{exc}; what it said before stays in force")
            return
        self.changes += 1


def _facts_of(path: Path) -> tuple[int, ...] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
