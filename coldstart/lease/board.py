"""LeaseBoard: who compiles a missing key now, and who waits for it.

At most one live lease per key. A lease lives `ttl_seconds` from its last renewal; then it is over, and its waiters
are woken at that moment, whether or not anybody asks. Losing a lease costs a duplicate compile, never a wrong
artifact: the store's first-wins rule decides, not the lease.

Boards of a fleet raise TierError where they can't be asked; fleet.py turns that into leases of one daemon.
MemoryLeaseBoard is for the clients of one daemon: one event loop, no locks. An entry leaves the tables when its
lease ends, and ends every wait on it; so no wait outlives its entry.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from coldstart.errors import InvalidRequest, LeaseLost


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to compile one key for a while."""

    id: str  # unguessable: whoever knows it may renew, release or fail it
    key: str
    holder: str  # for people and for waiters
    fence: int  # grows with every lease of a board; a later holder has the higher one
    ttl_seconds: float  # lives this long without a renewal


@dataclass(frozen=True, slots=True)
class Granted:
    """You compile."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else compiles. An answer, not an error."""

    holder: str
    expires_in_seconds: float  # unless renewed
    estimate_seconds: float  # how long the holder thinks that the compile takes in all; 0: no idea


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a compile failed, for those who waited for it."""

    kind: str  # oom, timeout, crash or compile
    message: str


class End(StrEnum):
    """Why a wait ended."""

    RELEASED = "released"  # published, given up, or nobody holds it: ask the store again
    FAILED = "failed"  # the holder said why
    EXPIRED = "expired"  # the holder went silent: the key is free to take over
    TIMEOUT = "timeout"  # still being compiled; the waiter's own time is up


@dataclass(frozen=True, slots=True)
class Ended:
    """How a wait ended."""

    why: End
    failure: Failure | None = None  # with FAILED only


class LeaseBoard(Protocol):
    """Single flight over keys. Calls with the id of a lease that is over raise LeaseLost and change nothing."""

    async def acquire(
        self, key: str, holder: str, ttl_seconds: float, estimate_seconds: float
    ) -> Granted | Busy:
        """The lease if nobody holds it, else who does. Never waits."""
        ...

    async def current(self, key: str) -> Busy | None:
        """Who holds it now, without asking for it."""
        ...

    async def holds(self, lease_id: str) -> bool:
        """Whether that lease is still live."""
        ...

    async def renew(self, lease_id: str) -> float:
        """Live on for another `ttl_seconds`, which is returned."""
        ...

    async def release(self, lease_id: str) -> None:
        """Done: published, or given up. Wakes the waiters."""
        ...

    async def fail(self, lease_id: str, failure: Failure) -> None:
        """The compile failed. Wakes the waiters with the reason."""
        ...

    async def wait(self, key: str, max_seconds: float) -> Ended:
        """Until the present lease of `key` ends, but no longer than `max_seconds`."""
        ...

    async def close(self) -> None:
        """Release everything; wakes every waiter. Idempotent."""
        ...


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic time and calls at a time; tests bring one that they set."""

    def now(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer: ...


class LoopClock:
    """The running event loop's own clock."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_at(when, callback)


@dataclass(slots=True)
class _Entry:
    lease: Lease
    estimate_seconds: float
    expires_at: float
    timer: Timer
    waiters: set[asyncio.Future[Ended]] = field(default_factory=set)


class MemoryLeaseBoard:
    """Leases among the clients of one daemon."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or LoopClock()
        self._by_key: dict[str, _Entry] = {}
        self._by_id: dict[str, _Entry] = {}
        self._fence = 0

    def __len__(self) -> int:
        """Live leases."""
        return len(self._by_key)

    async def acquire(
        self, key: str, holder: str, ttl_seconds: float, estimate_seconds: float
    ) -> Granted | Busy:
        if ttl_seconds <= 0:
            raise InvalidRequest(f"a lease needs a lifetime above 0 s, not {ttl_seconds:g}")
        busy = await self.current(key)
        if busy is not None:
            return busy
        self._fence += 1
        lease = Lease(secrets.token_hex(16), key, holder, self._fence, ttl_seconds)
        expires_at = self._clock.now() + ttl_seconds
        timer = self._clock.call_at(expires_at, lambda: self._time_up(lease.id))
        entry = _Entry(lease, estimate_seconds, expires_at, timer)
        self._by_key[key] = self._by_id[lease.id] = entry
        return Granted(lease)

    async def current(self, key: str) -> Busy | None:
        entry = self._by_key.get(key)
        if entry is not None:
            self._expire(entry.lease.id)  # where its timer is due and has not run yet
            entry = self._by_key.get(key)
        if entry is None:
            return None
        left_seconds = entry.expires_at - self._clock.now()
        return Busy(entry.lease.holder, left_seconds, entry.estimate_seconds)

    async def holds(self, lease_id: str) -> bool:
        self._expire(lease_id)
        return lease_id in self._by_id

    async def renew(self, lease_id: str) -> float:
        entry = self._live(lease_id)
        entry.timer.cancel()
        entry.expires_at = self._clock.now() + entry.lease.ttl_seconds
        entry.timer = self._clock.call_at(entry.expires_at, lambda: self._time_up(lease_id))
        return entry.lease.ttl_seconds

    async def release(self, lease_id: str) -> None:
        self._end(self._live(lease_id), Ended(End.RELEASED))

    async def fail(self, lease_id: str, failure: Failure) -> None:
        self._end(self._live(lease_id), Ended(End.FAILED, failure))

    async def wait(self, key: str, max_seconds: float) -> Ended:
        if await self.current(key) is None:
            return Ended(End.RELEASED)
        entry = self._by_key[key]
        if max_seconds <= 0:
            return Ended(End.TIMEOUT)
        waiter: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        entry.waiters.add(waiter)
        until = self._clock.now() + max_seconds
        timer = self._clock.call_at(until, lambda: _wake(waiter, Ended(End.TIMEOUT)))
        try:
            return await waiter
        finally:  # a waiter that was cancelled leaves nothing behind
            timer.cancel()
            entry.waiters.discard(waiter)

    async def close(self) -> None:
        for entry in list(self._by_key.values()):
            self._end(entry, Ended(End.RELEASED))

    def _live(self, lease_id: str) -> _Entry:
        self._expire(lease_id)
        entry = self._by_id.get(lease_id)
        if entry is None:
            raise LeaseLost("the lease is over: it expired, or was released or failed before")
        return entry

    def _expire(self, lease_id: str) -> None:
        """End the lease if its time is up. Safe to call at any time with any id."""
        entry = self._by_id.get(lease_id)
        if entry is not None and self._clock.now() >= entry.expires_at:
            self._end(entry, Ended(End.EXPIRED))

    def _time_up(self, lease_id: str) -> None:
        """A timer fired. It is believed without asking the clock: event loops fire a hair early, and only once."""
        entry = self._by_id.get(lease_id)
        if entry is not None:
            self._end(entry, Ended(End.EXPIRED))

    def _end(self, entry: _Entry, ended: Ended) -> None:
        entry.timer.cancel()
        del self._by_id[entry.lease.id]
        del self._by_key[entry.lease.key]
        for waiter in entry.waiters:
            _wake(waiter, ended)


def _wake(waiter: asyncio.Future[Ended], ended: Ended) -> None:
    if not waiter.done():  # else it was cancelled, or woken by what came first
        waiter.set_result(ended)
