"""What each fault of a bucket does to each verb of a daemon that keeps artifacts and leases in it.

CELLS is the matrix: data, each line of which is run here and printed in tests/README.md. A daemon's parts are put
together as app.py does, in this process, over a real object store behind a proxy that fails on demand.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from failure_matrix import Cell, NotApplicable, complete, table
from gcs_proxy import WRITES
from gcs_server import Cloud, gcs_tier, open_bucket

from coldstart.artifact import MAGIC, verify
from coldstart.config import DaemonConfig
from coldstart.errors import ArtifactCorrupt, TierError
from coldstart.identity.key import key_of
from coldstart.lease.board import Busy, End, Granted, MemoryLeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.outcomes import TROUBLE, Outcome, Reason
from coldstart.server.answers import Asker, Hit, Leased
from coldstart.server.holdings import Holdings, OperationCounts, Place
from coldstart.server.lookups import Lookups
from coldstart.server.publisher import Publication, reason_of
from coldstart.server.tally import Tally
from coldstart.store.breaker import Breaker
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier
from coldstart.store.wrap import Metered

WAITS = {"call_seconds": 0.6, "idle_seconds": 0.6, "backoff_seconds": 0.01}
SOON = 20.0


def gcs(
    fault: str, verb: str, outcome: str, reason: str = "", counter: str = ""
) -> Cell | NotApplicable:
    if outcome == "n/a":
        return NotApplicable("gcs", fault, verb, reason)
    return Cell("gcs", fault, verb, outcome, reason, counter)


# A lookup that ends in a lease was answered so because this daemon goes on by itself. "later": published here, and in
# the bucket once it can be. A lease is the fleet's, this daemon's own ("alone"), or somebody else's ("busy").
CELLS = (
    gcs("refused", "lookup", "error", "tier-down", "gcs.find.error"),
    gcs("refused", "fetch", "error", "tier-down", "gcs.get.error"),
    gcs("refused", "publish", "later", "ok", "gcs.put.error"),
    gcs("refused", "lease", "alone", "tier-down", "leases.alone"),
    gcs("slow", "lookup", "hit", "ok", "gcs.find.hit"),
    gcs("slow", "fetch", "hit", "ok", "gcs.get.hit"),
    gcs("slow", "publish", "stored", "ok", "gcs.put.ok"),
    gcs("slow", "lease", "fleet", "ok", "leases.fleet"),
    gcs("black hole", "lookup", "timeout", "deadline", "gcs.find.timeout"),
    gcs("black hole", "fetch", "timeout", "deadline", "gcs.get.timeout"),
    gcs("black hole", "publish", "later", "ok", "gcs.put.timeout"),
    gcs("black hole", "lease", "alone", "deadline", "leases.alone"),
    gcs("full", "lookup", "n/a", "asking needs no room"),
    gcs("full", "fetch", "hit", "ok", "gcs.get.hit"),
    gcs("full", "publish", "later", "ok", "gcs.put.full"),
    gcs("full", "lease", "alone", "quota", "leases.alone"),
    gcs("read-only", "lookup", "hit", "ok", "gcs.find.hit"),
    gcs("read-only", "fetch", "hit", "ok", "gcs.get.hit"),
    gcs("read-only", "publish", "later", "ok", "gcs.put.error"),
    gcs("read-only", "lease", "alone", "tier-down", "leases.alone"),
    gcs("evicting", "lookup", "miss", "cold", "gcs.find.miss"),
    gcs("evicting", "fetch", "miss", "evicted", "gcs.get.miss"),
    gcs("evicting", "publish", "stored", "ok", "gcs.put.ok"),
    gcs("evicting", "lease", "n/a", "leases have a lifetime of their own"),
    gcs("truncated", "lookup", "error", "corrupt", "gcs.heal.corrupt"),
    gcs("truncated", "fetch", "miss", "corrupt", "gcs.heal.corrupt"),
    gcs("truncated", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("truncated", "lease", "fleet", "ok", "leases.fleet"),
    gcs("bit-flipped", "lookup", "error", "corrupt", "gcs.get.corrupt"),
    gcs("bit-flipped", "fetch", "error", "corrupt", "gcs.get.corrupt"),
    gcs("bit-flipped", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("bit-flipped", "lease", "fleet", "ok", "leases.fleet"),
    gcs("wrong size", "lookup", "error", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong size", "fetch", "miss", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong size", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("wrong size", "lease", "busy", "ok", "leases.busy"),
    gcs("wrong key", "lookup", "error", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong key", "fetch", "miss", "corrupt", "gcs.heal.corrupt"),
    gcs("wrong key", "publish", "repaired", "ok", "gcs.heal.corrupt"),
    gcs("wrong key", "lease", "busy", "ok", "leases.busy"),
    gcs("old format", "lookup", "miss", "cold", "gcs.find.miss"),
    gcs("old format", "fetch", "miss", "evicted", "gcs.get.miss"),
    gcs("old format", "publish", "here only", "ok", "gcs.put.error"),
    gcs("old format", "lease", "n/a", "a note of another release is none, as if it were truncated"),
    gcs("lost mid-read", "lookup", "hit", "ok", "gcs.retry.error"),
    gcs("lost mid-read", "fetch", "hit", "ok", "gcs.retry.error"),
    gcs("lost mid-read", "publish", "stored", "ok", "gcs.retry.error"),
    gcs("lost mid-read", "lease", "fleet", "ok", "gcs.retry.error"),
    gcs("back again", "lookup", "hit", "ok", "gcs.breaker.closed"),
    gcs("back again", "fetch", "hit", "ok", "gcs.breaker.closed"),
    gcs("back again", "publish", "stored", "ok", "gcs.breaker.closed"),
    gcs("back again", "lease", "fleet", "ok", "leases.shared"),
)
RUN = [cell for cell in CELLS if isinstance(cell, Cell)]


class World:
    """A daemon's parts over memory and a bucket, and another daemon's tier in the same bucket."""

    _ids = itertools.count()

    def __init__(self, cloud: Cloud, made) -> None:
        self.cloud, self.made = cloud, made
        self.counts = OperationCounts()
        self.other = gcs_tier(cloud)
        tell = self.counts
        self.bucket = open_bucket(
            cloud, patience=WAITS, on_retry=lambda word: tell("gcs", "retry", word, 0.0)
        )
        from coldstart.lease.gcs import GcsLeaseBoard
        from coldstart.store.gcs import GcsTier

        self.gcs = GcsTier(self.bucket, "team/x", recorder=tell)
        self.breaker = Breaker(self.gcs, recorder=tell, first_seconds=0.2)
        self.memory = MemoryTier()
        self.chain = ChainTier(
            [Metered(self.memory, tell), Metered(self.breaker, tell)],
            recorder=tell,
            write_back_seconds=0.1,
        )
        self.holdings = Holdings(
            self.chain, None, tell, [Place("memory", "memory://"), Place("gcs", "gs://b")]
        )
        self.fleet = GcsLeaseBoard(self.bucket, "team/x", poll_seconds=0.1)
        self.board = FleetLeaseBoard(self.fleet, MemoryLeaseBoard(), on_change=self._leases)
        self.tally = Tally()
        self.config = DaemonConfig(listen=("unix:///x",), store=("memory://",))
        self.lookups = Lookups(self.config, self.holdings, MemoryLeaseBoard(), self.tally)
        self.record = made.record("matrix")
        self.key = key_of(self.record)
        # Long enough for cuts and flips to hit the payload; not so long that anything takes its time.
        self.artifact = made.artifact(self.record, bytes(range(256)) * 400, codec="raw")
        self.digest = self.artifact.header.digest

    def _leases(self, words: str) -> None:
        self.counts("leases", "alone" if words else "shared", "", 0.0)

    async def close(self) -> None:
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

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON):
            while not true():
                await asyncio.sleep(0.02)


@pytest.fixture
async def world(cloud: Cloud, made) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        one = World(cloud, made)
        stack.push_async_callback(one.close)
        stack.callback(cloud.proxy.heal)  # first of all: closing waits for answers
        yield one


# --- the faults ----------------------------------------------------------------------------------------------


def at_rest(world: World, fault: str, part: str) -> None:
    """Damage to what is stored, behind the daemon's back."""
    server, bucket = world.cloud.server, world.cloud.bucket
    name = world.cloud.only(part)
    if fault == "evicting":
        server.delete(bucket, name)
        return
    payload = world.artifact.payload.size_bytes
    change: dict[str, Callable[[bytes], bytes]] = {
        "truncated": lambda data: data[: payload // 2],
        "bit-flipped": lambda data: data[:5000] + bytes([data[5000] ^ 4]) + data[5001:],
        "wrong size": lambda data: data + b"more",
        "wrong key": lambda data: other_artifact(world),
        "old format": lambda data: b"CSA0" + data[4:],
    }
    assert MAGIC == b"CSA1"
    server.damage(bucket, name, change[fault])


def other_artifact(world: World) -> bytes:
    made = world.made.artifact(world.made.record("another"))
    return made.header.prefix() + b"".join(made.payload.chunks())


def on_the_way(world: World, fault: str, verb: str) -> None:
    proxy = world.cloud.proxy
    if fault in ("refused", "back again"):
        proxy.refuse()
    elif fault == "slow":
        proxy.fail(seconds=0.05)
    elif fault == "black hole":
        proxy.fail(silent=True)
    elif fault == "full":
        proxy.fail(ops=WRITES, status=429 if verb == "lease" else 403, reason="quotaExceeded")
    elif fault == "read-only":
        proxy.fail(ops=WRITES, status=403, reason="forbidden")
    else:
        assert fault == "lost mid-read"
        op = {"publish": "write", "lease": "stat"}.get(verb, "read")
        proxy.fail(ops=(op,), times=1, cut_after=60)


AT_REST = ("evicting", "truncated", "bit-flipped", "wrong size", "wrong key", "old format")


async def recover(world: World) -> None:
    """It refused until the breaker opened; now it is there again."""
    for _ in range(3):
        with pytest.raises(TierError):
            await world.breaker.find(world.made.artifact(world.made.record("any")).header.key)
    assert world.breaker.open == ("reads",)
    world.cloud.proxy.accept()
    await world.until(lambda: not world.breaker.open)


# --- the verbs -----------------------------------------------------------------------------------------------


async def lookup(world: World, fault: str) -> tuple[str, str]:
    await world.seed()
    if fault in AT_REST:
        at_rest(world, fault, "/artifacts/")
    else:
        on_the_way(world, fault, "lookup")
    if fault == "back again":
        await recover(world)
    answer = await world.lookups.ask_record(world.asker(), world.record)
    if isinstance(answer, Hit):
        assert answer.header == world.artifact.header
        return "hit", "waited" if answer.waited else "ok"
    assert isinstance(answer, Leased), answer  # one of this daemon's clients compiles
    missed = answer.reason in (Reason.COLD, Reason.EVICTED)
    outcome = TROUBLE.get(answer.reason, Outcome.MISS if missed else Outcome.ERROR)
    return outcome.value, answer.reason.value


async def fetch(world: World, fault: str) -> tuple[str, str]:
    await world.seed()
    assert await world.holdings.find(world.key) == (world.artifact.header,)
    if fault in AT_REST:
        at_rest(world, fault, "/artifacts/")
    else:
        on_the_way(world, fault, "fetch")
    if fault == "back again":
        await recover(world)
    try:
        got = await world.lookups.fetch("fetch", world.key, world.digest)
    except ArtifactCorrupt as exc:
        return "error", exc.reason
    except TierError as exc:
        reason = reason_of(exc)
        return TROUBLE[reason].value, reason.value
    if got is None:
        return "miss", "corrupt" if world.holdings.damaged(world.key) else "evicted"
    assert verify(got) == b"".join(world.artifact.payload.chunks())
    return "hit", "ok"


async def publish(world: World, fault: str) -> tuple[str, str]:
    leased = None
    if fault in AT_REST:
        await world.seed()
        at_rest(world, fault, "/artifacts/")
    else:
        leased = await world.lookups.ask_record(world.asker(), world.record)
        on_the_way(world, fault, "publish")
    if fault == "back again":
        await recover(world)
    header = world.artifact.header
    publication = Publication(
        "other", leased.lease_id if leased else "", header, world.record, planned=False
    )
    published = await world.lookups.publish(publication, _chunks(world))
    assert published.digest == header.digest and published.kept_local is None
    assert await world.memory.find(world.key) == (header,)  # whatever became of the bucket
    if fault == "old format":
        assert world.chain.late_puts == 0 and world.gcs.writable
        kept = world.cloud.server.read(world.cloud.bucket, world.cloud.only())
        assert kept.startswith(b"CSA0")  # of another release, and left alone
        return "here only", "ok"
    later = world.chain.late_puts > 0
    if later:
        assert not world.cloud.names("team/x/coldstart/v1/artifacts/")
        world.cloud.proxy.heal()
        await world.until(lambda: world.chain.late_puts == 0)
    got = await world.other.get(world.key, header.digest)
    assert got is not None and verify(got) and await world.other.record(world.key) == world.record
    if later:
        return "later", "ok"
    repaired = world.count("gcs.heal.corrupt") > 0
    return "repaired" if repaired else "stored", "ok"


async def _chunks(world: World) -> AsyncIterator[bytes]:
    for chunk in world.artifact.payload.chunks():
        yield chunk


async def lease(world: World, fault: str) -> tuple[str, str]:
    key, server, bucket = world.key, world.cloud.server, world.cloud.bucket
    if fault in AT_REST:
        held = await other_board(world).acquire(key, "other", 5.0, 0)
        assert isinstance(held, Granted)
        name = world.cloud.only("/leases/")
        note = server.about(bucket, name)["metadata"]["coldstart-lease"]
        if fault == "wrong size":
            server.write(bucket, name, b"a body", {"coldstart-lease": note})
        elif fault == "wrong key":
            await world.fleet._bucket.delete(name, held.lease.fence)
            server.write(
                bucket, name.replace(key, f"cs1-{'1' * 64}"), b"", {"coldstart-lease": note}
            )
            server.write(bucket, name, b"", {"coldstart-lease": note})
        else:
            bad = note[: len(note) // 2] if fault == "truncated" else note.replace("[", "{")
            server.write(bucket, name, b"", {"coldstart-lease": bad})
    else:
        on_the_way(world, fault, "lease")
    answer = await world.board.acquire(key, "me", 5.0, 0)
    if isinstance(answer, Busy):
        assert answer.holder == "other"
        world.counts("leases", "busy", "", 0.0)
        if fault == "wrong key":  # it runs out, as nobody renews it
            assert (await world.board.wait(key, SOON)).why is End.EXPIRED
        return "busy", "ok"
    again = await world.board.acquire(key, "another of this daemon", 5.0, 0)
    assert isinstance(again, Busy)  # whatever the fleet's board says, one compile here
    if fault == "back again":
        assert world.board.trouble
        world.cloud.proxy.accept()
        async with asyncio.timeout(SOON):
            while world.board.trouble:
                assert await world.board.renew(answer.lease.id) == 5.0  # as heartbeats do
                await asyncio.sleep(0.1)
    if world.board.trouble:
        why = world.board.trouble
        word = "deadline" if "no answer" in why else "quota" if "429" in why else "tier-down"
        await world.board.release(answer.lease.id)
        return "alone", word
    seen = await other_board(world).acquire(key, "other", 5.0, 0)
    assert isinstance(seen, Busy) and seen.holder == "me"
    world.counts("leases", "fleet", "", 0.0)
    await world.board.release(answer.lease.id)
    assert await other_board(world).current(key) is None
    return "fleet", "ok"


def other_board(world: World):
    """Of another daemon: a new one at each call, so that what it says is what the bucket says."""
    from coldstart.lease.gcs import GcsLeaseBoard

    return GcsLeaseBoard(world.other._bucket, "team/x")


DO: dict[str, Callable[[World, str], Awaitable[tuple[str, str]]]] = {
    "lookup": lookup,
    "fetch": fetch,
    "publish": publish,
    "lease": lease,
}


@pytest.mark.parametrize("cell", RUN, ids=str)
async def test_cell(world: World, cell: Cell) -> None:
    ended = await DO[cell.verb](world, cell.fault)
    seen = {".".join(key).rstrip("."): n for key, n in world.counts.operations.items() if n}
    assert ended == (cell.outcome, cell.reason), seen
    assert world.count(cell.counter) >= 1, seen


def test_no_pair_is_missing_and_few_are_not_applicable() -> None:
    assert complete(CELLS, "gcs") and len(RUN) == 49
    lines = table(CELLS)
    assert len(lines) == 2 + 13 and all(line.count("|") == 7 for line in lines)
