"""LoopLag: how late the event loop is. Whatever blocks it keeps every client waiting, and nothing else shows it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

STEP_SECONDS = 0.25
WINDOW_SECONDS = 60.0


class LoopLag:
    """The worst of the last minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: deque[tuple[float, float]] = deque()  # when, how late; the latest is last

    async def run(self) -> None:
        while True:
            expected = self._now() + STEP_SECONDS
            await asyncio.sleep(STEP_SECONDS)
            self.late(self._now() - expected)

    def late(self, seconds: float) -> None:
        """One look; what is better than a later one can't be the worst any more."""
        while self._seen and self._seen[-1][1] <= seconds:
            self._seen.pop()
        self._seen.append((self._now(), max(0.0, seconds)))

    @property
    def worst_seconds(self) -> float:
        while self._seen and self._now() - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        return self._seen[0][1] if self._seen else 0.0
