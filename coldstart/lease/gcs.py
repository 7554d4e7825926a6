"""GcsLeaseBoard: leases among the daemons of a fleet, kept in a bucket; so that one compile per fleet needs no Redis.

A lease is an object `<prefix>/coldstart/v1/leases/<key>` of no bytes; what it says stands in its metadata, which comes
with every look at it. Whoever makes it, or replaces the very generation it looked at, holds the lease: generations only
grow, so the first one of a lease is its fence. A heartbeat replaces it once more, a release deletes it, a failure
replaces it by a note that says why and holds nobody up.

A lease is over when the server's own clock says that its last write is older than its lifetime, or when somebody has
watched the same generation for that long. The holder believes it sooner, by its own clock, from when it *began* to
write. Clocks of hosts are never compared. The server's is read to the second, so a dead holder may live 1 s longer.

Waiting is polling, with jitter: one poll for all who wait for a key here. Leases of this very daemon are known without
asking. A bucket that is silent or refuses raises TierError; a lease that can't be given back runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from coldstart.bucket import Bucket, Stored
from coldstart.errors import BreakerOpen, InvalidRequest, LeaseLost, TierError, TierNotReady
from coldstart.lease.board import Busy, End, Ended, Failure, Granted, Lease

log = logging.getLogger(__name__)

T = TypeVar("T")

LAYOUT = "coldstart/v1"
MARK = "coldstart-lease"  # metadata; its value is a note
POLL_SECONDS = 2.0
TRIES = 3
NOTE_SECONDS = 60.0  # a failure is told to who comes to wait
WRITE_TRIES = 3  # somebody waits for it
CLOSE_SECONDS = 5.0
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 1.0, 60.0  # between looks at a bucket that fails
MOST_MESSAGE_CHARS = 2000  # a note holds 8 KiB
REMEMBERED = 4096  # generations, and since when


@dataclass(frozen=True, slots=True)
class _Note:
    """What a lease's object says."""

    token: str  # of the lease's id, which only its holder knows
    holder: str
    ttl_seconds: float
    estimate_seconds: float
    failure: Failure | None = None

    def to_text(self) -> str:
        about = [self.token, self.holder, self.ttl_seconds, self.estimate_seconds]
        why = [self.failure.kind, self.failure.message] if self.failure else []
        return json.dumps([*about, *why])

    @classmethod
    def of(cls, stored: Stored | None) -> _Note | None:
        """None: nothing there, or nothing of ours."""
        try:
            token, holder, ttl, estimate, *why = json.loads(
                (stored and stored.metadata[MARK]) or ""
            )
            failure = Failure(str(why[0]), str(why[1])) if why else None
            return cls(str(token), str(holder), float(ttl), float(estimate), failure)
        except (ValueError, TypeError, KeyError, IndexError):
            return None


