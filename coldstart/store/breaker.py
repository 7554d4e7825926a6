"""Breaker: a tier that keeps failing is not asked for a while, so that nobody waits for it.

Three failures in a row open a circuit; whoever asks then is told `BreakerOpen` at once. Reads and writes have a
circuit each: a bucket that may only be read is no reason not to read it. Reads are tried again in the background, by
a question that no caller waits for; of writes, one caller's is let through now and then, as nobody waits for those.

A failure is a TierError, or a call that was given up while the tier had been silent for a second. A miss, a bad copy
and a tier that has only just started are none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from coldstart.artifact import Artifact, Header
from coldstart.errors import BreakerOpen, TierError, TierNotReady
from coldstart.identity.key import SCHEME, KeyRecord
from coldstart.store.kept import Kept
from coldstart.store.recorder import Recorder, ignore
from coldstart.store.tier import Tier

log = logging.getLogger(__name__)

T = TypeVar("T")
FAILURES = 3
CIRCUITS = ("reads", "writes")
FIRST_SECONDS, MOST_SECONDS = 5.0, 60.0
SILENT_SECONDS = 1.0
NOBODYS_KEY = f"{SCHEME}-{'0' * 64}"  # asked for to see whether a tier answers


class _Circuit:
    """Failures in a row, and when it was opened."""

    def __init__(self, word: str, first_seconds: float, now: Callable[[], float]) -> None:
        self.word = word
        self.failures = 0
        self.open = False
        self._first_seconds = self._pause = first_seconds
        self._now = now
        self._try_at = 0.0

    def failed(self) -> bool:
        """True: this one opened it."""
        self.failures += 1
        if self.open:
            self._pause = min(2 * self._pause, MOST_SECONDS)
        elif self.failures < FAILURES:
            return False
        opened, self.open = not self.open, True
        self._try_at = self._now() + self.pause()
        return opened

    def worked(self) -> bool:
        """True: this one closed it."""
        closed, self.open = self.open, False
        self.failures, self._pause = 0, self._first_seconds
        return closed

    def pause(self) -> float:
        """Seconds until it is tried again; many daemons must not do so together."""
        return self._pause * random.uniform(0.8, 1.2)

    def may_try(self) -> bool:
        """For one caller, when the time has come."""
        if self._now() < self._try_at:
            return False
        self._try_at = self._now() + self._pause
        return True


class Breaker:
    """A Tier around a Tier. On one event loop."""

    def __init__(
        self,
        inner: Tier,
        *,
        recorder: Recorder = ignore,
        first_seconds: float = FIRST_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self._recorder = recorder
        self._now = now
        reads, writes = CIRCUITS
        self._reads = _Circuit(reads, first_seconds, now)
        self._writes = _Circuit(writes, first_seconds, now)
        self._probing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def writable(self) -> bool:
        return self.inner.writable

    @property
    def open(self) -> tuple[str, ...]:
        """Which circuits are open: reads, writes."""
        return tuple(circuit.word for circuit in (self._reads, self._writes) if circuit.open)

    @property
    def trouble(self) -> str:
        """What is wrong with it now, for people; "" where nothing is."""
        return f"not asked for now, {' and '.join(self.open)} failed too often" if self.open else ""

    async def find(self, key: str) -> tuple[Header, ...]:
        return await self._read("find", lambda: self.inner.find(key))

    async def get(self, key: str, digest: str) -> Artifact | None:
        return await self._read("get", lambda: self.inner.get(key, digest))

    async def record(self, key: str) -> KeyRecord | None:
        return await self._read("record", lambda: self.inner.record(key))

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        return await self._write("put", lambda: self.inner.put(artifact, record))

    async def delete(self, key: str, digest: str) -> bool:
        return await self._write("delete", lambda: self.inner.delete(key, digest))

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        return await self._write("quarantine", lambda: self.inner.quarantine(key, digest, reason))

    def scan(self) -> AsyncIterator[Kept]:
        """Whatever the circuits say: it is for people, who want to know."""
        return self.inner.scan()

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._probing
        await self.inner.close()

    async def _read(self, op: str, call: Callable[[], Awaitable[T]]) -> T:
        if self._reads.open:
            raise BreakerOpen(f"{self.name}: {op} not tried, reads failed too often lately")
        return await self._watched(self._reads, call)

    async def _write(self, op: str, call: Callable[[], Awaitable[T]]) -> T:
        if self._writes.open and not self._writes.may_try():
            raise BreakerOpen(f"{self.name}: {op} not tried, writes failed too often lately")
        return await self._watched(self._writes, call)

    async def _watched(self, circuit: _Circuit, call: Callable[[], Awaitable[T]]) -> T:
        start = self._now()
        try:
            got = await call()
        except TierNotReady:
            raise
        except TierError as exc:
            if exc.lasting:
                self._worked(circuit)
            else:
                self._failed(circuit, exc)
            raise
        except asyncio.CancelledError as exc:
            if self._now() - start >= SILENT_SECONDS:
                self._failed(circuit, exc)
            raise
        except Exception:  # about the artifact or the request: the tier answers
            self._worked(circuit)
            raise
        self._worked(circuit)
        return got

    def _failed(self, circuit: _Circuit, exc: BaseException) -> None:
        if not circuit.failed():
            return
        log.warning("%s: no %s for now: %s", self.name, circuit.word, exc)
        self._recorder(self.name, "breaker", "open", 0.0)
        if circuit is self._reads:
            self._probing = asyncio.create_task(self._probe())

    def _worked(self, circuit: _Circuit) -> None:
        if circuit.worked():
            log.warning("%s: %s work again", self.name, circuit.word)
            self._recorder(self.name, "breaker", "closed", 0.0)

    async def _probe(self) -> None:
        while self._reads.open:
            await asyncio.sleep(self._reads.pause())
            with contextlib.suppress(TierError):
                await self._watched(self._reads, lambda: self.inner.find(NOBODYS_KEY))
