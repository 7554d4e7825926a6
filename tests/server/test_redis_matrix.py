"""What each fault of a Redis does to each verb of a daemon that keeps artifacts and leases in it.

CELLS is the matrix: data, each line of which is run here and printed in tests/README.md. A daemon's parts are put
together as app.py does, in this process, over a real redis-server behind a proxy that fails on demand.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from failure_matrix import Cell, NotApplicable, complete, table
from fault_proxy import FaultProxy
from redis_server import RedisServer, redis_link, redis_tier

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.artifact import MAGIC, verify
from coldstart.config import DaemonConfig
from coldstart.errors import ArtifactCorrupt, TierError
from coldstart.identity.key import key_of
from coldstart.lease.board import Busy, End, Granted, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.lease.redis import RedisLeaseBoard
from coldstart.outcomes import TROUBLE, Outcome, Reason
from coldstart.server.answers import Asker, Hit, Leased
from coldstart.server.holdings import Holdings, OperationCounts, Place
from coldstart.server.lookups import Lookups
from coldstart.server.publisher import Publication, reason_of
from coldstart.server.tally import Tally
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier
from coldstart.store.redis_url import RedisStore, open_redis
from coldstart.store.wrap import Metered

SOON = 20.0
SILENT_SECONDS = 0.6  # deadline of a small call here
LEASE_SECONDS = 5.0


def redis(
    fault: str, verb: str, outcome: str, reason: str = "", counter: str = ""
) -> Cell | NotApplicable:
    if outcome == "n/a":
        return NotApplicable("redis", fault, verb, reason)
    return Cell("redis", fault, verb, outcome, reason, counter)


# A lookup that ends in a lease was answered so because this daemon goes on by itself. "later": published here, and in
# Redis once it can be. A lease is the fleet's, this daemon's own ("alone"), or somebody else's ("busy").
CELLS = (
    redis("refused", "lookup", "error", "tier-down", "redis.find.error"),
    redis("refused", "fetch", "error", "tier-down", "redis.get.error"),
    redis("refused", "publish", "later", "ok", "redis.put.open"),
    redis("refused", "lease", "alone", "tier-down", "leases.alone"),
    redis("slow", "lookup", "hit", "ok", "redis.find.hit"),
    redis("slow", "fetch", "hit", "ok", "redis.get.hit"),
    redis("slow", "publish", "stored", "ok", "redis.put.ok"),
    redis("slow", "lease", "fleet", "ok", "leases.fleet"),
    redis("black hole", "lookup", "timeout", "deadline", "redis.find.timeout"),
    redis("black hole", "fetch", "timeout", "deadline", "redis.get.timeout"),
    redis("black hole", "publish", "later", "ok", "redis.put.open"),
    redis("black hole", "lease", "alone", "deadline", "leases.alone"),
    redis("full", "lookup", "n/a", "asking needs no room"),
    redis("full", "fetch", "hit", "ok", "redis.get.hit"),
    redis("full", "publish", "later", "ok", "redis.oom.full"),
    redis("full", "lease", "alone", "quota", "leases.alone"),
    redis("read-only", "lookup", "hit", "ok", "redis.find.hit"),
    redis("read-only", "fetch", "hit", "ok", "redis.get.hit"),
    redis("read-only", "publish", "later", "ok", "redis.put.error"),
    redis("read-only", "lease", "alone", "tier-down", "leases.alone"),
    redis("evicting", "lookup", "miss", "cold", "redis.heal.ok"),
    redis("evicting", "fetch", "miss", "evicted", "redis.heal.ok"),
    redis("evicting", "publish", "stored", "ok", "redis.heal.ok"),
    redis("evicting", "lease", "n/a", "leases have a lifetime of their own"),
    redis("truncated", "lookup", "error", "corrupt", "redis.get.corrupt"),
    redis("truncated", "fetch", "error", "corrupt", "redis.get.corrupt"),
    redis("truncated", "publish", "repaired", "ok", "redis.heal.corrupt"),
    redis("truncated", "lease", "fleet", "ok", "leases.fleet"),
    redis("bit-flipped", "lookup", "error", "corrupt", "redis.get.corrupt"),
    redis("bit-flipped", "fetch", "error", "corrupt", "redis.get.corrupt"),
    redis("bit-flipped", "publish", "repaired", "ok", "redis.heal.corrupt"),
    redis("bit-flipped", "lease", "fleet", "ok", "leases.fleet"),
    redis("wrong size", "lookup", "error", "corrupt", "redis.get.corrupt"),
    redis("wrong size", "fetch", "error", "corrupt", "redis.get.corrupt"),
    redis("wrong size", "publish", "repaired", "ok", "redis.heal.corrupt"),
    redis("wrong size", "lease", "busy", "ok", "leases.busy"),
    redis("wrong key", "lookup", "error", "corrupt", "redis.heal.ok"),
    redis("wrong key", "fetch", "miss", "corrupt", "redis.heal.ok"),
    redis("wrong key", "publish", "stored", "ok", "redis.heal.ok"),
    redis("wrong key", "lease", "busy", "ok", "leases.busy"),
    redis("old format", "lookup", "miss", "cold", "redis.heal.ok"),
    redis("old format", "fetch", "miss", "evicted", "redis.heal.ok"),
    redis("old format", "publish", "stored", "ok", "redis.heal.ok"),
    redis(
        "old format", "lease", "n/a", "a lease of another release is none, as if it were truncated"
    ),
    redis("lost mid-read", "lookup", "hit", "ok", "redis.retry.ok"),
    redis("lost mid-read", "fetch", "hit", "ok", "redis.retry.ok"),
    redis("lost mid-read", "publish", "stored", "ok", "redis.retry.ok"),
    redis("lost mid-read", "lease", "fleet", "ok", "redis.retry.ok"),
    redis("back again", "lookup", "hit", "ok", "redis.breaker.closed"),
    redis("back again", "fetch", "hit", "ok", "redis.breaker.closed"),
    redis("back again", "publish", "stored", "ok", "redis.breaker.closed"),
    redis("back again", "lease", "fleet", "ok", "leases.shared"),
)
RUN = [cell for cell in CELLS if isinstance(cell, Cell)]


class World:
    """A daemon's parts over memory and a Redis behind a proxy, and another daemon's tier in the same Redis."""

    _ids = itertools.count()

    def __init__(self, server: RedisServer, proxy: FaultProxy, made: Any) -> None:
        self.server, self.proxy, self.made = server, proxy, made
        self.admin = server.client()
        self.counts = tell = OperationCounts()
        self.other = redis_tier(server, place={"prefix": "coldstart"})
        store = RedisStore(
            "127.0.0.1",
            proxy.port,
            connect_seconds=SILENT_SECONDS,
            reply_seconds=SILENT_SECONDS,
        )
        self.redis = open_redis(store, tell, {})
        self.memory = MemoryTier()
        self.chain = ChainTier(
            [Metered(self.memory, tell), Metered(self.redis, tell)],
            recorder=tell,
            write_back_seconds=0.1,
        )
        places = [Place("memory", "memory://"), Place("redis", "redis://r")]
        self.holdings = Holdings(self.chain, None, tell, places)
        fleet = RedisLeaseBoard(self.redis.link)
        self.board = FleetLeaseBoard(fleet, MemoryLeaseBoard(), on_change=self._leases)
        self.tally = Tally()
        config = DaemonConfig(listen=("unix:///x",), store=("memory://",))
        self.lookups = Lookups(config, self.holdings, MemoryLeaseBoard(), self.tally)
        self.record = made.record("matrix")
        self.key = key_of(self.record)
        # Long enough for cuts and flips to hit the payload; not so long that anything takes its time.
        self.artifact = made.artifact(self.record, bytes(range(256)) * 400, codec="raw")
        self.digest = self.artifact.header.digest

    def _leases(self, words: str) -> None:
        self.counts("leases", "alone" if words else "shared", "", 0.0)

    def heal(self) -> None:
        self.proxy.heal()
        self.admin.config_set("maxmemory", "0")
        self.admin.execute_command("REPLICAOF", "NO", "ONE")

    async def close(self) -> None:
        await self.board.close()
        await self.chain.close()
        await self.other.close()
        self.admin.close()

    async def seed(self) -> None:
        """Another daemon published it."""
        assert await self.other.put(self.artifact, self.record) == self.artifact.header

    def asker(self) -> Asker:
        return Asker(lookup_id=f"matrix-{next(self._ids)}", holder="me")

    def count(self, counter: str) -> int:
        tier, op, *outcome = counter.split(".")
        return self.counts.operations[tier, op, outcome[0] if outcome else ""]

    def chunk(self) -> bytes:
        (name,) = self.admin.keys("*:bytes:*")
        return bytes(name)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not true():
                await asyncio.sleep(0.02)


@pytest.fixture
async def world(redis_server: RedisServer, made: Any) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(("127.0.0.1", redis_server.port)))
        one = World(redis_server, proxy, made)
        stack.push_async_callback(one.close)
        stack.callback(one.heal)  # first of all: closing waits for answers
        yield one


# --- the faults ----------------------------------------------------------------------------------------------


def at_rest(world: World, fault: str) -> None:
    """Damage to what is stored, behind the daemon's back."""
    admin, chunk = world.admin, world.chunk()
    index = world.redis.link.key(world.key, "index")
    value = admin.get(chunk)
    if fault == "evicting":
        admin.delete(chunk)
    elif fault == "truncated":
        admin.set(chunk, value[:500])
    elif fault == "bit-flipped":
        admin.setrange(chunk, 5000, bytes([value[5000] ^ 4]))
    elif fault == "wrong size":
        admin.append(chunk, b"more")
    elif fault == "wrong key":
        place = admin.hget(index, "-").partition(b"\n")[0]
        another = world.made.artifact(world.made.record("another")).header
        admin.hset(index, "-", place + b"\n" + another.prefix())
    else:
        assert fault == "old format" and MAGIC == b"CSA1"
        admin.hset(index, "-", admin.hget(index, "-").replace(MAGIC, b"CSA0"))


