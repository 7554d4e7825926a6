"""The lowest tier decides, also about copies of what it never had; and what it is owed outlives a kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, Header, verify
from coldstart.errors import TierError
from coldstart.store.chain import ChainTier
from coldstart.store.late_marks import LateMarks
from coldstart.store.memory import MemoryTier
from coldstart.store.tier import Tier
from coldstart.store.urls import open_store
from coldstart.store.wrap import Failing

New = Callable[..., Artifact]


class Fleet:
    """Daemons with a tier of their own each, over two that they share; the lowest can be made to fail for one."""

    def __init__(self) -> None:
        self.middle, self.lowest = MemoryTier(name="middle"), MemoryTier(name="lowest")
        self.chains: list[ChainTier] = []

    def daemon(self, own: Tier | None = None, marks: LateMarks | None = None) -> Daemon:
        one = Daemon(own or MemoryTier(name="own"), self, marks)
        self.chains.append(one.chain)
        return one


class Daemon:
    def __init__(self, own: Tier, fleet: Fleet, marks: LateMarks | None) -> None:
        self.own = own
        self.middle = Failing(fleet.middle, TierError("middle: away"), ())
        self.lowest = Failing(fleet.lowest, TierError("lowest: away"), ())
        self.chain = ChainTier(
            [own, self.middle, self.lowest], write_back_seconds=0.01, marks=marks
        )

    def cut_off(self, *tiers: Failing) -> None:
        for tier in tiers:
            tier.ops = {"find", "get", "put", "record", "delete"}

    def connect(self) -> None:
        self.middle.ops = self.lowest.ops = set()

    async def has(self, header: Header) -> bool:
        return await self.own.find(header.key) == (header,)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    yield made
    for chain in made.chains:
        await chain.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not await true():  # type: ignore[misc]
            await asyncio.sleep(0.01)


async def test_a_copy_of_what_the_lowest_tier_refused_goes_too(
    fleet: Fleet, new_artifact: New
) -> None:
    """Found by the chaos run: another daemon copied it from the middle before it was taken back."""
    one, two = fleet.daemon(), fleet.daemon()
    mine, theirs = new_artifact("a", b"mine"), new_artifact("a", b"theirs")
    key = mine.header.key
    one.cut_off(one.lowest)
    await one.chain.put(mine, None)  # into its own tier and the middle
    got = await two.chain.get(key, mine.header.digest)
    assert got is not None and verify(got) == b"mine"
    await two.chain.settle()
    assert await two.has(mine.header)  # a copy of its own
    await fleet.lowest.put(theirs, None)  # a third daemon's, which was first there
    one.connect()
    await until(lambda: one.has(theirs.header))
    await two.chain.get(key, mine.header.digest)  # somebody asks: then it is compared
    await until(lambda: two.has(theirs.header))
    assert await fleet.middle.find(key) == (theirs.header,)
    assert await two.chain.find(key) == (theirs.header,)


async def test_what_only_a_tier_above_has_is_given_to_the_lowest(
    fleet: Fleet, new_artifact: New
) -> None:
    one = fleet.daemon()
    made = new_artifact("a", b"from before")
    await one.own.put(made, None)  # by a process that was killed before it could go on
    assert await one.chain.get(made.header.key, made.header.digest) is not None

    async def given() -> bool:
        return await fleet.lowest.find(made.header.key) == (made.header,)

    await until(given)
    assert one.chain.late_puts == 0


async def test_it_is_compared_once(fleet: Fleet, new_artifact: New) -> None:
    one = fleet.daemon()
    made = new_artifact("a", b"known")
    for tier in (one.own, fleet.lowest):
        await tier.put(made, None)
    for _ in range(3):
        await one.chain.get(made.header.key, made.header.digest)
        await asyncio.sleep(0.1)  # what would be compared has been by then
    assert one.lowest.calls.count("find") == 1 and "put" not in one.lowest.calls


async def test_ours_stays_until_theirs_is_here(fleet: Fleet, new_artifact: New) -> None:
    """Found by the chaos run: between the two, a daemon had neither."""
    one = fleet.daemon()
    mine, theirs = new_artifact("a", b"mine"), new_artifact("a", b"theirs")
    one.lowest.ops = {"find", "get"}
    one.cut_off(one.middle)
    await fleet.lowest.put(theirs, None)
    assert await one.chain.put(mine, None) == theirs.header  # its digest is the answer
    assert await one.has(mine.header)
    one.connect()
    await until(lambda: one.has(theirs.header))


async def test_what_is_owed_is_given_by_the_next_process(
    fleet: Fleet, new_artifact: New, new_record: Callable[..., object], tmp_path: Path
) -> None:
    one = fleet.daemon(marks=LateMarks(tmp_path))
    one.cut_off(one.middle, one.lowest)
    made = new_artifact("a", b"acknowledged")
    await one.chain.put(made, new_record("a"))
    await one.chain._later.close()  # what is left of it after a kill: nothing is written here
    two = fleet.daemon(own=one.own, marks=LateMarks(tmp_path))
    two.chain.resume()

    async def given() -> bool:
        below = [await tier.find(made.header.key) for tier in (fleet.middle, fleet.lowest)]
        return below == [(made.header,)] * 2

    await until(given)
    assert await fleet.lowest.record(made.header.key) == new_record("a")
    await until(lambda: _none_marked(tmp_path))


async def _none_marked(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if path.is_file()]


async def test_a_mark_that_cant_be_read_goes(tmp_path: Path, new_artifact: New) -> None:
    marks = LateMarks(tmp_path)
    made = new_artifact("a")
    marks.add("lowest", made.header)
    marks.add("lowest", new_artifact("b").header)
    torn = next((tmp_path / "lowest").glob(f"{made.header.key}*"))
    torn.write_bytes(torn.read_bytes()[:20])
    (tmp_path / "lowest" / "half.new").write_bytes(b"")
    assert [header.key for header in marks.all("lowest")] == [new_artifact("b").header.key]
    assert len(list((tmp_path / "lowest").iterdir())) == 1
    assert marks.all("another") == []


async def test_stores_with_a_disk_keep_marks_on_it(tmp_path: Path, new_artifact: New) -> None:
    chain = open_store([f"disk://{tmp_path}", "memory://"])
    assert isinstance(chain, ChainTier)
    chain._later._marks.add("memory", new_artifact("a").header)
    assert list((tmp_path / "v1" / "late" / "memory").iterdir())
    await chain.close()
