"""RedisLeaseBoard: leases among the daemons that share a Redis.

    <prefix>:1:{<key>}:lease   id, fence, lifetime, estimate, holder; gone when its time is up
    <prefix>:1:{<key>}:fence   the last fence given for the key
    <prefix>:1:{<key>}:end     how the last lease ended, for those who missed the message
    <prefix>:1:ends            a channel: every lease that ended, and how

Only the server's clock counts: it makes fences and lets leases expire, so hosts may disagree about the time. A lease
is changed by scripts that compare its id. Waiters hear of an end by a message and, should one be lost, by looking now
and then and at the moment when the lease would be over.

Every call raises TierError where Redis can't be asked: fleet.py then goes on with the leases of one daemon.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from coldstart.errors import InvalidRequest, LeaseLost, TierError
from coldstart.lease.board import Busy, End, Ended, Failure, Granted, Lease
from coldstart.redis_link import RedisLink, Script

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two looks at a lease that is waited for
LATE_SECONDS = 0.02  # after its end: a key that expires is gone a moment later
FENCE_SECONDS = 86400.0
NOTE_SECONDS = 60.0
MOST_TEXT = 2000  # characters of a holder's name or a failure's message

# KEYS: lease, fence  ARGV: id, ttl in ms, estimate, holder, life of a fence in ms
# {1, fence}: granted, or was before: the reply was lost. {0, lease, ms left}: somebody has it.
# What can't be read, or would never expire, is nobody's lease.
_ACQUIRE = Script("""
local there = redis.call('GET', KEYS[1])
if there then
  local left = redis.call('PTTL', KEYS[1])
  local id, fence = string.match(there, '^(%x+)\\n(%d+)\\n%d+\\n[%d.e+-]+\\n')
  if id == ARGV[1] then return {1, fence} end
  if id and #id == 32 and left >= 0 then return {0, there, left} end
  redis.call('DEL', KEYS[1])
end
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if fence <= last then fence = last + 1 end
fence = string.format('%.0f', fence)
local lease = ARGV[1] .. '\\n' .. fence .. '\\n' .. ARGV[2] .. '\\n' .. ARGV[3] .. '\\n' .. ARGV[4]
redis.call('SET', KEYS[1], lease, 'NX', 'PX', ARGV[2])
redis.call('SET', KEYS[2], fence, 'PX', ARGV[5])
return {1, fence}
""")
# KEYS: lease  ARGV: id, ttl in ms ("0": only look). 1: it is still ours.
_RENEW = Script("""
local there = redis.call('GET', KEYS[1])
if not there or string.match(there, '^(%x+)\\n') ~= ARGV[1] then return 0 end
if ARGV[2] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
""")
# KEYS: lease, end  ARGV: id, this call's name, how it ended, life of the note in ms, channel, key
# 1: it was ours and is over. A full Redis takes no note; the message still goes out.
_END = Script("""
local note = redis.call('GET', KEYS[2])
if note and string.match(note, '^(%x+)\\n') == ARGV[2] then return 1 end
local there = redis.call('GET', KEYS[1])
if not there then return 0 end
local id, fence = string.match(there, '^(%x+)\\n(%d+)\\n')
if id ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('SET', KEYS[2], ARGV[2] .. '\\n' .. fence .. '\\n' .. ARGV[3], 'PX', ARGV[4])
redis.call('PUBLISH', ARGV[5], ARGV[6] .. '\\n' .. fence .. '\\n' .. ARGV[3])
return 1
""")
# KEYS: lease, end
_LOOK = Script(
    "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[2])}"
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lease as it stood a moment ago, and how the one before it ended."""

    fence: int  # 0: nobody has it
    busy: Busy | None
    note: tuple[int, Ended] | None  # of which fence


