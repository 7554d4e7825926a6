"""FailureWorld: a daemon's parts over a place that fails on demand, and what each verb comes to there.

The harness of the three files of the failure matrix. A file holds its cells and a subclass that says how its place is
built and how each fault is brought about; the verbs are here, once, so that one word means the same in every row:

    lookup   hit, or why a client compiles; what is handed out is read, as a client reads it before it loads
    fetch    of what was found a moment ago: hit, miss or error
    publish  stored, repaired (a bad copy was there), later (here now, there once it can be), here only, host only
             (nothing was stored)
    lease    fleet, alone (this daemon's own), busy (somebody else's)
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

import pytest
from failure_matrix import Cell

from coldstart.artifact import verify
from coldstart.config import DaemonConfig
from coldstart.errors import ArtifactCorrupt, TierError
from coldstart.identity.key import key_of
from coldstart.lease.board import Busy, End, Granted, LeaseBoard, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.outcomes import TROUBLE, Outcome, Reason
from coldstart.server.answers import Answer, Asker, Hit, Leased, Refused
from coldstart.server.holdings import Holdings, OperationCounts, Place
from coldstart.server.lookups import Lookups
from coldstart.server.publisher import Publication, Published, reason_of
from coldstart.server.tally import Tally
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier
from coldstart.store.tier import Tier
from coldstart.store.wrap import Metered

SOON = 20.0
LEASE_SECONDS = 5.0
OTHERS_SECONDS = 1.0  # a lease of another daemon that dies with it
WRITE_BACK_SECONDS = 0.1

# Damage to what is stored; all other faults are of the way there.
AT_REST = ("evicting", "truncated", "bit-flipped", "wrong size", "wrong key", "old format")

Ended = tuple[str, str]  # outcome, reason


class FailureWorld:
    """One daemon put together as app.py does, and another one's tier at the same place."""

    place: ClassVar[str]
    no_room_words: ClassVar[str]  # in what its board says for people where the place is full
    other: Tier  # another daemon's
    tier: Tier  # of this daemon, without wrappers
    board: FleetLeaseBoard

    _ids = itertools.count()

    def __init__(self, made: Any) -> None:
        self.made = made
        self.counts = OperationCounts()
        self.record = made.record("matrix")
        self.key = key_of(self.record)
        # Long enough for cuts and flips to hit the payload; not so long that anything takes its time.
        self.artifact = made.artifact(self.record, bytes(range(256)) * 400, codec="raw")
        self.digest = self.artifact.header.digest
        self.memory: MemoryTier | None = None

    def above(self, below: Tier) -> ChainTier:
        """Memory over `below`, as a chain."""
        self.memory = MemoryTier()
        return ChainTier(
            [Metered(self.memory, self.counts), Metered(below, self.counts)],
            recorder=self.counts,
            write_back_seconds=WRITE_BACK_SECONDS,
        )

    def assemble(self, chain: Tier, *, disk: Any = None, fleet: LeaseBoard | None = None) -> None:
        """The rest of a daemon, over its store and the fleet's board."""
        self.chain: Any = chain
        names = [tier.name for tier in getattr(chain, "tiers", (chain,))]
        places = [Place(name, f"{name}://") for name in names]
        self.holdings = Holdings(chain, disk, self.counts, places)
        if fleet is not None:
            self.board = FleetLeaseBoard(fleet, MemoryLeaseBoard(), on_change=self._leases)
        config = DaemonConfig(listen=("unix:///x",), store=("memory://",))
        self.lookups = Lookups(config, self.holdings, MemoryLeaseBoard(), Tally())

    # --- what a place says ---------------------------------------------------------------------

    async def damage(self, fault: str) -> None:
        """One of AT_REST, behind the daemon's back."""
        raise NotImplementedError

    def disturb(self, fault: str, verb: str) -> None:
        """Any other fault, from now on; "back again" begins as "refused"."""
        raise NotImplementedError

    async def recover(self) -> None:
        """It refused and that was noticed; now it is there again, and that was noticed too."""
        raise NotImplementedError

    def heal(self) -> None:
        """No fault any more."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Before a fault of the way: what a daemon that runs has open is open."""

    async def ready_to_lease(self) -> None:
        """The same for its board."""

    def holds_nothing(self) -> bool:
        """Nothing of an artifact is at the place, for sure."""
        raise NotImplementedError

    def other_board(self) -> LeaseBoard:
        """Of another daemon."""
        raise NotImplementedError

    async def damage_lease(self, fault: str, fence: int) -> None:
        """One of AT_REST, of the lease on `key` that another daemon holds."""
        raise NotImplementedError

    def still_there(self, published: Published) -> bool:
        """True: what was in the way at the place is of another release, and was left alone."""
        return False

    # --- what tests of it need -----------------------------------------------------------------

    def _leases(self, words: str) -> None:
        self.counts("leases", "alone" if words else "shared", "", 0.0)

    async def close(self) -> None:
        if hasattr(self, "board"):
            await self.board.close()
        await self.chain.close()
        await self.other.close()

    async def seed(self) -> None:
        """Another daemon published it."""
        assert await self.other.put(self.artifact, self.record) == self.artifact.header

    def asker(self) -> Asker:
        return Asker(lookup_id=f"matrix-{next(self._ids)}", holder="me")

    def count(self, counter: str) -> int:
        tier, op, *outcome = counter.split(".")
        return self.counts.operations[tier, op, outcome[0] if outcome else ""]

    def seen(self) -> dict[str, int]:
        """All that was counted, as `coldstart stats` names it."""
        return {".".join(key).rstrip("."): n for key, n in self.counts.operations.items() if n}

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not true():
                await asyncio.sleep(0.02)

    async def go_wrong(self, fault: str, verb: str) -> None:
        if fault in AT_REST:
            await self.damage(fault)
            return
        self.disturb(fault, verb)
        if fault == "back again":
            await self.recover()

    async def publish_it(self, lease_id: str = "") -> Published:
        publication = Publication("other", lease_id, self.artifact.header, self.record, False)
        return await self.lookups.publish(publication, self._chunks())

    async def _chunks(self) -> AsyncIterator[bytes]:
        for chunk in self.artifact.payload.chunks():
            yield chunk

    async def take(self, asker: Asker, hit: Hit) -> Answer:
        """Read what was handed out; a copy that is bad is rejected, and the next answer counts."""
        try:
            got = await self.lookups.fetch(asker.lookup_id, self.key, hit.header.digest)
            assert got is not None and verify(got) == verify(self.artifact)
        except ArtifactCorrupt:
            return await self.lookups.reject(
                asker.lookup_id, self.key, hit.header.digest, Reason.CORRUPT
            )
        return hit