def on_the_way(world: World, fault: str) -> None:
    proxy, admin = world.proxy, world.admin
    if fault in ("refused", "back again"):
        proxy.refuse()
    elif fault == "slow":
        proxy.slow(delay_seconds=0.05)
    elif fault == "black hole":
        proxy.black_hole()
    elif fault == "full":
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", "1")
    elif fault == "read-only":
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")  # of nobody: what it has stays
    else:
        assert fault == "lost mid-read"
        # Not the reply to a subscription, which may still be under way.
        proxy.cut(after_bytes=2, asked_since=True)


AT_REST = ("evicting", "truncated", "bit-flipped", "wrong size", "wrong key", "old format")


async def recover(world: World) -> None:
    """It refused and was found down; now it is there again."""
    with pytest.raises(TierError):
        await world.redis.find(world.key)
    assert world.redis.trouble.startswith("down for")
    world.proxy.heal()
    await world.until(lambda: world.redis.link.up)


# --- the verbs -----------------------------------------------------------------------------------------------


async def lookup(world: World, fault: str) -> tuple[str, str]:
    await world.seed()
    await world.redis.find(f"cs1-{'0' * 64}")  # a connection is open already
    if fault in AT_REST:
        at_rest(world, fault)
    else:
        on_the_way(world, fault)
    if fault == "back again":
        await recover(world)
    answer = await world.lookups.ask_record(world.asker(), world.record)
    if isinstance(answer, Hit):
        assert answer.header == world.artifact.header and answer.tier == "redis"
        return "hit", "waited" if answer.waited else "ok"
    assert isinstance(answer, Leased), answer  # one of this daemon's clients compiles
    missed = answer.reason in (Reason.COLD, Reason.EVICTED)
    outcome = TROUBLE.get(answer.reason, Outcome.MISS if missed else Outcome.ERROR)
    return outcome.value, answer.reason.value


