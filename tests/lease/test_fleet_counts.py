"""Sums over daemons: each adds once what it counted, whatever gets lost on the way."""

from __future__ import annotations

import pytest
from fault_proxy import FaultProxy
from redis_server import RedisServer, redis_link

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.lease.fleet_counts import FleetCounts


async def test_two_daemons_add_up(shared_redis: RedisServer) -> None:
    first = redis_link(shared_redis)
    second = redis_link(shared_redis, prefix=first.place.prefix)
    mine, theirs = {"compiles": 3.0, "compile_seconds": 1.5}, {"compiles": 4.0}
    one, two = FleetCounts(first, lambda: mine), FleetCounts(second, lambda: theirs)
    await one.push()
    await two.push()
    mine["compiles"] = 5.0
    for _ in range(3):  # what did not grow adds nothing
        await one.push()
    await two.push()
    assert one.sums == two.sums == {"compiles": 9.0, "compile_seconds": 1.5}
    await first.close()
    await second.close()


@pytest.mark.parametrize("after_bytes", [0, 3, 40])
async def test_a_lost_reply_is_not_counted_twice(
    shared_redis: RedisServer, after_bytes: int
) -> None:
    with FaultProxy(("127.0.0.1", shared_redis.port)) as proxy:
        link = redis_link(shared_redis, proxy.port)
        counted = {"compiles": 1.0}
        fleet = FleetCounts(link, lambda: counted)
        await fleet.push()
        counted["compiles"] = 10.0
        proxy.cut(after_bytes)
        await fleet.push()
        counted["compiles"] = 11.0
        await fleet.push()
        await fleet.push()
        assert fleet.sums == {"compiles": 11.0}
        await link.close()


async def test_an_outage_is_caught_up(shared_redis: RedisServer) -> None:
    with FaultProxy(("127.0.0.1", shared_redis.port)) as proxy:
        link = redis_link(shared_redis, proxy.port)
        counted = {"compiles": 1.0}
        fleet = FleetCounts(link, lambda: counted)
        proxy.refuse()
        await fleet.push()
        counted["compiles"] = 7.0
        await fleet.push()
        assert fleet.sums == {}
        proxy.heal()
        link._down = None  # it need not be waited for here
        await fleet.push()
        await fleet.push()
        assert fleet.sums == {"compiles": 7.0}
        await link.close()
