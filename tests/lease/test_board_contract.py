"""board.py's contract, asked of every lease board alike, by two daemons that share it. In real time: a Redis has no
clock that tests could set. test_board.py asks the one in memory more closely.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from gcs_server import Cloud, cloud, gcs_process, open_bucket  # noqa: F401
from redis_server import RedisServer, redis_link

from coldstart.errors import InvalidRequest, LeaseLost
from coldstart.lease.board import (
    Busy,
    End,
    Ended,
    Failure,
    Granted,
    Lease,
    LeaseBoard,
    MemoryLeaseBoard,
)
from coldstart.lease.fleet import FleetLeaseBoard

LONG = 30.0  # a lease that doesn't end by itself here
SHORT, SHORT_IN_BUCKET = 1.0, 3.0  # ones that do
SOON = 10.0  # what is due at once has happened by then, however busy the machine is


@dataclass
class Boards:
    """Two daemons' boards; one and the same where a board is for one daemon."""

    here: LeaseBoard
    there: LeaseBoard
    short: float = (
        SHORT  # where a word takes several requests, they must fit into it on a busy machine
    )


Maker = Callable[[pytest.FixtureRequest, AsyncExitStack], Boards]


def memory(request: pytest.FixtureRequest, stack: AsyncExitStack) -> Boards:
    board = MemoryLeaseBoard()
    stack.push_async_callback(board.close)
    return Boards(board, board)


def redis(request: pytest.FixtureRequest, stack: AsyncExitStack) -> Boards:
    pytest.importorskip("redis", reason="needs the extra redis")
    from coldstart.lease.redis import RedisLeaseBoard

    server: RedisServer = request.getfixturevalue("shared_redis")
    first = redis_link(server)
    boards = []
    for link in (first, redis_link(server, prefix=first.place.prefix)):
        stack.push_async_callback(link.close)
        boards.append(RedisLeaseBoard(link))
        stack.push_async_callback(boards[-1].close)
    return Boards(*boards)


def fleet(request: pytest.FixtureRequest, stack: AsyncExitStack) -> Boards:
    shared = redis(request, stack)
    boards = [FleetLeaseBoard(one, MemoryLeaseBoard()) for one in (shared.here, shared.there)]
    for board in boards:
        stack.push_async_callback(board.close)
    return Boards(*boards)


def gcs(request: pytest.FixtureRequest, stack: AsyncExitStack) -> Boards:
    server: Cloud = request.getfixturevalue("cloud")  # skips where the extra is missing
    from coldstart.lease.gcs import GcsLeaseBoard

    boards = []
    for _ in range(2):
        bucket = open_bucket(server)
        stack.push_async_callback(bucket.close)
        boards.append(GcsLeaseBoard(bucket, "team/x", poll_seconds=0.1))
        stack.push_async_callback(boards[-1].close)
    return Boards(*boards, short=SHORT_IN_BUCKET)


def fleet_over_gcs(request: pytest.FixtureRequest, stack: AsyncExitStack) -> Boards:
    shared = gcs(request, stack)
    boards = [FleetLeaseBoard(one, MemoryLeaseBoard()) for one in (shared.here, shared.there)]
    for board in boards:
        stack.push_async_callback(board.close)
    return Boards(*boards, short=SHORT_IN_BUCKET)


MAKERS: dict[str, Maker] = {
    "memory": memory,
    "redis": redis,
    "fleet over redis": fleet,
    "gcs": gcs,
    "fleet over gcs": fleet_over_gcs,
}


@pytest.fixture(params=MAKERS)
async def boards(request: pytest.FixtureRequest) -> AsyncIterator[Boards]:
    async with AsyncExitStack() as stack:
        yield MAKERS[request.param](request, stack)


async def granted(
    board: LeaseBoard, key: str = "k", holder: str = "one", seconds: float = LONG
) -> Lease:
    answer = await board.acquire(key, holder, seconds, 60)
    assert isinstance(answer, Granted), answer
    return answer.lease


async def granted_in_the_end(board: LeaseBoard, holder: str) -> Lease:
    """Of a lease that is over: a board that reads its server's clock to the second sees it a little later."""
    async with asyncio.timeout(SOON):
        while isinstance(answer := await board.acquire("k", holder, LONG, 60), Busy):
            await board.wait("k", LONG)
    return answer.lease


async def waiting(board: LeaseBoard, key: str = "k", seconds: float = LONG) -> asyncio.Task[Ended]:
    """A wait that has begun, as far as one can tell from outside."""
    task = asyncio.ensure_future(board.wait(key, seconds))
    await asyncio.sleep(0.05)
    assert not task.done()
    return task


async def soon(task: asyncio.Task[Ended]) -> Ended:
    async with asyncio.timeout(SOON):
        return await task


async def test_one_lease_per_key_and_busy_is_an_answer(boards: Boards) -> None:
    lease = await granted(boards.here)
    for board in (boards.here, boards.there):
        busy = await board.acquire("k", "two", 15, 1)
        assert isinstance(busy, Busy) and (busy.holder, busy.estimate_seconds) == ("one", 60)
        assert 0 < busy.expires_in_seconds <= LONG
        now = await board.current("k")
        assert now is not None and now.holder == "one"
        assert await board.current("absent") is None
    other = await granted(boards.there, "other", "two")
    assert len(lease.id) == 32 and lease.id != other.id
    assert await boards.here.holds(lease.id) and await boards.there.holds(other.id)
    assert not await boards.here.holds("not a lease")


