"""The Redis board beyond the contract: messages and looks behind them, lost replies, damage, an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fault_proxy import FaultProxy
from redis_server import RedisServer, redis_link

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.errors import LeaseLost, TierError
from coldstart.lease import redis as module
from coldstart.lease.board import (
    Busy,
    End,
    Ended,
    Failure,
    Granted,
    Lease,
    MemoryLeaseBoard,
)
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.lease.redis import RedisLeaseBoard

SOON = 10.0
LONG = 30.0


@pytest.fixture
async def new_board(shared_redis: RedisServer) -> AsyncIterator[Callable[..., RedisLeaseBoard]]:
    """Boards of one fleet; each over a link of its own."""
    prefix = redis_link(shared_redis).place.prefix
    links = []

    def make(port: int = 0, **place: Any) -> RedisLeaseBoard:
        links.append(redis_link(shared_redis, port, prefix=prefix, **place))
        return RedisLeaseBoard(links[-1])

    yield make
    for link in links:
        await link.close()


async def granted(board: Any, key: str = "k", seconds: float = LONG) -> Lease:
    answer = await board.acquire(key, "one", seconds, 60)
    assert isinstance(answer, Granted), answer
    return answer.lease


async def waiting(board: Any, key: str = "k") -> asyncio.Task[Ended]:
    task = asyncio.ensure_future(board.wait(key, LONG))
    await asyncio.sleep(0.2)
    assert not task.done()
    return task


async def soon(task: asyncio.Task[Ended]) -> Ended:
    async with asyncio.timeout(SOON):
        return await task


@pytest.mark.parametrize("how", ["released", "failed"])
async def test_messages_alone_wake_waiters(
    new_board: Callable[..., RedisLeaseBoard], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 1000.0)
    here, there = new_board(), new_board()
    lease, failure = await granted(here), Failure("negative-oom", "no HBM")
    task = await waiting(there)
    await (here.release(lease.id) if how == "released" else here.fail(lease.id, failure))
    ended = Ended(End.RELEASED) if how == "released" else Ended(End.FAILED, failure)
    assert await soon(task) == ended


@pytest.mark.parametrize("how", ["released", "failed"])
async def test_looks_alone_wake_waiters_with_the_reason(
    new_board: Callable[..., RedisLeaseBoard], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A message may be lost: a note says for a while how it ended."""
    monkeypatch.setattr(RedisLeaseBoard, "_heard", lambda self, message: None)
    here, there = new_board(), new_board()
    lease, failure = await granted(here), Failure("negative-oom", "no HBM")
    task = await waiting(there)
    await (here.release(lease.id) if how == "released" else here.fail(lease.id, failure))
    await granted(new_board())  # the next one has it by then: the note is about the one before
    ended = Ended(End.RELEASED) if how == "released" else Ended(End.FAILED, failure)
    assert await soon(task) == ended


async def test_messages_that_mean_nothing_harm_nobody(
    new_board: Callable[..., RedisLeaseBoard], shared_redis: RedisServer
) -> None:
    here, there = new_board(), new_board()
    lease = await granted(here)
    task = await waiting(there)
    with shared_redis.client() as admin:
        for message in (
            b"",
            b"\xff",
            b"k\nx\nreleased\n\n",
            b"k\n1\nreleased\n\n",
            b"k\n1\nwhat\n\n",
        ):
            admin.publish(here._link.channel("ends"), message)
    await asyncio.sleep(0.1)
    assert not task.done()
    await here.release(lease.id)
    assert await soon(task) == Ended(End.RELEASED)


@pytest.mark.parametrize("after_bytes", [0, 1, 5, 12])
async def test_a_lost_reply_changes_nothing(
    new_board: Callable[..., RedisLeaseBoard], shared_redis: RedisServer, after_bytes: int
) -> None:
    """Each call is made again where its connection broke, and must come to the same."""
    with FaultProxy(("127.0.0.1", shared_redis.port)) as proxy:
        board, other = new_board(proxy.port), new_board()
        monkey_listen(board)
        await board.current("warm")
        proxy.cut(after_bytes)
        lease = await granted(board)
        proxy.cut(after_bytes)
        assert await board.renew(lease.id) == LONG
        task = await waiting(other)
        proxy.cut(after_bytes)
        await board.release(lease.id)
        assert await soon(task) == Ended(End.RELEASED)
        with pytest.raises(LeaseLost):
            await board.release(lease.id)
        later = await granted(other)
        assert later.fence > lease.fence


def monkey_listen(board: RedisLeaseBoard) -> None:
    """No subscription: its bytes would be counted too."""
    board._listening = True


