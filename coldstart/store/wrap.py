"""Small wrappers: each a Tier around a Tier, each adding one thing.

    Metered     tells a recorder what every call came to, and how long it took
    ReadOnly    refuses put, delete and quarantine
    Deadlined   silence becomes TierTimeout
    Failing     fails or hangs on demand: for tests and for trying out how a fleet bears it

`inner` is the wrapped tier, so that whoever needs a concrete class can find it (`urls.disk_of`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TypeVar

from coldstart.artifact import Artifact, Header
from coldstart.errors import (
    ArtifactCorrupt,
    BreakerOpen,
    ColdstartError,
    TierError,
    TierFull,
    TierTimeout,
    TooLarge,
)
from coldstart.identity.key import KeyRecord
from coldstart.store.kept import Kept
from coldstart.store.recorder import Recorder
from coldstart.store.tier import Tier

T = TypeVar("T")


def outcome_of(error: BaseException) -> str:
    """The recorder's word for a failure."""
    if isinstance(error, TierTimeout):
        return "timeout"
    if isinstance(error, BreakerOpen):
        return "open"
    if isinstance(error, TierFull):
        return "full"
    if isinstance(error, TooLarge):
        return "too-large"
    if isinstance(error, ArtifactCorrupt):
        return "corrupt"
    return "error"


class Metered:
    """Every call is told to `recorder` once, with its outcome."""

    def __init__(
        self, inner: Tier, recorder: Recorder, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.inner = inner
        self._recorder = recorder
        self._now = now

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def writable(self) -> bool:
        return self.inner.writable

    async def find(self, key: str) -> tuple[Header, ...]:
        return await self._told("find", self.inner.find(key), lambda got: "hit" if got else "miss")

    async def get(self, key: str, digest: str) -> Artifact | None:
        return await self._told(
            "get", self.inner.get(key, digest), lambda got: "hit" if got is not None else "miss"
        )

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        mine = artifact.header
        return await self._told(
            "put", self.inner.put(artifact, record), lambda got: "ok" if got == mine else "adopted"
        )

    async def record(self, key: str) -> KeyRecord | None:
        return await self._told(
            "record", self.inner.record(key), lambda got: "hit" if got is not None else "miss"
        )

    async def delete(self, key: str, digest: str) -> bool:
        return await self._told(
            "delete", self.inner.delete(key, digest), lambda got: "ok" if got else "miss"
        )

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        return await self._told(
            "quarantine",
            self.inner.quarantine(key, digest, reason),
            lambda got: "ok" if got else "miss",
        )

    async def scan(self) -> AsyncIterator[Kept]:
        start = self._now()
        try:
            async for stored in self.inner.scan():
                yield stored
        except ColdstartError as exc:
            self._recorder(self.name, "scan", outcome_of(exc), self._now() - start)
            raise
        self._recorder(self.name, "scan", "ok", self._now() - start)

    async def close(self) -> None:
        await self.inner.close()

    async def _told(self, op: str, call: Awaitable[T], word: Callable[[T], str]) -> T:
        start = self._now()
        try:
            got = await call
        except ColdstartError as exc:
            self._recorder(self.name, op, outcome_of(exc), self._now() - start)
            raise
        self._recorder(self.name, op, word(got), self._now() - start)
        return got


class ReadOnly:
    """The same artifacts, not to be changed from here."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def writable(self) -> bool:
        return False

    async def find(self, key: str) -> tuple[Header, ...]:
        return await self.inner.find(key)

    async def get(self, key: str, digest: str) -> Artifact | None:
        return await self.inner.get(key, digest)

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        raise self._refusal("put")

    async def record(self, key: str) -> KeyRecord | None:
        return await self.inner.record(key)

    async def delete(self, key: str, digest: str) -> bool:
        raise self._refusal("delete")

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        raise self._refusal("quarantine")

    def scan(self) -> AsyncIterator[Kept]:
        return self.inner.scan()

    async def close(self) -> None:
        await self.inner.close()

    def _refusal(self, op: str) -> TierError:
        return TierError(f"{self.name}: {op} refused, the tier was opened with cs.write=false")


class Deadlined:
    """No call takes longer than its limit; what the inner tier began may still finish, whole or invisible."""

    def __init__(self, inner: Tier, *, read_seconds: float, write_seconds: float) -> None:
        self.inner = inner
        self._read_seconds = read_seconds
        self._write_seconds = write_seconds

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def writable(self) -> bool:
        return self.inner.writable

    async def find(self, key: str) -> tuple[Header, ...]:
        return await self._timed("find", self._read_seconds, self.inner.find(key))

    async def get(self, key: str, digest: str) -> Artifact | None:
        return await self._timed("get", self._read_seconds, self.inner.get(key, digest))

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        return await self._timed("put", self._write_seconds, self.inner.put(artifact, record))

    async def record(self, key: str) -> KeyRecord | None:
        return await self._timed("record", self._read_seconds, self.inner.record(key))

    async def delete(self, key: str, digest: str) -> bool:
        return await self._timed("delete", self._write_seconds, self.inner.delete(key, digest))

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        return await self._timed(
            "quarantine", self._write_seconds, self.inner.quarantine(key, digest, reason)
        )

    async def scan(self) -> AsyncIterator[Kept]:
        """Each step within the limit: the whole may take as long as it is."""
        steps = aiter(self.inner.scan())
        while True:
            try:
                yield await self._timed("scan", self._read_seconds, anext(steps))
            except StopAsyncIteration:
                return

    async def close(self) -> None:
        await self.inner.close()

    async def _timed(self, op: str, seconds: float, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await call
        except TimeoutError as exc:
            raise TierTimeout(f"{self.name}: {op} got no answer within {seconds:g} s") from exc


class Failing:
    """Fails the operations in `ops` with `error`, or never answers them where `error` is None.

    `ops` may be changed while it runs: an empty set heals the tier.
    """

    def __init__(self, inner: Tier, error: ColdstartError | None, ops: Collection[str]) -> None:
        self.inner = inner
        self.error = error
        self.ops = set(ops)
        self.calls: list[str] = []  # operations asked for, failed ones too

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def writable(self) -> bool:
        return self.inner.writable

    async def find(self, key: str) -> tuple[Header, ...]:
        await self._gate("find")
        return await self.inner.find(key)

    async def get(self, key: str, digest: str) -> Artifact | None:
        await self._gate("get")
        return await self.inner.get(key, digest)

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        await self._gate("put")
        return await self.inner.put(artifact, record)

    async def record(self, key: str) -> KeyRecord | None:
        await self._gate("record")
        return await self.inner.record(key)

    async def delete(self, key: str, digest: str) -> bool:
        await self._gate("delete")
        return await self.inner.delete(key, digest)

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        await self._gate("quarantine")
        return await self.inner.quarantine(key, digest, reason)

    async def scan(self) -> AsyncIterator[Kept]:
        await self._gate("scan")
        async for stored in self.inner.scan():
            yield stored

    async def close(self) -> None:
        await self.inner.close()

    async def _gate(self, op: str) -> None:
        self.calls.append(op)
        if op not in self.ops:
            return
        if self.error is None:
            await asyncio.Event().wait()  # nobody sets it: silence
            return
        raise self.error