async def test_a_later_holder_has_the_higher_fence(boards: Boards) -> None:
    fences = []
    for turn in range(6):
        board = (boards.here, boards.there)[turn % 2]
        lease = await granted(board)
        fences.append(lease.fence)
        await board.release(lease.id)
    assert fences == sorted(set(fences))


async def test_sixteen_ask_at_once_and_one_compiles(boards: Boards) -> None:
    asked = [(boards.here, boards.there)[n % 2].acquire("k", str(n), LONG, 0) for n in range(16)]
    answers = await asyncio.gather(*asked)
    winners = [answer for answer in answers if isinstance(answer, Granted)]
    assert len(winners) == 1
    others = {answer.holder for answer in answers if isinstance(answer, Busy)}
    assert others == {winners[0].lease.holder}


async def test_release_wakes_every_waiter(boards: Boards) -> None:
    lease = await granted(boards.here)
    tasks = [await waiting(board) for board in (boards.here, boards.there) for _ in range(5)]
    await boards.here.release(lease.id)
    assert [await soon(task) for task in tasks] == [Ended(End.RELEASED)] * 10
    assert await boards.there.current("k") is None


async def test_failure_reaches_the_waiters_with_its_reason(boards: Boards) -> None:
    lease = await granted(boards.here)
    tasks = [await waiting(board) for board in (boards.here, boards.there)]
    failure = Failure("negative-oom", "exceeds available HBM (94.75G)\nby a line")
    await boards.here.fail(lease.id, failure)
    assert [await soon(task) for task in tasks] == [Ended(End.FAILED, failure)] * 2
    await granted(boards.there)


async def test_an_expired_lease_wakes_its_waiters_and_is_free(boards: Boards) -> None:
    began = time.monotonic()
    first = await granted(boards.here, seconds=boards.short)
    tasks = [await waiting(board) for board in (boards.here, boards.there)]
    assert [await soon(task) for task in tasks] == [Ended(End.EXPIRED)] * 2
    assert time.monotonic() - began >= boards.short - 0.1
    assert not await boards.here.holds(first.id)
    assert (await granted_in_the_end(boards.there, "two")).fence > first.fence


async def test_a_slow_holder_with_heartbeats_is_not_robbed(boards: Boards) -> None:
    lease = await granted(boards.here, seconds=boards.short)
    task = await waiting(boards.there)
    until = time.monotonic() + 3 * boards.short
    while time.monotonic() < until:
        assert await boards.here.renew(lease.id) == boards.short
        assert isinstance(await boards.there.acquire("k", "two", LONG, 0), Busy)
        await asyncio.sleep(boards.short / 5)
    assert not task.done()
    await boards.here.release(lease.id)
    assert await soon(task) == Ended(End.RELEASED)


@pytest.mark.parametrize("ending", ["expired", "released", "failed"])
async def test_a_late_word_harms_nobody(boards: Boards, ending: str) -> None:
    late = await granted(boards.here, seconds=boards.short if ending == "expired" else LONG)
    if ending == "expired":
        await asyncio.sleep(boards.short + 0.1)
    elif ending == "released":
        await boards.here.release(late.id)
    else:
        await boards.here.fail(late.id, Failure("crash", "gone"))
    holder = await granted_in_the_end(boards.there, "two")
    task = await waiting(boards.here)
    for word in (
        boards.here.renew(late.id),
        boards.here.release(late.id),
        boards.here.fail(late.id, Failure("oom", "late")),
        boards.here.release("not a lease"),
    ):
        with pytest.raises(LeaseLost):
            await word
    await asyncio.sleep(0.05)
    assert not task.done()
    now = await boards.here.current("k")
    assert now is not None and now.holder == "two"
    await boards.there.release(holder.id)
    assert await soon(task) == Ended(End.RELEASED)


async def test_a_waiter_gives_up_in_its_own_time(boards: Boards) -> None:
    lease = await granted(boards.here)
    for board in (boards.here, boards.there):
        patient = await waiting(board)
        assert await board.wait("k", 0.1) == Ended(End.TIMEOUT)
        assert await board.wait("k", 0) == Ended(End.TIMEOUT)
        assert not patient.done()
        patient.cancel()
    await boards.here.release(lease.id)


async def test_waiting_for_nobody_ends_at_once(boards: Boards) -> None:
    assert await boards.there.wait("k", LONG) == Ended(End.RELEASED)


async def test_a_cancelled_waiter_leaves_nothing_behind(boards: Boards) -> None:
    lease = await granted(boards.here)
    before = len(asyncio.all_tasks())
    task, other = await waiting(boards.there), await waiting(boards.there)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await boards.here.release(lease.id)
    assert await soon(other) == Ended(End.RELEASED)
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= before + 1  # a subscription, begun by the first wait


async def test_close_gives_everything_back(boards: Boards) -> None:
    await granted(boards.here, "a")
    await granted(boards.here, "b")
    tasks = [await waiting(board, key) for board in (boards.here, boards.there) for key in "ab"]
    await boards.here.close()
    await boards.here.close()
    assert [await soon(task) for task in tasks] == [Ended(End.RELEASED)] * 4
    await granted(boards.there, "a")


async def test_a_lease_without_a_lifetime_is_refused(boards: Boards) -> None:
    with pytest.raises(InvalidRequest):
        await boards.here.acquire("k", "one", 0, 0)


async def test_a_holder_may_be_called_anything(boards: Boards) -> None:
    await granted(boards.here, holder="pod\n7 é/{x}\0")
    busy = await boards.there.acquire("k", "two", LONG, 0)
    assert isinstance(busy, Busy) and "7 é/{x}" in busy.holder