async def fetch(world: World, fault: str) -> tuple[str, str]:
    await world.seed()
    assert await world.holdings.find(world.key) == (world.artifact.header,)
    if fault in AT_REST:
        at_rest(world, fault)
    else:
        on_the_way(world, fault)
    if fault == "back again":
        await recover(world)
    try:
        got = await world.lookups.fetch("fetch", world.key, world.digest)
    except ArtifactCorrupt as exc:
        return "error", exc.reason
    except TierError as exc:
        reason = reason_of(exc)
        return TROUBLE[reason].value, reason.value
    if got is None:
        return "miss", "corrupt" if world.holdings.damaged(world.key) else "evicted"
    assert verify(got) == verify(world.artifact)
    return "hit", "ok"


async def publish(world: World, fault: str) -> tuple[str, str]:
    leased = None
    if fault in AT_REST:
        await world.seed()
        at_rest(world, fault)
    else:
        leased = await world.lookups.ask_record(world.asker(), world.record)
        on_the_way(world, fault)
    if fault == "back again":
        await recover(world)
    header = world.artifact.header
    publication = Publication(
        "other", leased.lease_id if leased else "", header, world.record, planned=False
    )
    published = await world.lookups.publish(publication, _chunks(world))
    assert published.digest == header.digest and published.kept_local is None
    assert await world.memory.find(world.key) == (header,)  # whatever became of Redis
    later = world.chain.late_puts > 0
    if later:
        assert not world.admin.keys("*:index") and not world.admin.keys("*:bytes:*")
        world.heal()
        await world.until(lambda: world.chain.late_puts == 0)
    got = await world.other.get(world.key, header.digest)
    assert got is not None and verify(got) and await world.other.record(world.key) == world.record
    if later:
        return "later", "ok"
    return "repaired" if world.count("redis.heal.corrupt") else "stored", "ok"


