"""What a daemon of a fleet answers when others publish, fail or fill their disks at awkward moments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coldstart.config import DaemonConfig
from coldstart.identity.key import key_of
from coldstart.lease.board import Busy, Failure, Granted, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.outcomes import Reason
from coldstart.server.answers import Asker, Hit, Leased, Refused, Waiting
from coldstart.server.holdings import Holdings, OperationCounts
from coldstart.server.lookups import Lookups
from coldstart.server.tally import Tally
from coldstart.store.memory import MemoryTier


class Fleet:
    """One daemon's lookups over a tier and a board that another daemon uses too."""

    def __init__(self, shared: MemoryLeaseBoard) -> None:
        self.shared, self.tier = shared, MemoryTier()
        self.board = FleetLeaseBoard(shared, MemoryLeaseBoard())
        config = DaemonConfig(listen=("unix:///x",), store=("memory://",))
        holdings = Holdings(self.tier, None, OperationCounts())
        self.lookups = Lookups(config, holdings, self.board, Tally())

    async def ask(self, name: str, record: Any) -> Any:
        return await self.lookups.ask_record(Asker(lookup_id=name, holder=name), record)


class Late(MemoryLeaseBoard):
    """The other daemon publishes and lets go just before a lease is given."""

    def __init__(self, publish: Any) -> None:
        super().__init__()
        self.publish = publish

    async def acquire(self, *args: Any) -> Granted | Busy:
        await self.publish()
        return await super().acquire(*args)


async def test_what_came_between_the_look_and_the_lease_is_a_hit(made: Any) -> None:
    record = made.record("late")
    artifact = made.artifact(record)

    async def publish() -> None:
        await fleet.tier.put(artifact, record)

    fleet = Fleet(Late(publish))
    answer = await fleet.ask("one", record)
    assert isinstance(answer, Hit) and answer.header == artifact.header
    assert await fleet.shared.current(key_of(record)) is None  # the lease was given back
    assert fleet.lookups.open_leases == 0


async def test_an_artifact_that_is_found_and_never_got_ends_in_a_lease(made: Any) -> None:
    """An index that lies for ever must not keep anybody looking for ever."""

    class Lying(MemoryTier):
        async def get(self, key: str, digest: str) -> None:
            return None

    record = made.record("lying")
    fleet = Fleet(MemoryLeaseBoard())
    fleet.tier = Lying()
    fleet.lookups._holdings._chain = fleet.tier
    await fleet.tier.put(made.artifact(record), record)
    assert isinstance(await fleet.ask("one", record), Leased)


@pytest.mark.parametrize(
    "kind, answer",
    [
        ("negative-oom", Reason.NEGATIVE_OOM),
        ("a word of a newer daemon", Reason.NEGATIVE_COMPILE),
        ("quota", None),  # that host's disk is full; ours may not be
        ("tier-down", None),
    ],
)
async def test_failures_elsewhere_are_told_and_trouble_elsewhere_is_not(
    made: Any, kind: str, answer: Reason | None
) -> None:
    record = made.record("failing")
    fleet = Fleet(MemoryLeaseBoard())
    theirs = await fleet.shared.acquire(key_of(record), "theirs", 15, 0)
    assert isinstance(theirs, Granted)
    assert isinstance(await fleet.ask("one", record), Waiting)

    async def fail() -> None:
        await fleet.shared.fail(theirs.lease.id, Failure(kind, "in other words"))

    failing = asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(fail()))
    ended = await fleet.lookups.wait("one", key_of(record), 20)
    failing.cancel()
    late = await fleet.ask("late", record)
    if answer is None:
        assert isinstance(ended, Leased) and isinstance(late, Waiting)
    else:
        assert isinstance(ended, Refused) and ended.reason is answer
        assert isinstance(late, Refused) and late.reason is answer
