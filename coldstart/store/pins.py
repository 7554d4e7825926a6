"""Pins: what must not be evicted for a while, because a client was promised the file.

Pins belong to one process. Another process on the same root may evict a pinned artifact; its client then finds
no file and asks for the bytes once more, as a stream.
"""

from __future__ import annotations

import heapq
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pins:
    """digest -> tokens with an expiry. Thread-safe; held for moments only."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()  # taken after a key's flock, never before
        self._pinned: dict[str, str] = {}  # token -> digest
        self._held_by: Counter[str] = Counter()  # digest -> tokens
        self._ends: list[
            tuple[float, str]
        ] = []  # a heap; tokens that were unpinned stay until their time

    def pin(self, digest: str, seconds: float) -> str:
        with self._lock:
            self._drop_expired()
            token = secrets.token_hex(16)
            self._pinned[token] = digest
            self._held_by[digest] += 1
            heapq.heappush(self._ends, (self._now() + seconds, token))
            return token

    def unpin(self, token: str) -> bool:
        """True if the pin still held."""
        with self._lock:
            self._drop_expired()
            return self._drop(token)

    def held(self, digest: str) -> bool:
        with self._lock:
            return self._held(digest)

    @contextmanager
    def unless_held(self, digest: str) -> Iterator[bool]:
        """False if pinned; if True, nobody can pin `digest` until the block ends."""
        with self._lock:
            yield not self._held(digest)

    def _held(self, digest: str) -> bool:
        self._drop_expired()
        return self._held_by[digest] > 0

    def _drop_expired(self) -> None:
        now = self._now()
        while self._ends and self._ends[0][0] <= now:
            self._drop(heapq.heappop(self._ends)[1])

    def _drop(self, token: str) -> bool:
        digest = self._pinned.pop(token, None)
        if digest is None:
            return False
        self._held_by[digest] -= 1
        if not self._held_by[digest]:
            del self._held_by[digest]
        return True
