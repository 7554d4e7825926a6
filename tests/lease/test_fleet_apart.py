"""Leases that end here before they end for the fleet, and those that are never the fleet's."""

from __future__ import annotations

import asyncio

import pytest

from coldstart.errors import LeaseLost
from coldstart.lease.board import Busy, End, Ended, Failure, Granted, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard

TTL_SECONDS = 20.0


class Board:
    """One daemon's, over the fleet's."""

    def __init__(self) -> None:
        self.fleet = MemoryLeaseBoard()
        self.mine = FleetLeaseBoard(self.fleet, MemoryLeaseBoard())

    async def take(self, key: str, *, alone: bool = False) -> str:
        granted = await self.mine.acquire(key, "me", TTL_SECONDS, 0, alone=alone)
        assert isinstance(granted, Granted)
        return granted.lease.id


async def test_done_here_is_not_done_elsewhere() -> None:
    board = Board()
    lease_id = await board.take("k")
    here = asyncio.create_task(board.mine.wait("k", 20))
    there = asyncio.create_task(board.fleet.wait("k", 20))
    await asyncio.sleep(0)
    await board.mine.done_here(lease_id)
    assert await here == Ended(End.RELEASED) and not there.done()
    assert await board.mine.holds(lease_id) and len(board.mine) == 0
    assert await board.mine.renew(lease_id) == TTL_SECONDS
    again = await board.mine.acquire("k", "another", TTL_SECONDS, 0)
    assert isinstance(again, Busy) and again.holder == "me"
    why = Failure("too-small", "it stays here")
    await board.mine.release(lease_id, why)
    assert await there == Ended(End.FAILED, why)
    assert not await board.mine.holds(lease_id)
    for late in (board.mine.renew(lease_id), board.mine.release(lease_id)):
        with pytest.raises(LeaseLost):
            await late


async def test_what_the_fleet_lost_meanwhile_is_lost() -> None:
    board = Board()
    lease_id = await board.take("k")
    await board.mine.done_here(lease_id)
    (fleets,) = board.fleet._by_id
    await board.fleet.release(fleets)
    assert isinstance(await board.fleet.acquire("k", "they", TTL_SECONDS, 0), Granted)
    with pytest.raises(LeaseLost, match="they"):
        await board.mine.renew(lease_id)
    assert not await board.mine.holds(lease_id)


async def test_a_lease_alone_never_asks_the_fleet() -> None:
    board = Board()
    assert isinstance(await board.fleet.acquire("k", "they", TTL_SECONDS, 0), Granted)
    assert isinstance(await board.mine.acquire("k", "me", TTL_SECONDS, 0), Busy)
    lease_id = await board.take("k", alone=True)
    second = await board.mine.acquire("k", "another", TTL_SECONDS, 0, alone=True)
    assert isinstance(second, Busy) and second.holder == "me"  # one compile a host
    assert await board.mine.renew(lease_id) == TTL_SECONDS
    await board.mine.release(lease_id)
    other = await board.take("free", alone=True)
    assert await board.mine.renew(other) == TTL_SECONDS
    assert await board.fleet.current("free") is None  # not even at a heartbeat
    busy = await board.fleet.current("k")
    assert busy is not None and busy.holder == "they"


async def test_leases_that_are_done_here_are_not_forgotten_for_room() -> None:
    board = Board()
    done = await board.take("done")
    await board.mine.done_here(done)
    for n in range(100):
        lease_id = await board.take(f"k{n}")
        await board.mine.release(lease_id)
        other = await board.take(f"x{n}")
        await board.mine._local.release(other)  # as one that ran out
    assert await board.mine.holds(done)
    await board.mine.release(done)
    assert await board.fleet.current("done") is None
