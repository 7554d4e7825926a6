"""`Lookups` without a wire: time is set by the test, tiers fail on demand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

import pytest

from coldstart.config import DaemonConfig
from coldstart.errors import InvalidRequest, TierError, TierTimeout
from coldstart.identity.key import key_of
from coldstart.lease.board import MemoryLeaseBoard
from coldstart.outcomes import Outcome, Reason
from coldstart.server import lookups as module
from coldstart.server import negatives, open_lookups
from coldstart.server.answers import (
    Asker,
    Canonicalized,
    Hit,
    Leased,
    NoRewrites,
    Refused,
    Rewrite,
    Rewritten,
    Waiting,
)
from coldstart.server.holdings import Holdings, OperationCounts, Place
from coldstart.server.lookups import Lookups
from coldstart.server.publisher import Publication
from coldstart.server.tally import Ending, Tally
from coldstart.store.memory import MemoryTier
from coldstart.store.wrap import Failing, ReadOnly
from coldstart.wire import Mode


class Clock:
    """Stands until it is moved; timers fire on the way."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.timers: list[tuple[float, Callable[[], None], list[bool]]] = []

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Clock.Timer:
        gone = [False]
        self.timers.append((when, callback, gone))
        return Clock.Timer(gone)

    class Timer:
        def __init__(self, gone: list[bool]) -> None:
            self._gone = gone

        def cancel(self) -> None:
            self._gone[0] = True

    def move(self, seconds: float) -> None:
        self.time += seconds
        due = [t for t in self.timers if t[0] <= self.time]
        self.timers = [t for t in self.timers if t[0] > self.time]
        for _, callback, gone in due:
            if not gone[0]:
                callback()


class World:
    """Lookups with everything around them."""

    def __init__(self, tier=None, **settings: object) -> None:
        self.clock = Clock()
        self.tier = tier or Failing(MemoryTier(), None, ())
        self.tally = Tally(self.clock.now)
        self.config = DaemonConfig(listen=("unix:///x",), store=("memory://",), **settings)
        holdings = Holdings(self.tier, None, OperationCounts(), [Place("memory", "memory://")])
        board = MemoryLeaseBoard(self.clock)
        self.lookups = Lookups(self.config, holdings, board, self.tally, now=self.clock.now)
        self._ids = itertools.count()

    def asker(self, **about: object) -> Asker:
        return Asker(**{"lookup_id": f"lookup-{next(self._ids)}", "holder": "me", **about})

    async def publish(self, made, record, lease_id: str = "", **changes: object):
        one = made.artifact(record, **changes)
        publication = Publication("other", lease_id, one.header, record, planned=False)
        return await self.lookups.publish(publication, chunks(one))


async def chunks(one) -> AsyncIterator[bytes]:
    for chunk in one.payload.chunks():
        yield chunk


@pytest.fixture
def record(made):
    return made.record("lookups")


async def test_negative_entries_end(record):
    world = World(negative_seconds=60)
    one = world.asker()
    leased = await world.lookups.ask_record(one, record)
    await world.lookups.fail(leased.lease_id, Reason.NEGATIVE_OOM, "too big")
    assert (await world.lookups.ask_record(world.asker(), record)).reason is Reason.NEGATIVE_OOM
    world.clock.move(61)
    assert isinstance(await world.lookups.ask_record(world.asker(), record), Leased)


async def test_waiters_hear_of_a_failure_even_where_none_is_remembered(record):
    world = World(negative_seconds=0)
    leased = await world.lookups.ask_record(world.asker(), record)
    waiter = world.asker()
    assert isinstance(await world.lookups.ask_record(waiter, record), Waiting)
    waiting = asyncio.create_task(world.lookups.wait(waiter.lookup_id, leased.key, 100))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await world.lookups.fail(leased.lease_id, Reason.NEGATIVE_CRASH, "killed")
    answer = await waiting
    assert isinstance(answer, Refused) and answer.reason is Reason.NEGATIVE_CRASH


