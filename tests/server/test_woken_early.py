"""Who waits on the publisher's host goes on as soon as the artifact can be read there; who waits elsewhere, later.

One digest counts all the same (I2): what was handed out early and lost in the end is taken back, and told as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from coldstart.artifact import Artifact, Header
from coldstart.config import DaemonConfig
from coldstart.errors import LeaseLost, TierError
from coldstart.identity.key import KeyRecord, key_of
from coldstart.lease.board import LeaseBoard, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.outcomes import Outcome, Reason
from coldstart.server.answers import Asker, Hit, Leased, Waiting
from coldstart.server.holdings import Holdings, OperationCounts
from coldstart.server.lookups import Lookups
from coldstart.server.publisher import Publication, Published
from coldstart.server.tally import Ending, Tally
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier

LEASE_SECONDS = 0.4


class Bucket(MemoryTier):
    """A tier that hosts share, whose puts take until somebody lets them."""

    min_compile_seconds = 0.5

    def __init__(self) -> None:
        super().__init__(name="bucket")
        self.asked, self.open = asyncio.Event(), asyncio.Event()
        self.puts = 0
        self.error: TierError | None = None

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        self.puts += 1
        self.asked.set()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return await super().put(artifact, record)


class Own(MemoryTier):
    """A daemon's own tier; counts how often it is looked into."""

    finds = 0

    async def find(self, key: str) -> tuple[Header, ...]:
        self.finds += 1
        return await super().find(key)


class Daemon:
    """One daemon's lookups. Its leases are the fleet's where there is a board for that."""

    def __init__(self, bucket: Bucket, fleet: LeaseBoard | None) -> None:
        self.own, self.tally = Own(name="own"), Tally()
        self.chain = ChainTier([self.own, bucket], write_back_seconds=0.01)
        config = DaemonConfig(
            listen=("unix:///x",),
            store=("memory://",),
            lease_seconds=LEASE_SECONDS,
            heartbeat_seconds=LEASE_SECONDS / 4,
        )
        holdings = Holdings(self.chain, None, OperationCounts())
        board = (
            FleetLeaseBoard(fleet, MemoryLeaseBoard()) if fleet is not None else MemoryLeaseBoard()
        )
        self.lookups = Lookups(config, holdings, board, self.tally)

    async def ask(self, name: str, record: KeyRecord, **about: Any) -> Any:
        return await self.lookups.ask_record(Asker(lookup_id=name, holder=name, **about), record)

    def waits(self, name: str, record: KeyRecord) -> asyncio.Task[Any]:
        return asyncio.create_task(self.lookups.wait(name, key_of(record), 20))

    def publishes(
        self, name: str, lease: Leased, made: Artifact, record: KeyRecord, planned: bool = False
    ) -> asyncio.Task[Published]:
        async def chunks() -> AsyncIterator[bytes]:
            for chunk in made.payload.chunks():
                yield chunk

        about = Publication(name, lease.lease_id, made.header, record, planned=planned)
        return asyncio.create_task(self.lookups.publish(about, chunks()))

    def events(self) -> list[str]:
        return [event.kind for event in self.tally.events]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def fleet() -> MemoryLeaseBoard:
    return MemoryLeaseBoard()