# --- the verbs -----------------------------------------------------------------------------------------------


async def lookup(world: FailureWorld, fault: str) -> Ended:
    await world.seed()
    await world.ready()
    await world.go_wrong(fault, "lookup")
    asker = world.asker()
    answer = await world.lookups.ask_record(asker, world.record)
    if isinstance(answer, Hit):
        assert answer.header == world.artifact.header and answer.tier == world.place
        answer = await world.take(asker, answer)
    if isinstance(answer, Hit):
        return "hit", "waited" if answer.waited else "ok"
    # One of this daemon's clients compiles, or where there is no other tier to publish to, each.
    assert isinstance(answer, Leased | Refused), answer
    return _word(answer.reason)


def _word(reason: Reason) -> Ended:
    missed = reason in (Reason.COLD, Reason.EVICTED)
    return TROUBLE.get(reason, Outcome.MISS if missed else Outcome.ERROR).value, reason.value


async def fetch(world: FailureWorld, fault: str) -> Ended:
    await world.seed()
    assert await world.holdings.find(world.key) == (world.artifact.header,)
    await world.go_wrong(fault, "fetch")
    try:
        got = await world.lookups.fetch("fetch", world.key, world.digest)
    except ArtifactCorrupt as exc:
        return "error", exc.reason
    except TierError as exc:
        return _word(reason_of(exc))
    if got is None:
        return "miss", "corrupt" if world.holdings.damaged(world.key) else "evicted"
    try:
        assert verify(got) == verify(world.artifact)
    except ArtifactCorrupt as exc:  # found by who reads it, and rejected
        assert await world.holdings.quarantine(world.key, world.digest, exc.reason)
        return "error", exc.reason
    return "hit", "ok"


