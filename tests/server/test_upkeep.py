"""What people ask of a whole store: what is meant goes from every tier and nothing else does; what is bad is told."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from gcs_server import Cloud, gcs_tier
from redis_server import RedisServer, redis_tier

from coldstart.artifact import Artifact, verify
from coldstart.errors import InvalidRequest, TierError
from coldstart.identity.key import KeyRecord
from coldstart.server.upkeep import Row, Upkeep
from coldstart.store.chain import ChainTier
from coldstart.store.disk import DiskTier
from coldstart.store.memory import MemoryTier
from coldstart.store.selection import Selection
from coldstart.store.tier import Tier
from coldstart.store.wrap import Failing, ReadOnly

OFFSETS, LOCATIONS = "unread-fragment-offset", "locations"
IN_FORCE = (("rules", f"{OFFSETS}@2 dead-constant-start@2 {LOCATIONS}@1 module-name@1"),)


async def rows(found: AsyncIterator[Row]) -> list[Row]:
    return [row async for row in found]


def places(found: Sequence[Row]) -> list[tuple[str, str, str]]:
    return sorted((r.tier, r.kept.header.program_name, r.outcome) for r in found if r.kept)


class Fleet:
    """A chain of all kinds of tiers, with artifacts that differ in what a selection can name."""

    def __init__(self, tiers: Sequence[Tier], made: Any) -> None:
        self.tiers = tiers
        self.chain = ChainTier(tiers)
        self.upkeep = Upkeep(self.chain)
        self.made: dict[str, tuple[Artifact, KeyRecord]] = {}
        for name, notes, about in (
            ("old", (), {"created_unix": 1e9, "compiler": "libtpu 0.0.42"}),
            ("plain", (f"left out: {LOCATIONS}",), {}),
            ("cut", (f"{OFFSETS}: @main op 3: nobody reads it", f"left out: {LOCATIONS}"), {}),
            ("theirs", (), {"producer": "pod-7/1/python"}),
        ):
            record = made.record(name)
            record = dataclasses.replace(record, notes=notes, versions=IN_FORCE)
            about = {
                "created_unix": 2e9,
                "producer": "pod-1/1/python",
                "compiler": "libtpu 0.0.48",
            } | about
            self.made[name] = (made.artifact(record, name.encode() * 50, **about), record)

    async def fill(self) -> None:
        for artifact, record in self.made.values():
            await self.chain.put(artifact, record)

    async def names(self) -> dict[str, set[str]]:
        return {
            tier.name: {kept.header.program_name async for kept in tier.scan()}
            for tier in self.tiers
        }


@pytest.fixture
async def fleet(
    tmp_path: Path, made: Any, shared_redis: RedisServer, cloud: Cloud
) -> AsyncIterator[Fleet]:
    tiers = [MemoryTier(), DiskTier(tmp_path / "store"), redis_tier(shared_redis), gcs_tier(cloud)]
    async for one in filled(tiers, made):
        yield one


@pytest.fixture
async def host(tmp_path: Path, made: Any) -> AsyncIterator[Fleet]:
    async for one in filled([MemoryTier(), DiskTier(tmp_path / "store")], made):
        yield one


async def filled(tiers: Sequence[Tier], made: Any) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        one = Fleet(tiers, made)
        stack.push_async_callback(one.chain.close)
        await one.fill()
        yield one


ALL = {"old", "plain", "cut", "theirs"}
SELECTIONS = {
    "compiler": (Selection(compilers=("0.0.42",)), {"old"}),
    "target": (Selection(compilers=("cpu:test",)), ALL),
    "rule": (Selection(rules=(OFFSETS,)), {"cut"}),
    "normal form's rule": (Selection(rules=(LOCATIONS,)), {"plain", "cut"}),
    "rule that only was in force": (Selection(rules=("module-name",)), set()),
    "producer": (Selection(producers=("pod-7/*",)), {"theirs"}),
    "program": (Selection(programs=("?ld", "plain")), {"old", "plain"}),
    "age": (Selection(made_before_unix=1.5e9), {"old"}),
    "youth": (Selection(made_after_unix=1.5e9), ALL - {"old"}),
    "both": (Selection(rules=(LOCATIONS,), programs=("c*",)), {"cut"}),
    "platform": (Selection(platforms=("tpu",)), set()),
    "everything": (Selection(), ALL),
}


@pytest.mark.parametrize("name", SELECTIONS)
async def test_a_purge_takes_exactly_what_is_meant(host: Fleet, name: str) -> None:
    await exactly(host, *SELECTIONS[name])


@pytest.mark.parametrize("name", ["rule", "compiler", "everything"])
async def test_of_shared_tiers_too(fleet: Fleet, name: str) -> None:
    await exactly(fleet, *SELECTIONS[name])


async def exactly(fleet: Fleet, selection: Selection, meant: set[str]) -> None:
    tiers = [tier.name for tier in fleet.tiers]
    would = await rows(fleet.upkeep.purge(selection, dry_run=True))
    assert places(would) == sorted((tier, name, "meant") for tier in tiers for name in meant)
    assert await fleet.names() == dict.fromkeys(tiers, ALL)
    done = await rows(fleet.upkeep.purge(selection))
    assert places(done) == sorted((tier, name, "removed") for tier in tiers for name in meant)
    assert await fleet.names() == dict.fromkeys(tiers, ALL - meant)
    for name in meant:
        assert await fleet.chain.find(fleet.made[name][0].header.key) == ()
    for name in ALL - meant:
        artifact, record = fleet.made[name]
        got = await fleet.chain.get(artifact.header.key, artifact.header.digest)
        assert got is not None and verify(got) == verify(artifact)
        assert await fleet.chain.record(artifact.header.key) == record


async def test_one_tier_alone(fleet: Fleet) -> None:
    done = await rows(fleet.upkeep.purge(Selection(), ["redis"]))
    assert {row.tier for row in done} == {"redis"} and len(done) == 4
    left = await fleet.names()
    assert left.pop("redis") == set() and set(map(frozenset, left.values())) == {frozenset(ALL)}
    with pytest.raises(InvalidRequest, match="no tier is called 'tape'"):
        await rows(fleet.upkeep.purge(Selection(), ["tape"]))


async def test_what_nobody_used_for_long(fleet: Fleet) -> None:
    """By last use where the tier knows it: the disk. By when it was made where it doesn't."""
    found = await rows(fleet.upkeep.stored(Selection(unused_since_unix=1.5e9)))
    assert places(found) == sorted(
        (t.name, "old", "stored") for t in fleet.tiers if t.name != "disk"
    )