async def soon(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(20):
        return await work


async def test_local_waiters_go_on_while_others_wait(
    made: Any, bucket: Bucket, fleet: MemoryLeaseBoard
) -> None:
    one, two = Daemon(bucket, fleet), Daemon(bucket, fleet)
    record = made.record("early")
    key, mine = key_of(record), made.artifact(record)
    lease = await one.ask("leader", record)
    assert isinstance(lease, Leased)
    assert isinstance(await one.ask("local", record), Waiting)
    assert isinstance(await one.ask("late", record), Waiting)
    assert isinstance(await two.ask("remote", record), Waiting)
    local, remote = one.waits("local", record), two.waits("remote", record)
    publishing = one.publishes("leader", lease, mine, record)
    hit = await soon(local)
    assert isinstance(hit, Hit) and hit.header == mine.header and hit.waited
    await soon(bucket.asked.wait())
    late = await soon(one.lookups.wait("late", key, 20))  # it asks to wait only now
    assert isinstance(late, Hit) and isinstance(await one.ask("new", record), Hit)
    await asyncio.sleep(3 * LEASE_SECONDS)  # the fleet's lease outlives it: the daemon renews it
    busy = await fleet.current(key)
    assert busy is not None and busy.holder == "leader"
    assert not publishing.done() and not remote.done()
    assert await one.lookups.renew(lease.lease_id) == LEASE_SECONDS
    bucket.open.set()
    assert await soon(publishing) == Published(mine.header.digest)
    there = await soon(remote)
    assert isinstance(there, Hit) and there.tier == "bucket" and there.header == mine.header
    assert await fleet.current(key) is None and one.lookups.open_leases == 0
    with pytest.raises(LeaseLost):
        await one.lookups.renew(lease.lease_id)
    assert bucket.puts == 1  # serving it early made nobody put it a second time
    assert one.events() == [] and one.tally.takeovers == 0


async def test_so_do_those_of_a_daemon_whose_leases_are_its_own(made: Any, bucket: Bucket) -> None:
    one, record = Daemon(bucket, None), made.record("alone")
    mine, lease = made.artifact(record), await one.ask("leader", record)
    assert isinstance(await one.ask("local", record), Waiting)
    local = one.waits("local", record)
    publishing = one.publishes("leader", lease, mine, record)
    assert isinstance(await soon(local), Hit)
    await asyncio.sleep(2 * LEASE_SECONDS)
    await one.lookups.sweep()
    assert await one.lookups.renew(lease.lease_id) == LEASE_SECONDS and not publishing.done()
    bucket.open.set()
    await soon(publishing)
    assert one.lookups.open_leases == 0 and one.events() == []


async def test_what_was_handed_out_and_lost_is_taken_back_and_told(
    made: Any, bucket: Bucket, fleet: MemoryLeaseBoard
) -> None:
    """Somebody without a lease publishes into the bucket between our look there and our put."""
    one, record = Daemon(bucket, fleet), made.record("lost")
    key, mine = key_of(record), made.artifact(record, raw=b"mine")
    theirs = made.artifact(record, raw=b"theirs")
    lease = await one.ask("leader", record)
    await one.ask("local", record)
    local = one.waits("local", record)
    publishing = one.publishes("leader", lease, mine, record)
    assert (await soon(local)).header == mine.header
    await soon(bucket.asked.wait())
    await MemoryTier.put(bucket, theirs, record)
    assert one.events() == []
    bucket.open.set()
    assert await soon(publishing) == Published(theirs.header.digest, adopted=True)
    assert one.events() == ["replaced"] and one.tally.adopted == 1
    again = await one.ask("again", record)
    assert isinstance(again, Hit) and again.header == theirs.header
    assert await one.lookups.fetch("local", key, mine.header.digest) is None  # nowhere any more


async def test_what_was_there_before_is_the_only_one_that_is_ever_handed_out(
    made: Any, bucket: Bucket, fleet: MemoryLeaseBoard
) -> None:
    one, record = Daemon(bucket, fleet), made.record("before")
    mine, theirs = (made.artifact(record, raw=raw) for raw in (b"mine", b"theirs"))
    lease = await one.ask("leader", record)
    await one.ask("local", record)
    local = one.waits("local", record)
    await MemoryTier.put(bucket, theirs, record)
    publishing = one.publishes("leader", lease, mine, record)
    assert (await soon(local)).header == theirs.header
    assert (await soon(publishing)).adopted and bucket.puts == 0
    assert "replaced" not in one.events()


async def test_a_digest_that_loses_after_an_outage_is_told_too(
    made: Any, bucket: Bucket, fleet: MemoryLeaseBoard
) -> None:
    one, record = Daemon(bucket, fleet), made.record("outage")
    mine, theirs = (made.artifact(record, raw=raw) for raw in (b"mine", b"theirs"))
    lease = await one.ask("leader", record)
    bucket.error = TierError("bucket: away")
    bucket.open.set()
    assert (await soon(one.publishes("leader", lease, mine, record))).digest == mine.header.digest
    assert one.events() == []
    bucket.error = None
    await MemoryTier.put(bucket, theirs, record)
    async with asyncio.timeout(20):
        while one.events() != ["replaced"]:
            await asyncio.sleep(0.01)
    assert (await one.ask("again", record)).header == theirs.header
    await one.chain.close()


async def test_a_waiter_that_cannot_use_it_waits_for_the_end_without_looking_on_and_on(
    made: Any, bucket: Bucket, fleet: MemoryLeaseBoard
) -> None:
    one, record = Daemon(bucket, fleet), made.record("variants")
    mine = made.artifact(record, cpu_features=("avx-9",))
    lease = await one.ask("leader", record, cpu_features=frozenset({"avx-9"}))
    assert isinstance(await one.ask("plain", record), Waiting)
    plain = one.waits("plain", record)
    publishing = one.publishes("leader", lease, mine, record)
    await soon(bucket.asked.wait())
    before = one.own.finds
    done, _ = await asyncio.wait({plain}, timeout=0.5)
    assert not done and one.own.finds - before < 5
    bucket.open.set()
    await soon(publishing)
    assert isinstance(await soon(plain), Leased)


async def test_a_publish_that_is_cut_off_meanwhile_gives_the_lease_back_with_its_lookup(
    made: Any, bucket: Bucket, fleet: MemoryLeaseBoard
) -> None:
    one, record = Daemon(bucket, fleet), made.record("cut")
    lease = await one.ask("leader", record)
    publishing = one.publishes("leader", lease, made.artifact(record), record)
    await soon(bucket.asked.wait())
    publishing.cancel()
    await asyncio.wait({publishing})
    key = key_of(record)
    assert isinstance(await one.ask("local", record), Hit)
    await one.lookups.finish("leader", key, Ending(Outcome.MISS, Reason.COLD))
    assert await fleet.current(key) is None and one.lookups.open_leases == 0


async def test_hosts_compile_their_small_programs_at_once_and_not_in_turn(
    made: Any, bucket: Bucket, fleet: MemoryLeaseBoard
) -> None:
    """A plan's asker goes by the fleet's lease all the same, and what it publishes is everybody's."""
    bucket.open.set()
    one, two, three, four = (Daemon(bucket, fleet) for _ in range(4))
    record = made.record("small")
    key, mine = key_of(record), made.artifact(record, compile_seconds=0.2)
    lease = await one.ask("one", record)
    askers = [(two, "two"), (two, "two more"), (three, "three"), (four, "plan")]
    for daemon, name in askers:
        assert isinstance(await daemon.ask(name, record, planned=name == "plan"), Waiting)
    waits = [daemon.waits(name, record) for daemon, name in askers]
    published = await soon(one.publishes("one", lease, mine, record))
    assert published == Published(mine.header.digest) and await bucket.find(key) == ()
    done, _ = await soon(asyncio.wait(waits[:2], return_when=asyncio.FIRST_COMPLETED))
    (first,) = [n for n in (0, 1) if waits[n] in done]  # one compile a host
    taken = [await soon(waits[n]) for n in (first, 2, 3)]
    assert all(isinstance(answer, Leased) for answer in taken)  # and no host waits for another
    busy = await fleet.current(key)
    assert busy is not None and busy.holder == "plan"
    await soon(two.publishes(askers[first][1], taken[0], mine, record))
    assert (await soon(waits[1 - first])).tier == "own" and await bucket.find(key) == ()
    late = await three.ask("late", record)
    assert isinstance(late, Waiting) and late.holder == "three"
    planned = made.artifact(record, raw=b"for the plan", compile_seconds=0.2)
    await soon(four.publishes("plan", taken[2], planned, record, planned=True))
    assert await bucket.find(key) == (planned.header,)
    three_made = made.artifact(record, raw=b"three's", compile_seconds=0.2)
    published = await soon(three.publishes("three", taken[1], three_made, record))
    assert published == Published(planned.header.digest, adopted=True)
    for daemon in (one, two, three, four):
        await daemon.chain.close()