async def publish(world: FailureWorld, fault: str) -> Ended:
    leased = None
    if fault in AT_REST:
        await world.seed()
    else:
        leased = await world.lookups.ask_record(world.asker(), world.record)
        assert isinstance(leased, Leased)
    await world.go_wrong(fault, "publish")
    published = await world.publish_it(leased.lease_id if leased else "")
    assert published.digest == world.digest and not published.adopted
    if published.kept_local is not None:
        world.heal()
        assert world.holds_nothing()
        assert (await world.publish_it()).kept_local is None  # nothing of the fault is left
        await _can_be_read(world)
        return "host only", published.kept_local.value
    if world.memory is not None:  # whatever became of what is below
        assert await world.memory.find(world.key) == (world.artifact.header,)
    if world.still_there(published):
        return "here only", "ok"
    late = getattr(world.chain, "late_puts", 0) > 0
    if late:
        assert world.holds_nothing()
        world.heal()
        await world.until(lambda: world.chain.late_puts == 0)
    await _can_be_read(world)
    if late:
        return "later", "ok"
    return "repaired" if world.count(f"{world.place}.heal.corrupt") else "stored", "ok"


async def _can_be_read(world: FailureWorld) -> None:
    """By another daemon, with its key record."""
    got = await world.other.get(world.key, world.digest)
    assert got is not None and verify(got) == verify(world.artifact)
    assert await world.other.record(world.key) == world.record


async def lease(world: FailureWorld, fault: str) -> Ended:
    key, board = world.key, world.board
    await world.ready_to_lease()
    if fault in AT_REST:
        held = await world.other_board().acquire(key, "other", OTHERS_SECONDS, 0)
        assert isinstance(held, Granted)
        await world.damage_lease(fault, held.lease.fence)
    else:
        world.disturb(fault, "lease")
    answer = await board.acquire(key, "me", LEASE_SECONDS, 0)
    if isinstance(answer, Busy):
        assert answer.holder.startswith("other")
        world.counts("leases", "busy", "", 0.0)
        # It runs out, as nobody renews it.
        assert (await board.wait(key, SOON)).why is End.EXPIRED
        return "busy", "ok"
    again = await board.acquire(key, "another of this daemon", LEASE_SECONDS, 0)
    assert isinstance(again, Busy)  # whatever the fleet's board says, one compile here
    if fault == "back again":
        assert board.trouble
        world.heal()
        async with asyncio.timeout(SOON):
            while board.trouble:
                assert await board.renew(answer.lease.id) == LEASE_SECONDS  # as heartbeats do
                await asyncio.sleep(0.05)
    other = world.other_board()
    if board.trouble:
        word = "deadline" if "no answer" in board.trouble else "tier-down"
        word = "quota" if world.no_room_words in board.trouble else word
        world.heal()
        assert await other.current(key) is None  # the fleet knows nothing of it
        await board.release(answer.lease.id)
        return "alone", word
    seen = await other.acquire(key, "other", LEASE_SECONDS, 0)
    assert isinstance(seen, Busy) and seen.holder == "me"
    world.counts("leases", "fleet", "", 0.0)
    await board.release(answer.lease.id)
    assert await other.current(key) is None
    return "fleet", "ok"


DO: dict[str, Callable[[FailureWorld, str], Awaitable[Ended]]] = {
    "lookup": lookup,
    "fetch": fetch,
    "publish": publish,
    "lease": lease,
}


async def check(world: FailureWorld, cell: Cell) -> None:
    """Run one cell and compare how it ended, and what was counted."""
    assert cell.place == world.place
    ended = await DO[cell.verb](world, cell.fault)
    if ended != (cell.outcome, cell.reason) or not world.count(cell.counter):
        wanted = f"{cell.outcome}, {cell.reason}; {cell.counter}"
        pytest.fail(f"{cell} ended as {', '.join(ended)}, not {wanted}; counted {world.seen()}")