@dataclass(slots=True, eq=False)
class _Waiter:
    """One wait."""

    ended: asyncio.Future[Ended]
    fence: int = 0  # of the lease that it waits for; 0: it is only looking yet
    heard: dict[int, Ended] = field(default_factory=dict)  # meanwhile


class RedisLeaseBoard:
    """Leases in one Redis. On one event loop."""

    def __init__(self, link: RedisLink) -> None:
        """The link stays its owner's."""
        self._link = link
        self._held: dict[str, tuple[str, float]] = {}  # id -> key, lifetime
        self._waiters: dict[str, set[_Waiter]] = {}
        self._lookers: dict[str, asyncio.Task[None]] = {}
        self._kick = asyncio.Event()  # look now
        self._listening = False

    async def acquire(
        self, key: str, holder: str, ttl_seconds: float, estimate_seconds: float
    ) -> Granted | Busy:
        if ttl_seconds <= 0:
            raise InvalidRequest(f"a lease needs a lifetime above 0 s, not {ttl_seconds:g}")
        self._listen()
        lease_id = secrets.token_hex(16)
        keys = [self._link.key(key, "lease"), self._link.key(key, "fence")]
        name = _one_line(holder)
        reply = await self._link.script(
            _ACQUIRE,
            keys,
            lease_id,
            _ms(ttl_seconds),
            repr(float(estimate_seconds)),
            name,
            _ms(FENCE_SECONDS),
        )
        if reply[0] == 1:
            self._held[lease_id] = (key, ttl_seconds)
            return Granted(Lease(lease_id, key, holder, int(reply[1]), ttl_seconds))
        return _read_lease(reply[1], reply[2])[1]

    async def current(self, key: str) -> Busy | None:
        return (await self._look(key)).busy

    async def holds(self, lease_id: str) -> bool:
        key, _ = self._held.get(lease_id, ("", 0.0))
        if not key:
            return False
        return bool(await self._link.script(_RENEW, [self._link.key(key, "lease")], lease_id, 0))

    async def renew(self, lease_id: str) -> float:
        key, ttl_seconds = self._mine(lease_id)
        names = [self._link.key(key, "lease")]
        if not await self._link.script(_RENEW, names, lease_id, _ms(ttl_seconds)):
            raise self._lost(lease_id)
        return ttl_seconds

    async def release(self, lease_id: str) -> None:
        await self._end(lease_id, Ended(End.RELEASED))

    async def fail(self, lease_id: str, failure: Failure) -> None:
        await self._end(lease_id, Ended(End.FAILED, failure))

    async def wait(self, key: str, max_seconds: float) -> Ended:
        self._listen()
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._waiters.setdefault(key, set()).add(waiter)  # first: then no message is missed
        try:
            seen = await self._look(key)
            if seen.busy is None:
                return Ended(End.RELEASED)
            if seen.fence in waiter.heard:
                return waiter.heard[seen.fence]
            waiter.fence = seen.fence
            if max_seconds <= 0:
                return Ended(End.TIMEOUT)
            if key not in self._lookers:
                looker = self._watch(key, seen.busy.expires_in_seconds)
                self._lookers[key] = asyncio.create_task(looker)
            try:
                async with asyncio.timeout(max_seconds):
                    return await waiter.ended
            except TimeoutError:
                return Ended(End.TIMEOUT)
        finally:
            waiters = self._waiters.get(key, set())
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(key, None)
                if key in self._lookers:
                    self._lookers.pop(key).cancel()

    async def close(self) -> None:
        for lease_id in tuple(self._held):
            with suppress(LeaseLost, TierError):
                await self.release(lease_id)
        self._held.clear()
        self._wake(lambda key, waiter: Ended(End.RELEASED))

    # --- ending --------------------------------------------------------------------------------

    def _mine(self, lease_id: str) -> tuple[str, float]:
        if lease_id not in self._held:
            raise self._lost(lease_id)
        return self._held[lease_id]

    def _lost(self, lease_id: str) -> LeaseLost:
        self._held.pop(lease_id, None)
        return LeaseLost("the lease is over: it expired, or was released or failed before")

    async def _end(self, lease_id: str, ended: Ended) -> None:
        key, _ = self._mine(lease_id)
        done = await self._link.script(
            _END,
            [self._link.key(key, "lease"), self._link.key(key, "end")],
            lease_id,
            secrets.token_hex(8),
            _write_end(ended),
            _ms(NOTE_SECONDS),
            self._link.channel("ends"),
            key,
        )
        if not done:
            raise self._lost(lease_id)
        del self._held[lease_id]

    # --- waiting -------------------------------------------------------------------------------

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._link.listen(self._link.channel("ends"), self._heard, self._kick.set)

    def _heard(self, message: bytes) -> None:
        try:
            key, fence, text = message.decode().split("\n", 2)
            number, ended = int(fence), _read_end(text)
        except ValueError as exc:
            log.warning("redis: a message on leases that can't be read: %s", exc)
            return
        for waiter in tuple(self._waiters.get(key, ())):
            if not waiter.fence:
                waiter.heard[number] = ended
            elif waiter.fence == number:
                _set(waiter, ended)

    async def _watch(self, key: str, left_seconds: float) -> None:
        """Look at a lease that is waited for: now and then, when it would be over, and when messages may be lost."""
        while True:
            pause = min(LOOK_SECONDS, max(0.0, left_seconds) + LATE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._kick.wait()
            self._kick.clear()
            try:
                seen = await self._look(key)
            except TierError as exc:
                self._lookers.pop(key, None)
                for waiter in tuple(self._waiters.get(key, ())):
                    if waiter.fence and not waiter.ended.done():
                        waiter.ended.set_exception(exc)
                return
            left_seconds = seen.busy.expires_in_seconds if seen.busy else 0.0
            for waiter in tuple(self._waiters.get(key, ())):
                if waiter.fence and waiter.fence != seen.fence:
                    known = seen.note is not None and seen.note[0] == waiter.fence
                    _set(waiter, seen.note[1] if known and seen.note else Ended(End.EXPIRED))

    def _wake(self, how: Callable[[str, _Waiter], Ended]) -> None:
        for key, waiters in tuple(self._waiters.items()):
            for waiter in tuple(waiters):
                _set(waiter, how(key, waiter))

    async def _look(self, key: str) -> _Seen:
        names = [self._link.key(key, "lease"), self._link.key(key, "end")]
        lease, left_ms, note = await self._link.script(_LOOK, names)
        fence, busy = 0, None
        with suppress(ValueError):  # what can't be read is nobody's
            fence, busy = _read_lease(lease or b"", left_ms)
        with suppress(ValueError):
            _, ended_fence, text = (note or b"").decode().split("\n", 2)
            return _Seen(fence, busy, (int(ended_fence), _read_end(text)))
        return _Seen(fence, busy, None)


def _set(waiter: _Waiter, ended: Ended) -> None:
    if not waiter.ended.done():
        waiter.ended.set_result(ended)


def _read_lease(lease: bytes, left_ms: int) -> tuple[int, Busy]:
    lease_id, fence, _, estimate, holder = lease.decode().split("\n", 4)
    if len(lease_id) != 32:
        raise ValueError("no id of a lease")
    return int(fence), Busy(holder, max(0.0, left_ms / 1000), float(estimate))


def _write_end(ended: Ended) -> str:
    if ended.failure is None:
        return f"{ended.why.value}\n\n"
    return (
        f"{ended.why.value}\n{_one_line(ended.failure.kind)}\n{ended.failure.message[:MOST_TEXT]}"
    )


def _read_end(text: str) -> Ended:
    why, kind, message = text.split("\n", 2)
    return Ended(End(why), Failure(kind, message) if kind else None)


def _one_line(text: str) -> str:
    return text.replace("\n", " ")[:MOST_TEXT]


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
