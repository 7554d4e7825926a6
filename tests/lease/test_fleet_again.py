"""A fleet that needs no lease learns all the same that its board answers again."""

from __future__ import annotations

import asyncio

import pytest
from fault_proxy import FaultProxy
from redis_server import RedisServer, redis_link

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.lease import fleet as fleet_module
from coldstart.lease.board import MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.lease.redis import RedisLeaseBoard


async def test_leases_are_the_fleets_again_though_nobody_asks_for_one(
    shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_SECONDS", 0.05)
    told: list[str] = []
    with FaultProxy(("127.0.0.1", shared_redis.port)) as proxy:
        link = redis_link(shared_redis, proxy.port)
        board = FleetLeaseBoard(RedisLeaseBoard(link), MemoryLeaseBoard(), on_change=told.append)
        proxy.refuse()
        await board.acquire("k", "me", 5.0, 0)
        assert board.trouble and len(told) == 1
        proxy.heal()
        async with asyncio.timeout(20):
            while board.trouble:
                await asyncio.sleep(0.02)
        assert told[1:] == [""]
        await board.close()
        await link.close()
