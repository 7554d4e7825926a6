"""Who compiles, who waits, and how each wait ends; on a clock that the tests set."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldstart.errors import InvalidRequest, LeaseLost
from coldstart.lease.board import (
    Busy,
    End,
    Ended,
    Failure,
    Granted,
    Lease,
    MemoryLeaseBoard,
)


@dataclass(order=True)
class Due:
    when: float
    turn: int
    callback: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """Time stands still until `advance`."""

    def __init__(self) -> None:
        self.time = 100.0
        self._due: list[Due] = []
        self._turns = itertools.count()

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Due:
        due = Due(when, next(self._turns), callback)
        heapq.heappush(self._due, due)
        return due

    def advance(self, seconds: float) -> None:
        end = self.time + seconds
        while self._due and self._due[0].when <= end:
            due = heapq.heappop(self._due)
            self.time = max(self.time, due.when)
            if not due.cancelled:
                due.callback()
        self.time = end

    @property
    def pending(self) -> int:
        return sum(not due.cancelled for due in self._due)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def board(clock: FakeClock) -> MemoryLeaseBoard:
    return MemoryLeaseBoard(clock)


async def granted(board: MemoryLeaseBoard, key: str = "k", holder: str = "one") -> Lease:
    answer = await board.acquire(key, holder, 15, 60)
    assert isinstance(answer, Granted)
    return answer.lease


async def waiting(board: MemoryLeaseBoard, key: str, seconds: float) -> asyncio.Task[Ended]:
    """A wait that has begun."""
    task = asyncio.ensure_future(board.wait(key, seconds))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_one_lease_per_key_and_busy_is_an_answer(
    board: MemoryLeaseBoard, clock: FakeClock
) -> None:
    lease = await granted(board)
    clock.advance(5)
    assert await board.acquire("k", "two", 15, 1) == Busy("one", 10, 60)
    assert await board.acquire("k", "one", 15, 1) == Busy("one", 10, 60)
    assert await board.current("k") == Busy("one", 10, 60)
    other = await granted(board, "other", "two")
    assert lease.id != other.id and len(lease.id) == 32 and other.fence > lease.fence
    assert await board.current("absent") is None


async def test_sixteen_ask_at_once_and_one_compiles(board: MemoryLeaseBoard) -> None:
    answers = await asyncio.gather(*(board.acquire("k", str(n), 15, 0) for n in range(16)))
    assert sum(isinstance(answer, Granted) for answer in answers) == 1


async def test_release_wakes_every_waiter(board: MemoryLeaseBoard, clock: FakeClock) -> None:
    lease = await granted(board)
    tasks = [await waiting(board, "k", 100) for _ in range(50)]
    await board.release(lease.id)
    assert await asyncio.gather(*tasks) == [Ended(End.RELEASED)] * 50
    assert len(board) == 0 and clock.pending == 0


async def test_failure_reaches_the_waiters_with_its_reason(board: MemoryLeaseBoard) -> None:
    lease = await granted(board)
    task = await waiting(board, "k", 100)
    failure = Failure("oom", "exceeds available HBM (94.75G)")
    await board.fail(lease.id, failure)
    assert await task == Ended(End.FAILED, failure)
    assert (await granted(board)).fence == lease.fence + 1


async def test_an_expired_lease_wakes_its_waiters_and_is_free(
    board: MemoryLeaseBoard, clock: FakeClock
) -> None:
    first = await granted(board)
    task = await waiting(board, "k", 100)
    clock.advance(14.9)
    await asyncio.sleep(0)
    assert not task.done()
    clock.advance(0.1)
    assert await task == Ended(End.EXPIRED)
    assert len(board) == 0 and clock.pending == 0
    assert (await granted(board, holder="two")).fence > first.fence


async def test_a_slow_holder_with_heartbeats_is_not_robbed(
    board: MemoryLeaseBoard, clock: FakeClock
) -> None:
    lease = await granted(board)
    task = await waiting(board, "k", 1000)
    for _ in range(12):  # four lease times
        clock.advance(5)
        assert await board.renew(lease.id) == 15
        assert isinstance(await board.acquire("k", "two", 15, 0), Busy)
    assert not task.done()
    clock.advance(15)
    assert await task == Ended(End.EXPIRED)


@pytest.mark.parametrize("ending", ["expired", "released", "failed"])
async def test_a_late_word_harms_nobody(
    board: MemoryLeaseBoard, clock: FakeClock, ending: str
) -> None:
    late = await granted(board)
    if ending == "expired":
        clock.advance(15)
    elif ending == "released":
        await board.release(late.id)
    else:
        await board.fail(late.id, Failure("crash", "gone"))
    holder = await granted(board, holder="two")
    task = await waiting(board, "k", 100)
    for word in (
        board.renew(late.id),
        board.release(late.id),
        board.fail(late.id, Failure("oom", "late")),
        board.release("not a lease"),
    ):
        with pytest.raises(LeaseLost):
            await word
    await asyncio.sleep(0)
    assert not task.done() and await board.current("k") == Busy("two", 15, 60)
    await board.release(holder.id)
    assert await task == Ended(End.RELEASED)


async def test_a_timer_that_has_not_run_yet_does_not_keep_a_lease_alive(
    board: MemoryLeaseBoard, clock: FakeClock
) -> None:
    """A busy event loop runs timers late."""
    late = await granted(board)
    task = await waiting(board, "k", 100)
    clock.time += 15
    with pytest.raises(LeaseLost):
        await board.renew(late.id)
    assert await task == Ended(End.EXPIRED)
    again = await granted(board)
    clock.time += 15
    assert isinstance(await board.acquire("k", "two", 15, 0), Granted)
    with pytest.raises(LeaseLost):
        await board.release(again.id)


async def test_a_timer_that_runs_a_hair_early_still_ends_the_lease(clock: FakeClock) -> None:
    class EarlyClock(FakeClock):
        def call_at(self, when: float, callback: Callable[[], None]) -> Due:
            return super().call_at(when - 1e-9, callback)

    early = EarlyClock()
    board = MemoryLeaseBoard(early)
    await granted(board)
    task = await waiting(board, "k", 100)
    early.advance(15 - 1e-9)
    assert await task == Ended(End.EXPIRED) and len(board) == 0


async def test_a_waiter_gives_up_in_its_own_time(board: MemoryLeaseBoard, clock: FakeClock) -> None:
    lease = await granted(board)
    task = await waiting(board, "k", 3)
    patient = await waiting(board, "k", 14)
    clock.advance(3)
    assert await task == Ended(End.TIMEOUT)
    assert not patient.done()
    assert await board.wait("k", 0) == Ended(End.TIMEOUT)
    await board.release(lease.id)
    assert await patient == Ended(End.RELEASED)


async def test_waiting_for_nobody_ends_at_once(board: MemoryLeaseBoard) -> None:
    assert await board.wait("k", 100) == Ended(End.RELEASED)


async def test_a_cancelled_waiter_leaves_nothing_behind(
    board: MemoryLeaseBoard, clock: FakeClock
) -> None:
    lease = await granted(board)
    task, other = await waiting(board, "k", 100), await waiting(board, "k", 100)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.pending == 2  # the lease's and the other waiter's
    await board.release(lease.id)
    assert await other == Ended(End.RELEASED)
    assert clock.pending == 0


async def test_a_woken_and_at_once_cancelled_waiter_is_no_trouble(
    board: MemoryLeaseBoard, clock: FakeClock
) -> None:
    lease = await granted(board)
    task = await waiting(board, "k", 15)
    task.cancel()
    await board.release(lease.id)
    clock.advance(100)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_close_wakes_everybody(board: MemoryLeaseBoard, clock: FakeClock) -> None:
    await granted(board, "a")
    await granted(board, "b")
    tasks = [await waiting(board, key, 100) for key in "ab"]
    await board.close()
    await board.close()
    assert await asyncio.gather(*tasks) == [Ended(End.RELEASED)] * 2
    assert len(board) == 0 and clock.pending == 0


async def test_a_lease_without_a_lifetime_is_refused(board: MemoryLeaseBoard) -> None:
    with pytest.raises(InvalidRequest):
        await board.acquire("k", "one", 0, 0)


async def test_on_the_event_loops_own_clock_an_expiry_wakes_without_being_asked() -> None:
    board = MemoryLeaseBoard()
    await board.acquire("k", "one", 0.02, 0)
    assert await board.wait("k", 30) == Ended(End.EXPIRED)
    await board.acquire("k", "one", 30, 0)
    assert await board.wait("k", 0.02) == Ended(End.TIMEOUT)
    await board.close()


STEP = st.one_of(
    st.tuples(st.just("acquire"), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["renew", "release", "fail"]), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from("ab")),
    st.tuples(st.just("advance"), st.sampled_from([1.0, 7.5, 15.0])),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEP, max_size=40))
async def test_any_order_of_calls_keeps_one_holder_and_ends_every_wait(
    steps: list[tuple[str, object]],
) -> None:
    clock = FakeClock()
    board = MemoryLeaseBoard(clock)
    leases: list[Lease] = []
    alive: dict[str, float] = {}  # id -> expiry, by the rules alone
    tasks: list[asyncio.Task[Ended]] = []
    for step, about in steps:
        alive = {id: ends for id, ends in alive.items() if ends > clock.time}
        held = {lease.key for lease in leases if lease.id in alive}
        if step == "acquire":
            answer = await board.acquire(str(about), "x", 15, 0)
            assert isinstance(answer, Granted) == (about not in held)
            if isinstance(answer, Granted):
                assert all(answer.lease.fence > lease.fence for lease in leases)
                leases.append(answer.lease)
                alive[answer.lease.id] = clock.time + 15
        elif step == "wait":
            tasks.append(asyncio.ensure_future(board.wait(str(about), 40)))
            await asyncio.sleep(0)
        elif step == "advance":
            clock.advance(float(str(about)))
        elif leases:
            lease = leases[int(str(about)) % len(leases)]
            call = {
                "renew": lambda id: board.renew(id),
                "release": lambda id: board.release(id),
                "fail": lambda id: board.fail(id, Failure("oom", "")),
            }[step](lease.id)
            if lease.id not in alive:
                with pytest.raises(LeaseLost):
                    await call
                continue
            await call
            if step == "renew":
                alive[lease.id] = clock.time + 15
            else:
                del alive[lease.id]
        assert len(board) == sum(ends > clock.time for ends in alive.values())
    clock.advance(40)
    await asyncio.gather(*tasks)
    assert len(board) == 0 and clock.pending == 0