async def _chunks(world: World) -> AsyncIterator[bytes]:
    for chunk in world.artifact.payload.chunks():
        yield chunk


async def lease(world: World, fault: str) -> tuple[str, str]:
    key, admin = world.key, world.admin
    async with AsyncExitStack() as stack:
        link = redis_link(world.server, prefix="coldstart")
        stack.push_async_callback(link.close)
        other = RedisLeaseBoard(link)
        name = link.key(key, "lease")
        warm = await world.board.acquire("warm", "me", LEASE_SECONDS, 0)  # connections are open now
        assert isinstance(warm, Granted)
        channel = link.channel("ends")
        await world.until(lambda: world.admin.pubsub_numsub(channel)[0][1] > 0)
        if fault in AT_REST:
            held = await other.acquire(key, "other", 1.0, 0)
            assert isinstance(held, Granted)
            value = admin.get(name)
            if fault == "wrong size":
                admin.append(name, b"more")
            elif fault == "wrong key":
                elsewhere = await other.acquire("elsewhere", "other", 1.0, 0)
                assert isinstance(elsewhere, Granted)
                admin.copy(link.key("elsewhere", "lease"), name, replace=True)
            else:
                bad = (
                    value[: len(value) // 4]
                    if fault == "truncated"
                    else value.replace(b"\n", b"\x0b", 1)
                )
                admin.set(name, bad, keepttl=True)
        else:
            on_the_way(world, fault)
        answer = await world.board.acquire(key, "me", LEASE_SECONDS, 0)
        if isinstance(answer, Busy):
            assert answer.holder.startswith("other")
            world.counts("leases", "busy", "", 0.0)
            # It runs out, as nobody renews it.
            assert (await world.board.wait(key, SOON)).why is End.EXPIRED
            return "busy", "ok"
        again = await world.board.acquire(key, "another of this daemon", LEASE_SECONDS, 0)
        assert isinstance(again, Busy)  # whatever the fleet's board says, one compile here
        if fault == "back again":
            assert world.board.trouble
            world.proxy.heal()
            await world.until(lambda: world.redis.link.up)
            assert await world.board.renew(answer.lease.id) == LEASE_SECONDS
        if world.board.trouble:
            why = world.board.trouble
            word = (
                "deadline" if "no answer" in why else "quota" if "no room" in why else "tier-down"
            )
            world.heal()
            assert await other.current(key) is None  # the fleet knows nothing of it
            await world.board.release(answer.lease.id)
            return "alone", word
        seen = await other.acquire(key, "other", LEASE_SECONDS, 0)
        assert isinstance(seen, Busy) and seen.holder == "me"
        world.counts("leases", "fleet", "", 0.0)
        await world.board.release(answer.lease.id)
        assert await other.current(key) is None
    return "fleet", "ok"


DO: dict[str, Callable[[World, str], Awaitable[tuple[str, str]]]] = {
    "lookup": lookup,
    "fetch": fetch,
    "publish": publish,
    "lease": lease,
}


@pytest.mark.parametrize("cell", RUN, ids=str)
async def test_cell(world: World, cell: Cell) -> None:
    ended = await DO[cell.verb](world, cell.fault)
    seen = {".".join(key).rstrip("."): n for key, n in world.counts.operations.items() if n}
    assert ended == (cell.outcome, cell.reason), seen
    assert world.count(cell.counter) >= 1, seen


def test_no_pair_is_missing_and_few_are_not_applicable() -> None:
    assert complete(CELLS, "redis") and len(RUN) == 49
    lines = table(CELLS)
    assert len(lines) == 2 + 13 and all(line.count("|") == 7 for line in lines)