async def test_negative_entries_are_bounded(monkeypatch):
    monkeypatch.setattr(negatives, "MAX_ENTRIES", 3)
    entries = negatives.NegativeEntries(60, lambda: 0.0)
    for name in "abcd":
        entries.add(name, Reason.NEGATIVE_OOM, "x" * 10_000)
    assert len(entries) == 3 and entries.get("a") is None
    assert len(entries.get("d").message) == negatives.MAX_MESSAGE_CHARS


async def test_open_lookups_are_bounded_and_all_counted(monkeypatch, made):
    monkeypatch.setattr(open_lookups, "MAX_OPEN", 10)
    world = World()
    for number in range(25):
        await world.lookups.ask_record(world.asker(), made.record(str(number)))
    assert world.lookups.open_lookups == 10
    assert world.tally.lookups == {(Outcome.ERROR, Reason.LEASE_LOST, ""): 15}
    world.clock.move(16)  # every lease is over
    await world.lookups.sweep()
    assert world.lookups.open_leases == 0


async def test_a_silent_lookup_gives_its_lease_and_its_count(record):
    world = World(lease_seconds=15, lookup_seconds=1800)
    await world.lookups.ask_record(world.asker(), record)
    world.clock.move(16)
    await world.lookups.sweep()
    assert world.lookups.open_leases == 0 and world.lookups.open_lookups == 1
    assert [e.kind for e in world.tally.events] == ["lease-expired"]
    world.clock.move(60)
    await world.lookups.sweep()
    assert world.lookups.open_lookups == 0
    assert world.tally.lookups == {(Outcome.ERROR, Reason.LEASE_LOST, ""): 1}


async def test_a_lookup_without_a_lease_may_be_silent_for_longer(record, made):
    world = World(lease_seconds=15, lookup_seconds=1800)
    await world.publish(made, record)
    assert isinstance(await world.lookups.ask_record(world.asker(), record), Hit)
    world.clock.move(1700)  # loading, or compiling after a refusal
    await world.lookups.sweep()
    assert world.lookups.open_lookups == 1
    world.clock.move(101)
    await world.lookups.sweep()
    assert world.lookups.open_lookups == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [(TierError("disk: broken"), Reason.TIER_DOWN), (TierTimeout("slow"), Reason.DEADLINE)],
)
async def test_not_knowing_is_refused_with_a_reason_and_never_a_lease(record, error, reason):
    world = World()
    world.tier.ops, world.tier.error = {"find"}, error
    answer = await world.lookups.ask_record(world.asker(), record)
    assert isinstance(answer, Refused) and answer.reason is reason
    world.tier.ops = set()
    assert isinstance(await world.lookups.ask_record(world.asker(), record), Leased)


async def test_a_store_that_cannot_take_it_lets_the_waiters_loose(record, made):
    world = World(tier=ReadOnly(MemoryTier()))
    leased = await world.lookups.ask_record(world.asker(), record)
    waiter = world.asker()
    await world.lookups.ask_record(waiter, record)
    published = await world.publish(made, record, leased.lease_id)
    assert published.kept_local is Reason.TIER_DOWN
    answer = await world.lookups.wait(waiter.lookup_id, leased.key, 100)
    assert isinstance(answer, Refused) and answer.reason is Reason.TIER_DOWN
    assert world.lookups.open_leases == 0


async def test_published_while_asking_is_a_hit_not_a_second_compile(record, made):
    """The artifact comes between looking and leasing."""
    world = World()
    world.tier.error = None
    looked, go_on = asyncio.Event(), asyncio.Event()
    inner_find = world.tier.inner.find

    async def slow_find(key: str):
        found = await inner_find(key)
        if not looked.is_set():
            looked.set()
            await go_on.wait()
        return found

    world.tier.inner.find = slow_find
    asking = asyncio.create_task(world.lookups.ask_record(world.asker(), record))
    await looked.wait()
    await world.publish(made, record)
    go_on.set()
    assert isinstance(await asking, Hit)
    assert world.lookups.open_leases == 0


