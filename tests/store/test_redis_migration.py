"""A slot of a Redis cluster on its way between nodes: everything about it can be had, now or a moment later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis_server import RedisServer, redis_tier, two_nodes

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart import redis_link
from coldstart.artifact import Artifact, verify
from coldstart.errors import TierError
from coldstart.lease.board import Busy, Granted, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.lease.redis import RedisLeaseBoard
from coldstart.redis_link import Script
from coldstart.store.redis import CHUNK_BYTES, RedisTier

NewArtifact = Callable[..., Artifact]
LARGE = b"chunks" * (CHUNK_BYTES // 4)
COUNT = Script(
    "local n = 0 for _, k in ipairs(KEYS) do n = n + redis.call('EXISTS', k) end return n"
)


class Moving:
    """A tier on a cluster whose slot of one key is moved by hand. `source` has it first."""

    def __init__(self, nodes: list[RedisServer], tier: RedisTier, key: str) -> None:
        self.tier, self.key = tier, key
        clients = [node.client() for node in nodes]
        self.slot = clients[0].execute_command("CLUSTER", "KEYSLOT", self.name("index"))
        first = 0 if self.slot < 8192 else 1
        self.source, self.target = clients[first], clients[1 - first]
        self.target_port = nodes[1 - first].port
        self.ids = [
            client.execute_command("CLUSTER", "MYID") for client in (self.source, self.target)
        ]

    def name(self, part: str) -> str:
        return self.tier.link.key(self.key, part)

    def begin(self) -> None:
        self.target.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.ids[0])
        self.source.execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.ids[1])

    def move(self, *names: str) -> None:
        """All that is there, unless named."""
        every = self.source.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 100)
        place = ("MIGRATE", "127.0.0.1", self.target_port, "", 0, 5000, "KEYS")
        self.source.execute_command(*place, *(names or every))

    def end(self) -> None:
        for client in (self.target, self.source):
            client.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", self.ids[1])

    def close(self) -> None:
        self.source.close()
        self.target.close()


@pytest.fixture
async def moving(
    redis_servers: Callable[..., RedisServer], new_artifact: NewArtifact
) -> AsyncIterator[Moving]:
    nodes = two_nodes(redis_servers)
    tier = redis_tier(nodes[0])
    made = Moving(nodes, tier, new_artifact("a").header.key)
    yield made
    made.close()
    await tier.close()


async def bytes_of(tier: RedisTier, made: Artifact) -> bytes | None:
    got = await tier.get(made.header.key, made.header.digest)
    return None if got is None else verify(got)


async def test_a_slot_on_its_way(
    moving: Moving, new_artifact: NewArtifact, new_record: Any
) -> None:
    tier, link, made = moving.tier, moving.tier.link, new_artifact("a", LARGE)
    board = RedisLeaseBoard(link)
    await tier.put(made, new_record("a"))
    held = await board.acquire(moving.key, "us", 60, 0)
    assert isinstance(held, Granted)
    moving.begin()
    assert await bytes_of(tier, made) == LARGE  # nothing is there yet: the old node answers
    # A new key: the old node sends us on, and the new one lets in who says that it was sent.
    await link.call("SET", moving.name("new"), b"x" * 10)
    assert moving.source.execute_command("DBSIZE") == 6  # index, record, 2 chunks, lease, fence
    assert moving.target.execute_command("DBSIZE") == 1
    assert await link.call("GET", moving.name("new")) == b"x" * 10
    assert await link.script(COUNT, [moving.name("new")]) == 1  # a script that node doesn't know
    home = dict(link._home)
    # Some of a command's keys are here and some there: it is asked again until they are together.
    moving.move(moving.name("index"), moving.name("lease"))
    assert await tier.link.call("EXISTS", moving.name("index")) == 1
    reading = asyncio.create_task(bytes_of(tier, made))
    renewing = asyncio.create_task(board.renew(held.lease.id))
    await asyncio.sleep(0.1)
    assert not reading.done()
    moving.move()
    assert await reading == LARGE and await renewing == 60
    # All is there, and the slot still isn't: every command is sent on, scripts and failures too.
    assert await bytes_of(tier, made) == LARGE and await tier.record(moving.key) == new_record("a")
    assert await board.renew(held.lease.id) == 60
    with pytest.raises(TierError, match="not an integer"):
        await link.call("INCR", moving.name("new"))
    assert link._home == home  # a slot that is on its way lives where it did
    moving.end()
    assert isinstance(await board.current(moving.key), Busy)
    await board.release(held.lease.id)
    assert await bytes_of(tier, made) == LARGE and link._home[moving.slot][1] == moving.target_port
    assert isinstance(await board.acquire(moving.key, "us", 60, 0), Granted)
    assert await tier.delete(moving.key, made.header.digest)
    await board.close()
    assert link.up and link.trouble == ""


async def test_what_cannot_be_answered_on_the_way_is_nobodys_outage(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new lease is several keys, none of which is there: such a slot gives none until it has arrived."""
    link = moving.tier.link
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    board = FleetLeaseBoard(RedisLeaseBoard(link), MemoryLeaseBoard())
    moving.begin()
    monkeypatch.setattr(redis_link.asyncio, "sleep", counted)
    mine = await board.acquire(moving.key, "us", 60, 0)
    assert isinstance(mine, Granted) and "being moved" in board.trouble
    assert pauses == sorted(pauses) and 3 <= len(pauses) < 10 and sum(pauses) < 1.1
    assert link.up and link.trouble == ""
    moving.end()
    assert await board.renew(mine.lease.id) == 60 and board.trouble == ""
    assert isinstance(await RedisLeaseBoard(link).acquire(moving.key, "they", 60, 0), Busy)
    await board.close()
