"""Pins: what must not be evicted for a while, because a client was promised the file.

Pins belong to one process. Another process on the same root may evict a pinned artifact; its client then finds
no file and asks for the bytes once more, as a stream.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pins:
    """digest -> tokens with an expiry. Thread-safe; held for moments only."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()  # taken after a key's flock, never before
        self._expiry: dict[str, tuple[str, float]] = {}  # token -> digest, when it ends

    def pin(self, digest: str, seconds: float) -> str:
        with self._lock:
            self._drop_expired()
            token = secrets.token_hex(16)
            self._expiry[token] = (digest, self._now() + seconds)
            return token

    def unpin(self, token: str) -> bool:
        """True if the pin still held."""
        with self._lock:
            self._drop_expired()
            return self._expiry.pop(token, None) is not None

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
        return any(pinned == digest for pinned, _ in self._expiry.values())

    def _drop_expired(self) -> None:
        now = self._now()
        for token in [t for t, (_, ends) in self._expiry.items() if ends <= now]:
            del self._expiry[token]