async def test_closing_sends_waiters_home(record):
    world = World()
    leased = await world.lookups.ask_record(world.asker(), record)
    waiter = world.asker()
    await world.lookups.ask_record(waiter, record)
    waiting = asyncio.create_task(world.lookups.wait(waiter.lookup_id, leased.key, 900))
    await asyncio.sleep(0)
    world.lookups.close()
    assert isinstance(await waiting, Waiting)


async def test_fleet_in_observe_mode_hands_out_nothing(record, made):
    world = World(mode="observe")
    assert world.lookups.mode is Mode.OBSERVE
    answer = await world.lookups.ask_record(world.asker(), record)
    assert isinstance(answer, Refused) and "miss" in answer.message
    published = await world.publish(made, record)
    assert published.kept_local is Reason.MODE_OBSERVE
    assert await world.tier.find(key_of(record)) == ()


async def test_the_canonicalize_seam_is_asked_in_canonical_mode_only(record):
    world = World()
    edit = Rewrite("rule", "main", 3, "start", "0", "nobody reads it")
    seen: list[bytes] = []

    class Stub(NoRewrites):
        async def __call__(self, descriptor: bytes) -> Canonicalized:
            seen.append(descriptor)
            return Canonicalized((edit,))

    world.lookups._canonicalize = Stub()
    answer = await world.lookups.ask_descriptor(world.asker(), b"graph")
    assert answer == Rewritten((edit,)) and seen == [b"graph"]
    exact = await world.lookups.ask_descriptor(world.asker(mode=Mode.EXACT), b"graph")
    assert exact == Rewritten(()) and len(seen) == 1


async def test_an_id_belongs_to_one_compile_request(record, made):
    world = World()
    asker = world.asker()
    await world.lookups.ask_record(asker, record)
    with pytest.raises(InvalidRequest, match="new lookup id"):
        await world.lookups.ask_record(asker, made.record("another"))
    await world.lookups.finish(asker.lookup_id, "", Ending(Outcome.MISS, Reason.COLD))
    with pytest.raises(InvalidRequest, match="has ended"):
        await world.lookups.ask_record(asker, record)


async def test_a_copy_that_comes_back_bad_is_not_served_for_ever(record, made):
    """A repaired copy is worth another look; a copy that stays bad is not."""
    world = World()
    await world.publish(made, record)
    world.tier.ops, world.tier.error = {"quarantine"}, TierError("memory: can't")
    asker = world.asker()
    hit = await world.lookups.ask_record(asker, record)
    digest = hit.header.digest
    answer = await world.lookups.reject(asker.lookup_id, hit.key, digest, Reason.CORRUPT)
    assert isinstance(answer, Leased) and answer.reason is Reason.CORRUPT


@pytest.mark.parametrize(
    ("features", "host", "chosen"),
    [((), (), True), (("a",), (), False), (("a",), ("a", "b"), True), (("a", "c"), ("a",), False)],
)
def test_choosing_a_variant(made, record, features, host, chosen):
    header = made.artifact(record, cpu_features=features).header
    assert (module.choose([header], frozenset(host)) is header) is chosen
    assert module.choose([header], frozenset(host), [header.digest]) is None


async def test_a_lease_given_back_is_no_takeover(record, made):
    world = World()
    for _ in range(3):
        asker = world.asker()
        assert isinstance(await world.lookups.ask_record(asker, record), Leased)
        await world.lookups.finish(asker.lookup_id, "", Ending(Outcome.MISS, Reason.COLD))
    assert world.tally.takeovers == 0 and not world.tally.events
    await world.lookups.ask_record(world.asker(), record)
    world.clock.move(16)
    assert isinstance(await world.lookups.ask_record(world.asker(), record), Leased)
    assert world.tally.takeovers == 1 and world.lookups.open_leases == 1