@dataclass(slots=True)
class _Held:
    """A lease of this daemon."""

    lease: Lease
    note: _Note
    generation: int
    renewed_at: float  # by our clock, when the last write that worked was begun
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Watch:
    """Everybody here who waits for the present lease of one key."""

    token: str
    waiters: set[asyncio.Future[Ended]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None

    def end(self, ended: Ended) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(ended)


class GcsLeaseBoard:
    """Leases in one bucket. On one event loop."""

    def __init__(
        self,
        bucket: Bucket,
        prefix: str = "",
        *,
        poll_seconds: float = POLL_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """The bucket is somebody else's to close, later than the board."""
        self._bucket = bucket
        self._base = "/".join(filter(None, (prefix.strip("/"), LAYOUT, "leases")))
        self._poll_seconds = poll_seconds
        self._now = now
        self._by_id: dict[str, _Held] = {}
        self._by_key: dict[str, _Held] = {}
        self._watches: dict[str, _Watch] = {}
        self._pause = FIRST_PAUSE_SECONDS
        self._probing: asyncio.Task[None] | None = None  # the bucket fails
        # name -> (generation, when it was first seen here)
        self._first_seen: OrderedDict[str, tuple[int, float]] = OrderedDict()

    async def acquire(
        self, key: str, holder: str, ttl_seconds: float, estimate_seconds: float
    ) -> Granted | Busy:
        """Raises InvalidRequest; TierError: nobody knows."""
        if ttl_seconds <= 0:
            raise InvalidRequest(f"a lease needs a lifetime above 0 s, not {ttl_seconds:g}")
        mine = self._mine(key)
        if mine is not None:
            return mine
        lease_id = secrets.token_hex(16)
        note = _Note(_token(lease_id), holder, ttl_seconds, estimate_seconds)
        name = self._name(key)
        for times in range(TRIES):
            await self._bucket.give_way(times)
            there = await self._stat(name)
            busy = self._busy(there)
            if busy is not None:
                return busy
            begun = self._now()
            stored = await self._write(name, note, there.generation if there else 0)
            if stored is not None:
                lease = Lease(lease_id, key, holder, stored.generation, ttl_seconds)
                held = _Held(lease, note, stored.generation, begun)
                self._by_id[lease_id] = self._by_key[key] = held
                return Granted(lease)
        return Busy("somebody who was faster", ttl_seconds, 0.0)

    async def current(self, key: str) -> Busy | None:
        return self._mine(key) or self._busy(await self._stat(self._name(key)))

    async def holds(self, lease_id: str) -> bool:
        held = self._by_id.get(lease_id)
        return held is not None and self._left(held) > 0

    async def renew(self, lease_id: str) -> float:
        held = self._live(lease_id)
        async with held.writing:
            begun = self._now()
            stored = await self._replace(held, held.note)
            if stored is None:
                self._end(held, Ended(End.EXPIRED))
                raise LeaseLost("the lease is over: somebody else holds the key by now")
            held.generation, held.renewed_at = stored.generation, begun
        return held.lease.ttl_seconds

    async def release(self, lease_id: str) -> None:
        held = self._live(lease_id)
        async with held.writing:
            self._end(held, Ended(End.RELEASED))
            name = self._name(held.lease.key)
            with _runs_out(name):
                if not await self._bucket.delete(name, held.generation):
                    there = await self._own(held)
                    if there is not None:
                        await self._bucket.delete(name, there.generation)

    async def fail(self, lease_id: str, failure: Failure) -> None:
        held = self._live(lease_id)
        short = Failure(failure.kind, failure.message[:MOST_MESSAGE_CHARS])
        note = _Note(
            held.note.token, held.note.holder, held.note.ttl_seconds, held.note.estimate_seconds,
            short,
        )  # fmt: skip
        async with held.writing:
            self._end(held, Ended(End.FAILED, failure))
            with _runs_out(self._name(held.lease.key)):
                await self._replace(held, note)

    async def wait(self, key: str, max_seconds: float) -> Ended:
        """Raises TierError: it can't be seen whether anybody holds it."""
        watch = self._watches.get(key)
        if watch is None:
            token, over = await self._now_at(key)
            if over is not None:
                return over
            watch = self._watches.get(key)  # somebody else may have begun meanwhile
            if watch is None or watch.token != token:
                watch = self._watches[key] = _Watch(token)
        if max_seconds <= 0:
            self._leave(key, watch)
            return Ended(End.TIMEOUT)
        waiter: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        watch.waiters.add(waiter)
        if watch.task is None:
            watch.task = asyncio.create_task(self._poll(key, watch))
        try:
            async with asyncio.timeout(max_seconds):
                return await waiter
        except TimeoutError:
            return Ended(End.TIMEOUT)
        finally:
            watch.waiters.discard(waiter)
            self._leave(key, watch)

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # what can't be given back now runs out
            async with asyncio.timeout(CLOSE_SECONDS):
                leases = [self.release(lease_id) for lease_id in tuple(self._by_id)]
                await asyncio.gather(*leases, return_exceptions=True)
        for key, watch in tuple(self._watches.items()):
            self._finish(key, watch, Ended(End.RELEASED))
        if self._probing is not None:
            self._probing.cancel()

    # --- leases of this daemon -----------------------------------------------------------------

    def _left(self, held: _Held) -> float:
        return held.renewed_at + held.lease.ttl_seconds - self._now()

    def _mine(self, key: str) -> Busy | None:
        held = self._by_key.get(key)
        if held is None:
            return None
        left = self._left(held)
        if left <= 0:
            self._end(held, Ended(End.EXPIRED))
            return None
        return Busy(held.lease.holder, left, held.note.estimate_seconds)

    def _live(self, lease_id: str) -> _Held:
        held = self._by_id.get(lease_id)
        if held is not None and self._left(held) <= 0:
            self._end(held, Ended(End.EXPIRED))
            held = None
        if held is None:
            raise LeaseLost("the lease is over: it expired, or was released or failed before")
        return held

    def _end(self, held: _Held, ended: Ended) -> None:
        """Here. What the bucket says follows, or runs out."""
        self._by_id.pop(held.lease.id, None)
        if self._by_key.get(held.lease.key) is held:
            del self._by_key[held.lease.key]
        watch = self._watches.get(held.lease.key)
        if watch is not None and watch.token == held.note.token:
            self._finish(held.lease.key, watch, ended)

    # --- the bucket ----------------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return f"{self._base}/{key}"

    async def _stat(self, name: str) -> Stored | None:
        return await self._unless_down(lambda: self._bucket.stat(name))

    async def _unless_down(self, call: Callable[[], Awaitable[T]]) -> T:
        """Who finds out that the bucket fails is the last one to wait for it: until it answers in the background."""
        if self._probing is None and self._bucket.failing:  # somebody else found out just now
            self._go_down()
        if self._probing is not None:
            raise BreakerOpen("gcs: leases not asked for, the bucket failed lately")
        try:
            return await call()
        except TierNotReady:
            raise
        except TierError:
            self._go_down()
            raise

    def _go_down(self) -> None:
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(self._pause * random.uniform(0.8, 1.2))
            self._pause = min(2 * self._pause, MOST_PAUSE_SECONDS)  # until a lease is written again
            with contextlib.suppress(TierError):
                await self._bucket.stat(self._name("nobody"))
                break
        self._probing = None

    async def _write(self, name: str, note: _Note, generation: int) -> Stored | None:
        """Ours now; None: somebody was faster. An answer that was lost, or a condition ignored, doesn't fool it."""
        said = {MARK: note.to_text()}
        written = await self._unless_down(
            lambda: self._bucket.write(
                name, lambda: iter(()), 0, metadata=said, generation=generation, tries=WRITE_TRIES
            )
        )
        self._pause = FIRST_PAUSE_SECONDS
        there = await self._stat(name)
        if there is None or _Note.of(there) != note:
            return None
        if written is not None and written.generation != there.generation:
            return None
        return there

    async def _replace(self, held: _Held, note: _Note) -> Stored | None:
        """The held lease's object says `note`; None: it isn't ours any more."""
        name = self._name(held.lease.key)
        stored = await self._write(name, note, held.generation)
        if stored is not None:
            return stored
        there = await self._own(held)  # an earlier write of ours whose answer was lost
        return None if there is None else await self._write(name, note, there.generation)

    async def _own(self, held: _Held) -> Stored | None:
        there = await self._stat(self._name(held.lease.key))
        note = _Note.of(there)
        return there if note is not None and note.token == held.note.token else None

    def _busy(self, there: Stored | None) -> Busy | None:
        """Who holds it by that object."""
        note = _Note.of(there)
        if there is None or note is None or note.failure is not None:
            return None
        left = self._expires_in(there, note)
        return Busy(note.holder, left, note.estimate_seconds) if left > 0 else None

    def _expires_in(self, there: Stored, note: _Note) -> float:
        return note.ttl_seconds - self._age(there)

    def _age(self, there: Stored) -> float:
        """Seconds since it was written: at least that many."""
        generation, since = self._first_seen.get(there.name, (0, 0.0))
        if generation != there.generation:
            since = self._now()
            self._first_seen[there.name] = (there.generation, since)
            self._first_seen.move_to_end(there.name)
            if len(self._first_seen) > REMEMBERED:
                self._first_seen.popitem(last=False)
        age = max(0.0, self._now() - since)
        server = self._bucket.server_unix()
        if server is not None:
            age = max(age, server - there.updated_unix)
        return age

    # --- waiting -------------------------------------------------------------------------------

    async def _now_at(self, key: str) -> tuple[str, Ended | None]:
        """The token of the lease that is held; where there is none, how a wait for it ends."""
        if self._mine(key) is not None:
            return self._by_key[key].note.token, None
        there = await self._stat(self._name(key))
        note = _Note.of(there)
        if there is None or note is None:
            return "", Ended(End.RELEASED)
        if note.failure is not None and self._age(there) < NOTE_SECONDS:
            return "", Ended(End.FAILED, note.failure)  # for who was told to wait, just before
        return note.token, None if self._busy(there) is not None else Ended(End.RELEASED)

    async def _poll(self, key: str, watch: _Watch) -> None:
        while True:
            pause = self._poll_seconds * random.uniform(0.5, 1.5)
            held = self._by_key.get(key)
            if held is not None:
                pause = min(pause, max(0.0, self._left(held)))
            await asyncio.sleep(pause)
            try:
                ended = await self._how_it_ended(key, watch.token)
            except TierError as exc:  # whoever waits has patience of its own
                log.info("lease: can't see who holds %s: %s", key[:16], exc)
                continue
            if ended is not None:
                watch.task = None  # this one, which ends here by itself
                self._finish(key, watch, ended)
                return

    async def _how_it_ended(self, key: str, token: str) -> Ended | None:
        held = self._by_key.get(key)
        if held is not None and held.note.token == token:
            return None if self._mine(key) is not None else Ended(End.EXPIRED)
        there = await self._stat(self._name(key))
        note = _Note.of(there)
        if there is None or note is None or note.token != token:
            return Ended(End.RELEASED)
        if note.failure is not None:
            return Ended(End.FAILED, note.failure)
        return None if self._expires_in(there, note) > 0 else Ended(End.EXPIRED)

    def _finish(self, key: str, watch: _Watch, ended: Ended) -> None:
        if self._watches.get(key) is watch:
            del self._watches[key]
        if watch.task is not None:
            watch.task.cancel()
        watch.end(ended)

    def _leave(self, key: str, watch: _Watch) -> None:
        """Nobody waits any more: nothing is polled."""
        if not watch.waiters:
            self._finish(key, watch, Ended(End.RELEASED))


@contextlib.contextmanager
def _runs_out(name: str) -> Iterator[None]:
    """What couldn't be said about a lease that is over here is said by its lifetime."""
    try:
        yield
    except TierError as exc:
        log.warning("lease: %s is left to run out: %s", name, exc)


def _token(lease_id: str) -> str:
    return hashlib.sha256(lease_id.encode()).hexdigest()[:32]