async def test_a_tier_that_fails_is_told_and_the_others_go_on(made: Any) -> None:
    silent, sound = (
        Failing(MemoryTier(name="silent"), TierError("silent: down"), {"scan"}),
        MemoryTier(name="sound"),
    )
    fleet = Fleet([silent, sound], made)
    await fleet.fill()
    done = await rows(fleet.upkeep.purge(Selection()))
    assert [(row.tier, row.detail) for row in done if row.kept is None] == [
        ("silent", "silent: down")
    ]
    assert places(done) == sorted(("sound", name, "removed") for name in ALL)


async def test_a_tier_that_may_only_be_read_keeps_what_it_has(made: Any) -> None:
    inner = MemoryTier(name="theirs")
    fleet = Fleet([MemoryTier(), ReadOnly(inner)], made)
    for artifact, record in fleet.made.values():
        await inner.put(artifact, record)
    done = await rows(fleet.upkeep.purge(Selection()))
    assert [(row.tier, row.outcome) for row in done] == [("theirs", "kept")]
    assert len([kept async for kept in inner.scan()]) == 4


async def test_a_client_that_was_promised_a_file_gets_it(tmp_path: Path, made: Any) -> None:
    clock = [0.0]
    disk = DiskTier(tmp_path / "store", monotonic=lambda: clock[0])
    fleet = Fleet([disk], made)
    await fleet.fill()
    artifact, _ = fleet.made["plain"]
    key, digest = artifact.header.key, artifact.header.digest
    disk.pin(digest, 30)
    path = disk.root / disk.relative_path(digest, key)
    done = await rows(fleet.upkeep.purge(Selection()))
    assert len(done) == 4 and await disk.find(key) == ()
    assert path.read_bytes().startswith(artifact.header.prefix())  # the promise
    clock[0] = 31.0
    await disk.sweep()
    assert not path.exists() and (await disk.usage()).count == 0
    # Stored again meanwhile, it isn't anybody's leftover.
    await fleet.fill()
    disk.pin(digest, 30)
    await rows(fleet.upkeep.purge(Selection(programs=("plain",))))
    await fleet.fill()
    clock[0] = 62.0
    await disk.sweep()
    got = await disk.get(key, digest)
    assert got is not None and verify(got)
    await disk.close()


def rot(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("put_aside", [False, True])
async def test_verification_finds_each_bad_copy_and_keeps_the_order_of_uses(
    fleet: Fleet, put_aside: bool
) -> None:
    disk, redis = fleet.tiers[1], fleet.tiers[2]
    assert isinstance(disk, DiskTier)
    bad = fleet.made["cut"][0].header
    rot(disk.root / disk.relative_path(bad.digest, bad.key))
    before = [
        kept.header.digest
        for kept in sorted([k async for k in disk.scan()], key=lambda k: k.used_unix)
    ]
    used_before = {k.header.digest: k.used_unix for k in [k async for k in disk.scan()]}
    found = await rows(fleet.upkeep.verify(Selection(), put_aside=put_aside))
    for kept in [k async for k in disk.scan()]:  # to check one is no use of it
        assert abs(kept.used_unix - used_before[kept.header.digest]) < 0.001
    outcome = "aside" if put_aside else "bad"
    assert [
        (r.tier, r.kept.header.program_name) for r in found if r.kept and r.outcome == outcome
    ] == [("disk", "cut")]
    assert len([row for row in found if row.outcome == "sound"]) == 15 and all(
        row.of == 4 for row in found
    )
    after = [
        kept.header.digest
        for kept in sorted([k async for k in disk.scan()], key=lambda k: k.used_unix)
    ]
    assert after == [digest for digest in before if not (put_aside and digest == bad.digest)]
    assert (await disk.find(bad.key) == ()) is put_aside
    assert await redis.find(bad.key) == (bad,)


async def test_a_record_of_another_compile_is_bad(made: Any) -> None:
    tier = MemoryTier()
    artifact, _ = made.artifact(made.record("a")), None
    await tier.put(artifact, made.record("b"))
    (row,) = await rows(Upkeep(tier).verify(Selection()))
    assert row.outcome == "bad" and "key record" in row.detail