async def test_a_lease_that_never_ends_or_means_nothing_stops_nobody(
    new_board: Callable[..., RedisLeaseBoard], shared_redis: RedisServer
) -> None:
    board = new_board()
    with shared_redis.client() as admin:
        for n, bad in enumerate((b"", b"x", b"\xff\n1\n1\n1\nme", b"ab\n1\n1000\n0.0\nshort id")):
            admin.set(board._link.key(f"k{n}", "lease"), bad, px=60_000)
            assert await board.current(f"k{n}") is None
            await granted(board, f"k{n}")
        held = await granted(board, "kept")
        admin.persist(board._link.key("kept", "lease"))  # no lifetime any more
        assert isinstance(await new_board().acquire("kept", "two", LONG, 0), Granted)
        with pytest.raises(LeaseLost):
            await board.renew(held.id)


async def test_a_full_server_still_ends_leases(
    redis_servers: Callable[..., RedisServer],
) -> None:
    server = redis_servers(maxmemory_policy="noeviction")
    here, there = redis_link(server), redis_link(server)
    there.place = here.place
    one, two = RedisLeaseBoard(here), RedisLeaseBoard(there)
    lease = await granted(one)
    task = await waiting(two)
    with server.client() as admin:
        admin.config_set("maxmemory", "1")
        with pytest.raises(TierError):
            await one.acquire("other", "me", LONG, 0)
        assert await one.renew(lease.id) == LONG
        await one.fail(lease.id, Failure("crash", "gone"))
        assert await soon(task) == Ended(End.FAILED, Failure("crash", "gone"))
    await here.close()
    await there.close()


async def test_waiters_learn_that_the_server_is_gone(
    redis_servers: Callable[..., RedisServer],
) -> None:
    server = redis_servers()
    link = redis_link(server)
    board = RedisLeaseBoard(link)
    await granted(board)
    task = await waiting(board)
    server.stop()
    with pytest.raises(TierError):
        await soon(task)
    await link.close()


async def test_over_a_fleet_board_an_outage_costs_nothing_within_a_daemon(
    redis_servers: Callable[..., RedisServer],
) -> None:
    server = redis_servers()
    first = redis_link(server)
    links = [first, redis_link(server, prefix=first.place.prefix)]
    told: list[list[str]] = [[], []]
    boards = [
        FleetLeaseBoard(RedisLeaseBoard(link), MemoryLeaseBoard(), on_change=said.append)
        for link, said in zip(links, told, strict=True)
    ]
    here, there = boards
    lease = await granted(here)
    tasks = [await waiting(here), await waiting(there)]
    server.stop()
    assert await soon(tasks[1]) == Ended(End.RELEASED)  # ask again
    assert await here.renew(lease.id) == LONG  # nobody is robbed by an outage
    assert isinstance(await here.acquire("k", "two", LONG, 0), Busy)
    theirs = await granted(there)  # one compile a daemon
    assert isinstance(await there.acquire("k", "two", LONG, 0), Busy)
    assert here.trouble and there.trouble
    server.start()
    async with asyncio.timeout(SOON):
        while not all(link.up for link in links):
            await asyncio.sleep(0.02)
    assert await here.renew(lease.id) == LONG  # taken anew at the fleet's board
    assert await there.renew(theirs.id) == LONG  # busy there: it goes on by itself
    assert not here.trouble and not there.trouble and [said[-1] for said in told] == ["", ""]
    await here.release(lease.id)
    assert await soon(tasks[0]) == Ended(End.RELEASED)
    assert await there.renew(theirs.id) == LONG
    third = await here.acquire("k", "three", LONG, 0)
    assert (
        isinstance(third, Busy) and third.holder == "one"
    )  # now the other daemon's is the fleet's
    await there.release(theirs.id)
    for board in boards:
        await board.close()
    for link in links:
        await link.close()


async def test_a_lease_that_went_to_another_daemon_is_lost(
    new_board: Callable[..., RedisLeaseBoard], shared_redis: RedisServer
) -> None:
    """The fleet's board forgot it, and somebody was faster."""
    one, other = FleetLeaseBoard(new_board(), MemoryLeaseBoard()), new_board()
    lease = await granted(one)
    task = await waiting(one)
    with shared_redis.client() as admin:
        admin.delete(other._link.key("k", "lease"))
    await granted(other)
    with pytest.raises(LeaseLost, match="went to one"):
        await one.renew(lease.id)
    assert (await soon(task)).why is End.RELEASED
    assert isinstance(await one.acquire("k", "two", LONG, 0), Busy)
    await one.close()
