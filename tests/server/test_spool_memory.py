"""What publishes hold in memory has one bound for a daemon; what has no room is told so, and costs no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coldstart.artifact import Artifact, verify
from coldstart.config import DaemonConfig
from coldstart.errors import ArtifactCorrupt, TierFull
from coldstart.identity.key import KeyRecord
from coldstart.lease.board import MemoryLeaseBoard
from coldstart.outcomes import Reason
from coldstart.server.answers import Asker, Refused
from coldstart.server.holdings import Holdings, OperationCounts
from coldstart.server.lookups import Lookups
from coldstart.server.publisher import Publication, Published
from coldstart.server.spool import DiskPlace, Spool, SpoolMemory
from coldstart.server.tally import Tally
from coldstart.store.memory import MemoryTier

KIB = 1 << 10
LIMIT = 64 * KIB


class Publisher:
    """A daemon without a disk, and publishes that go on when they are told to."""

    def __init__(self) -> None:
        self.tier, self.tally = MemoryTier(), Tally()
        config = DaemonConfig(listen=("unix:///x",), store=("memory://",), spool_memory=LIMIT)
        holdings = Holdings(self.tier, None, OperationCounts())
        self.lookups = Lookups(config, holdings, MemoryLeaseBoard(), self.tally)

    @property
    def held_bytes(self) -> int:
        return self.lookups._publisher._spool_memory.held_bytes

    async def begin(
        self, record: KeyRecord, made: Artifact, gate: asyncio.Event | None = None, lookup: str = ""
    ) -> asyncio.Task[Published]:
        lease_id = ""
        if lookup:
            asker = Asker(lookup_id=lookup, holder=lookup)
            lease_id = (await self.lookups.ask_record(asker, record)).lease_id

        async def chunks() -> AsyncIterator[bytes]:
            for chunk in made.payload.chunks(KIB):
                yield chunk
            if gate is not None:
                await gate.wait()

        about = Publication(lookup, lease_id, made.header, record, planned=False)
        return asyncio.create_task(self.lookups.publish(about, chunks()))


async def until_held(publisher: Publisher, bytes_held: int) -> None:
    async with asyncio.timeout(20):
        while publisher.held_bytes != bytes_held:
            await asyncio.sleep(0)


async def test_all_publishes_share_one_bound(made: Any) -> None:
    publisher, gate = Publisher(), asyncio.Event()
    records = [made.record(f"r{n}") for n in range(4)]
    sizes = (24, 24, 20, 4)  # KiB
    artifacts = [
        made.artifact(record, raw=bytes([n]) * size * KIB, codec="raw")
        for n, (record, size) in enumerate(zip(records, sizes, strict=True))
    ]
    first = await publisher.begin(records[0], artifacts[0], gate, "first")
    second = await publisher.begin(records[1], artifacts[1], gate, "second")
    await until_held(publisher, 48 * KIB)
    third = await publisher.begin(records[2], artifacts[2], lookup="third")
    assert await third == Published(artifacts[2].header.digest, kept_local=Reason.QUOTA)
    told = await publisher.lookups.ask_record(Asker("other", "other"), records[2])
    assert isinstance(told, Refused) and told.reason is Reason.QUOTA
    assert "spool_memory" in told.message
    assert publisher.tally.event_counts["quota"] == 1 and publisher.tally.kept_local == 1
    await until_held(publisher, 48 * KIB)  # what it had sent was let go
    small = await publisher.begin(records[3], artifacts[3])
    assert (await small).kept_local is None
    second.cancel()  # its client is gone
    await asyncio.wait({second})
    await until_held(publisher, 24 * KIB)
    gate.set()
    assert (await first).kept_local is None and publisher.held_bytes == 0
    for made_one, there in zip(artifacts, (True, False, False, True), strict=True):
        got = await publisher.tier.get(made_one.header.key, made_one.header.digest)
        assert (got is not None and verify(got) == verify(made_one)) is there


async def test_putting_the_pieces_together_takes_as_much_again(made: Any) -> None:
    publisher, record = Publisher(), made.record("twice")
    fits = made.artifact(record, raw=b"f" * (LIMIT // 2), codec="raw")
    assert (await (await publisher.begin(record, fits))).kept_local is None
    other = made.record("over")
    over = made.artifact(other, raw=b"o" * (LIMIT // 2 + 1), codec="raw")
    task = await publisher.begin(other, over)
    assert (await task).kept_local is Reason.TOO_LARGE and publisher.held_bytes == 0
    gate = asyncio.Event()
    waits, comes = made.record("waits"), made.record("comes")
    half = made.artifact(waits, raw=b"w" * (LIMIT // 2), codec="raw")
    holding = await publisher.begin(waits, half, gate)
    await until_held(publisher, LIMIT // 2)
    late = made.artifact(comes, raw=b"c" * (LIMIT // 4 + KIB), codec="raw")
    assert (await (await publisher.begin(comes, late))).kept_local is Reason.QUOTA
    gate.set()
    assert (await holding).kept_local is None and publisher.held_bytes == 0


async def test_bytes_that_do_not_fit_are_let_go_too(made: Any) -> None:
    publisher, record = Publisher(), made.record("bad")
    good = made.artifact(record, raw=b"good" * KIB, codec="raw")
    bad = Artifact(good.header, made.artifact(record, raw=b"evil" * KIB, codec="raw").payload)
    with pytest.raises(ArtifactCorrupt):
        await (await publisher.begin(record, bad))
    assert publisher.held_bytes == 0


async def test_a_disk_takes_them_out_of_memory(tmp_path: Path, made: Any) -> None:
    """However large; only what is not written yet counts."""
    path = tmp_path / "spool"
    path.touch()
    refused: list[object] = []

    async def grow(path: Path, to_bytes: int) -> None: ...

    async def run(work: Any) -> None:
        work()

    record, memory = made.record("disk"), SpoolMemory(6 << 20)
    large = made.artifact(record, raw=bytes(16 << 20), codec="raw")

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in large.payload.chunks(1 << 20):
            yield chunk

    place = DiskPlace(path, grow, run, refused.append)
    async with Spool(large.header, place, memory) as spool:
        assert verify(await spool.take(chunks())) == bytes(16 << 20)
        assert memory.held_bytes == 0 and refused == []
    path.touch()
    memory = SpoolMemory(1 << 20)
    async with Spool(large.header, DiskPlace(path, grow, run, refused.append), memory) as spool:
        with pytest.raises(TierFull, match="spool_memory"):
            await spool.take(chunks())
    assert memory.held_bytes == 0
