"""What was rejected, purged or lost doesn't come back by what goes on by itself, and nobody stands in line for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, Header
from coldstart.errors import TierFull
from coldstart.identity.key import KeyRecord
from coldstart.server.upkeep import Upkeep
from coldstart.store import agreement
from coldstart.store.agreement import Agreement
from coldstart.store.chain import ChainTier
from coldstart.store.late_marks import LateMarks
from coldstart.store.memory import MemoryTier
from coldstart.store.selection import Selection
from coldstart.store.wrap import ReadOnly
from coldstart.store.write_back import WriteBack

New = Callable[..., Artifact]


class Slow(MemoryTier):
    """Puts wait until they are let go."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        self.begun.set()
        await self.go.wait()
        return await super().put(artifact, record)


async def soon(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_copy_that_is_rejected_twice_is_gone_everywhere(new_artifact: New) -> None:
    """The lower tier's copy is copied up while the client looks at it: it is as bad, and neither may stay."""
    upper, lower = MemoryTier(name="upper"), MemoryTier(name="lower")
    chain = ChainTier([upper, lower])
    bad, good = new_artifact("a", b"bad"), new_artifact("a", b"good")
    key, digest = bad.header.key, bad.header.digest
    await chain.put(bad, None)
    assert await chain.quarantine(key, digest, "corrupt")
    assert await chain.get(key, digest) is not None  # the lower one's, which is given to the upper
    await chain.settle()
    assert await chain.quarantine_everywhere(key, digest, "corrupt")
    assert await upper.find(key) == await lower.find(key) == ()
    assert await chain.put(good, None) == good.header
    assert await chain.find(key) == (good.header,)
    await chain.close()


async def test_a_purge_waits_for_a_put_that_is_under_way(new_artifact: New) -> None:
    upper, lower = MemoryTier(name="upper"), Slow("lower")
    chain = ChainTier([upper, lower])
    made = new_artifact("a")
    putting = asyncio.create_task(chain.put(made, None))
    await lower.begun.wait()

    async def purge() -> list[str]:
        return [row.tier async for row in Upkeep(chain).purge(Selection())]

    purging = asyncio.create_task(purge())
    await soon(lambda: not upper.used_bytes)
    await asyncio.sleep(0.1)
    assert not purging.done()
    lower.go.set()
    assert await putting == made.header
    assert "upper" in await purging
    assert await chain.find(made.header.key) == ()
    await chain.close()


async def test_a_purge_forgets_what_is_owed(new_artifact: New, tmp_path: Path) -> None:
    marks = LateMarks(tmp_path / "late")
    upper, lower = MemoryTier(name="upper"), MemoryTier(name="lower")
    chain = ChainTier([upper, lower], marks=marks, write_back_seconds=0.2)
    made = new_artifact("a")
    await upper.put(made, None)
    await chain._later.add(lower, made.header)
    assert chain.late_puts == 1 and len(marks.all("lower")) == 1
    assert [row.tier async for row in Upkeep(chain).purge(Selection())] == ["upper"]
    assert chain.late_puts == 0 and len(marks.all("lower")) == 0
    await asyncio.sleep(0.5)
    assert await chain.find(made.header.key) == ()
    await chain.close()


async def test_what_finds_no_room_lets_the_others_pass(new_artifact: New) -> None:
    class Tight(MemoryTier):
        async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
            if artifact.payload.size_bytes > 1000:
                raise TierFull("tight: no room")
            return await super().put(artifact, record)

    upper, lower = MemoryTier(name="upper"), Tight(name="lower")
    chain = ChainTier([upper, lower], write_back_seconds=0.01)
    large, small = new_artifact("large", b"x" * 5000), new_artifact("small")
    for made in (large, small):
        await upper.put(made, None)
        await chain._later.add(lower, made.header)
    await soon(lambda: chain.late_puts == 1)
    assert await lower.find(small.header.key) == (small.header,)
    await chain.close()


async def test_who_may_not_write_leaves_the_marks_of_who_may(
    new_artifact: New, tmp_path: Path
) -> None:
    marks = LateMarks(tmp_path / "late")
    made, tier = new_artifact("a"), MemoryTier(name="lower")
    marks.add("lower", made.header)

    async def source(tier: object, header: Header) -> None:
        return None

    async def adopt(tier: object, mine: Header, theirs: Header) -> None: ...

    later = WriteBack(lambda *told: None, source, adopt, marks=marks, first_seconds=0.01)
    await later.resume([ReadOnly(tier)])
    await asyncio.sleep(0.1)
    assert len(later) == 0 and len(marks.all("lower")) == 1
    await later.close()


def test_what_a_tier_had_is_not_believed_for_ever(new_artifact: New) -> None:
    clock = [0.0]
    seen = Agreement(now=lambda: clock[0])
    header = new_artifact("a").header
    seen.note(header)
    assert seen.holds(header)
    clock[0] = agreement.BELIEVED_SECONDS + 1
    assert not seen.holds(header)


async def test_a_tier_that_lost_its_copy_is_given_it_again(
    new_artifact: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "BELIEVED_SECONDS", 0.0)
    upper, lower = MemoryTier(name="upper"), MemoryTier(name="lower")
    chain = ChainTier([upper, lower], write_back_seconds=0.01)
    made = new_artifact("a")
    await chain.put(made, None)
    await lower.delete(made.header.key, made.header.digest)
    assert await chain.get(made.header.key, made.header.digest) is not None
    await soon(lambda: lower.used_bytes > 0)
    await chain.close()
