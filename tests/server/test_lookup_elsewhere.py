"""Two daemons with one board and one shared tier: what the other publishes while a look takes long is found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from coldstart.artifact import Header
from coldstart.config import DaemonConfig
from coldstart.errors import TierTimeout
from coldstart.lease.board import MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.server.answers import Asker, Hit, Leased
from coldstart.server.holdings import Holdings, OperationCounts
from coldstart.server.lookups import Lookups
from coldstart.server.publisher import Publication
from coldstart.server.tally import Tally
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier
from coldstart.store.tier import Tier
from coldstart.store.wrap import Failing


class SilentForAWhile(Failing):
    """Its looks fail, each once it is let go."""

    def __init__(self) -> None:
        super().__init__(MemoryTier(name="slow"), None, ())
        self.looks = 0
        self.asked, self.over = asyncio.Event(), asyncio.Event()

    async def find(self, key: str) -> tuple[Header, ...]:
        self.looks += 1
        self.asked.set()
        await self.over.wait()
        raise TierTimeout("slow: no answer")


def daemon(*tiers: Tier, fleet: MemoryLeaseBoard) -> Lookups:
    config = DaemonConfig(listen=("unix:///x",), store=("memory://",))
    chain = ChainTier([MemoryTier(name="own"), *tiers])
    board = FleetLeaseBoard(fleet, MemoryLeaseBoard())
    return Lookups(config, Holdings(chain, None, OperationCounts()), board, Tally())


async def chunks(one) -> AsyncIterator[bytes]:
    for chunk in one.payload.chunks():
        yield chunk


async def test_what_came_while_a_tier_was_silent_is_handed_out(made):
    """Found by the chaos run: the look at a frozen bucket took seconds, in which another daemon compiled."""
    shared, slow, fleet = MemoryTier(name="shared"), SilentForAWhile(), MemoryLeaseBoard()
    here, there = daemon(shared, slow, fleet=fleet), daemon(shared, fleet=fleet)
    record = made.record("elsewhere")
    leased = await there.ask_record(Asker("first", "there"), record)
    assert isinstance(leased, Leased)
    looking = asyncio.create_task(here.ask_record(Asker("second", "here"), record))
    await slow.asked.wait()  # the shared tier had nothing
    one = made.artifact(record)
    publication = Publication("first", leased.lease_id, one.header, record, planned=False)
    await there.publish(publication, chunks(one))
    slow.over.set()
    answer = await looking
    assert isinstance(answer, Hit) and answer.header.digest == one.header.digest
    assert slow.looks == 1  # nobody waits for it a second time
    assert await fleet.current(leased.key) is None  # the lease was given back


async def test_nothing_came_while_a_tier_was_silent(made):
    slow, fleet = SilentForAWhile(), MemoryLeaseBoard()
    slow.over.set()
    here = daemon(MemoryTier(name="shared"), slow, fleet=fleet)
    answer = await here.ask_record(Asker("only", "here"), made.record("nowhere"))
    assert isinstance(answer, Leased) and slow.looks == 1
