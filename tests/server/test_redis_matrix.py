"""What each fault of a Redis does to each verb of a daemon that keeps artifacts and leases in it.

CELLS is the matrix: data, each line of which is run here and printed in tests/README.md. A daemon's parts are put
together as app.py does, in this process, over a real redis-server behind a proxy that fails on demand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest
from failure_matrix import Cell, cells_of, complete, table, to_run
from failure_world import SOON, FailureWorld, check
from fault_proxy import FaultProxy
from redis_server import RedisServer, redis_link, redis_tier

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.artifact import MAGIC
from coldstart.errors import TierError
from coldstart.lease.board import Granted, LeaseBoard
from coldstart.lease.redis import RedisLeaseBoard
from coldstart.store.redis_url import RedisStore, open_redis

SILENT_SECONDS = 0.6  # deadline of a small call here
OTHERS_SECONDS = 1.0

redis = cells_of("redis")
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
RUN = to_run(CELLS)


class RedisWorld(FailureWorld):
    """Memory and a Redis behind a proxy; another daemon reaches the same Redis without it."""

    place, no_room_words = "redis", "no room"

    def __init__(self, server: RedisServer, proxy: FaultProxy, made: Any) -> None:
        super().__init__(made)
        self.server, self.proxy = server, proxy
        self.admin = server.client()
        self._undo = ExitStack()
        self.other = redis_tier(server, place={"prefix": "coldstart"})
        store = RedisStore(
            "127.0.0.1",
            proxy.port,
            connect_seconds=SILENT_SECONDS,
            reply_seconds=SILENT_SECONDS,
        )
        self.tier = open_redis(store, self.counts, {})
        self.link = self.tier.link
        self.others_link = redis_link(server, prefix="coldstart")
        self.others = RedisLeaseBoard(self.others_link)
        self.assemble(self.above(self.tier), fleet=RedisLeaseBoard(self.link))

    async def close(self) -> None:
        await super().close()
        await self.others_link.close()
        self.admin.close()

    async def ready(self) -> None:
        await self.tier.find(f"cs1-{'0' * 64}")  # a connection is open

    async def ready_to_lease(self) -> None:
        warm = await self.board.acquire("warm", "me", SOON, 0)
        assert isinstance(warm, Granted)
        channel = self.link.channel("ends")
        await self.until(lambda: self.admin.pubsub_numsub(channel)[0][1] > 0)

    async def damage(self, fault: str) -> None:
        admin = self.admin
        (chunk,) = admin.keys("*:bytes:*")
        index = self.link.key(self.key, "index")
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
            another = self.made.artifact(self.made.record("another")).header
            admin.hset(index, "-", place + b"\n" + another.prefix())
        else:
            assert fault == "old format" and MAGIC == b"CSA1"
            admin.hset(index, "-", admin.hget(index, "-").replace(MAGIC, b"CSA0"))

    def disturb(self, fault: str, verb: str) -> None:
        proxy, admin = self.proxy, self.admin
        if fault in ("refused", "back again"):
            proxy.refuse()
        elif fault == "slow":
            proxy.slow(delay_seconds=0.05)
        elif fault == "black hole":
            proxy.black_hole()
            self._undo.callback(proxy.drop)  # what it swallowed must not come late
        elif fault == "full":
            admin.config_set("maxmemory-policy", "noeviction")
            admin.config_set("maxmemory", "1")
        elif fault == "read-only":
            admin.execute_command("REPLICAOF", "127.0.0.1", "1")  # of nobody: what it has stays
        else:
            assert fault == "lost mid-read"
            # Not the reply to a subscription, which may still be under way.
            proxy.cut(after_bytes=2, asked_since=True)

    def heal(self) -> None:
        self._undo.close()
        self.proxy.heal()
        self.admin.config_set("maxmemory", "0")
        self.admin.execute_command("REPLICAOF", "NO", "ONE")

    async def recover(self) -> None:
        with pytest.raises(TierError):
            await self.tier.find(self.key)
        assert self.tier.trouble.startswith("down for")
        self.proxy.heal()
        await self.until(lambda: self.link.up)

    def holds_nothing(self) -> bool:
        return not self.admin.keys("*:index") and not self.admin.keys("*:bytes:*")

    def other_board(self) -> LeaseBoard:
        return self.others

    async def damage_lease(self, fault: str, fence: int) -> None:
        admin, name = self.admin, self.link.key(self.key, "lease")
        value = admin.get(name)
        if fault == "wrong size":
            admin.append(name, b"more")
        elif fault == "wrong key":
            elsewhere = await self.others.acquire("elsewhere", "other", OTHERS_SECONDS, 0)
            assert isinstance(elsewhere, Granted)
            admin.copy(self.link.key("elsewhere", "lease"), name, replace=True)
        else:
            short = value[: len(value) // 4]
            bad = short if fault == "truncated" else value.replace(b"\n", b"\x0b", 1)
            admin.set(name, bad, keepttl=True)


@pytest.fixture
async def world(redis_server: RedisServer, made: Any) -> AsyncIterator[RedisWorld]:
    async with AsyncExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(("127.0.0.1", redis_server.port)))
        one = RedisWorld(redis_server, proxy, made)
        stack.push_async_callback(one.close)
        stack.callback(one.heal)  # first of all: closing waits for answers
        yield one


@pytest.mark.parametrize("cell", RUN, ids=str)
async def test_cell(world: RedisWorld, cell: Cell) -> None:
    await check(world, cell)


def test_no_pair_is_missing_and_few_are_not_applicable() -> None:
    assert complete(CELLS, "redis") and len(RUN) == 49
    lines = table(CELLS)
    assert len(lines) == 2 + 13 and all(line.count("|") == 7 for line in lines)
