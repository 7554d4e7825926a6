"""Negative entries: typed, short-lived notes that a key is not worth a lease now. Bounded, in memory.

They turn a crowd of waiters loose at once: without them each would get the lease in turn and fail in turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coldstart.outcomes import Reason

MAX_ENTRIES = 10_000
MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class NegativeEntry:
    """Why a key is not compiled under a lease now."""

    reason: Reason
    message: str
    until: float  # on the clock that was passed in


class NegativeEntries:
    """At most `MAX_ENTRIES`; the oldest goes first."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._entries: OrderedDict[str, NegativeEntry] = OrderedDict()

    def add(self, key: str, reason: Reason, message: str) -> None:
        if self._seconds <= 0:
            return
        self._entries.pop(key, None)
        self._entries[key] = NegativeEntry(
            reason, message[:MAX_MESSAGE_CHARS], self._now() + self._seconds
        )
        while len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def get(self, key: str) -> NegativeEntry | None:
        entry = self._entries.get(key)
        if entry is not None and entry.until <= self._now():
            del self._entries[key]
            return None
        return entry

    def forget(self, key: str) -> bool:
        """True if there was one."""
        return self._entries.pop(key, None) is not None

    def forget_many(self, keys: Sequence[str]) -> int:
        """Of these keys, or of all; how many there were."""
        if keys:
            return sum(self.forget(key) for key in keys)
        count = len(self._entries)
        self._entries.clear()
        return count

    def __len__(self) -> int:
        return len(self._entries)
