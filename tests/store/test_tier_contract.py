"""tier.py's contract, asked of every tier, every wrapper and the chain alike."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from gcs_server import Cloud, gcs_tier
from redis_server import RedisServer, redis_tier

from coldstart.artifact import Artifact, BytesPayload, FilePayload, verify
from coldstart.errors import ArtifactCorrupt, InvalidRequest, TierError, TooLarge
from coldstart.store.breaker import Breaker
from coldstart.store.chain import ChainTier
from coldstart.store.disk import DiskTier
from coldstart.store.memory import MemoryTier
from coldstart.store.recorder import OPS, OUTCOMES
from coldstart.store.tier import Tier
from coldstart.store.verified import verified
from coldstart.store.wrap import Deadlined, Failing, Metered, ReadOnly

LIMIT = 1 << 20


def told(tier: str, op: str, outcome: str, seconds: float) -> None:
    assert op in OPS and outcome in OUTCOMES and seconds >= 0, (tier, op, outcome, seconds)


MAKERS: dict[str, Callable[[Path], Tier]] = {
    "memory": lambda root: MemoryTier(limit_bytes=LIMIT),
    "disk": lambda root: DiskTier(root, limit_bytes=LIMIT),
    "metered": lambda root: Metered(DiskTier(root, limit_bytes=LIMIT), told),
    "deadlined": lambda root: Deadlined(
        MemoryTier(limit_bytes=LIMIT), read_seconds=30, write_seconds=30
    ),
    "failing at nothing": lambda root: Failing(MemoryTier(limit_bytes=LIMIT), None, ()),
    "breaker": lambda root: Breaker(MemoryTier(limit_bytes=LIMIT), recorder=told),
    "verified": lambda root: verified(DiskTier(root, limit_bytes=LIMIT), lambda tier, header: ""),
    "chain of one": lambda root: ChainTier([MemoryTier(limit_bytes=LIMIT)], recorder=told),
    "memory over disk": lambda root: ChainTier(
        [MemoryTier(limit_bytes=LIMIT), DiskTier(root, limit_bytes=LIMIT)], recorder=told
    ),
    "disk over memory": lambda root: ChainTier(
        [DiskTier(root, limit_bytes=LIMIT), MemoryTier(limit_bytes=LIMIT)], write_policy="all"
    ),
    "chain over a failing tier": lambda root: ChainTier(
        [
            MemoryTier(limit_bytes=LIMIT),
            Failing(MemoryTier(), TierError("down"), {"put", "quarantine"}),
        ]
    ),
    "chain over a read-only tier": lambda root: ChainTier(
        [ReadOnly(MemoryTier()), DiskTier(root, limit_bytes=LIMIT)]
    ),
}


# Those that need a server: its fixture, and the tier in it.
IN_GCS: dict[str, Callable[[Cloud], Tier]] = {
    "gcs": lambda server: gcs_tier(server, limit_bytes=LIMIT),
    "memory over gcs": lambda server: ChainTier(
        [MemoryTier(limit_bytes=LIMIT), gcs_tier(server, limit_bytes=LIMIT)], recorder=told
    ),
}
IN_REDIS: dict[str, Callable[[RedisServer], Tier]] = {
    "redis": lambda server: redis_tier(server, recorder=told, max_value_bytes=LIMIT),
    "memory over redis": lambda server: ChainTier(
        [MemoryTier(limit_bytes=LIMIT), redis_tier(server, max_value_bytes=LIMIT)], recorder=told
    ),
}


@pytest.fixture(params=[*MAKERS, *IN_GCS, *IN_REDIS])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tier]:
    if request.param in IN_GCS:
        made = IN_GCS[request.param](request.getfixturevalue("cloud"))
    elif request.param in IN_REDIS:
        made = IN_REDIS[request.param](request.getfixturevalue("shared_redis"))
    else:
        made = MAKERS[request.param](tmp_path / "store")
    yield made
    await made.close()


async def test_miss_is_an_answer(tier: Tier, new_artifact: Callable[..., Artifact]) -> None:
    absent = new_artifact("absent").header
    assert await tier.find(absent.key) == ()
    assert await tier.get(absent.key, absent.digest) is None
    assert await tier.record(absent.key) is None
    assert await tier.delete(absent.key, absent.digest) is False
    assert await tier.quarantine(absent.key, absent.digest, "corrupt") is False


async def test_what_was_put_is_found_and_got(
    tier: Tier, new_artifact: Callable[..., Artifact], new_record: Callable[..., object]
) -> None:
    made = new_artifact("a", b"x" * 5000)
    assert await tier.put(made, new_record("a")) == made.header
    assert await tier.find(made.header.key) == (made.header,)
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and got.header == made.header and verify(got) == b"x" * 5000
    assert await tier.record(made.header.key) == new_record("a")


async def test_the_first_put_wins_and_later_ones_adopt(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    first, second = new_artifact("a", b"first"), new_artifact("a", b"second")
    await tier.put(first, None)
    assert await tier.put(second, None) == first.header
    assert await tier.find(first.header.key) == (first.header,)
    assert await tier.get(first.header.key, second.header.digest) is None


async def test_racing_puts_agree_on_one_digest(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    made = [new_artifact("a", bytes([n]) * 100) for n in range(8)]
    headers = await asyncio.gather(*(tier.put(each, None) for each in made))
    (winner,) = await tier.find(made[0].header.key)
    assert {header.digest for header in headers} == {winner.digest}


async def test_variants_of_a_key_live_side_by_side(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    plain = new_artifact("a", b"avx2", cpu_features=("avx2",))
    wide = new_artifact("a", b"avx512", cpu_features=("avx2", "avx512f"))
    await tier.put(plain, None)
    assert await tier.put(wide, None) == wide.header
    assert set(await tier.find(plain.header.key)) == {plain.header, wide.header}
    assert await tier.delete(plain.header.key, plain.header.digest)
    assert await tier.find(plain.header.key) == (wide.header,)


async def test_keys_with_equal_payloads_keep_their_own_headers(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    one, other = new_artifact("a", b"same bytes"), new_artifact("b", b"same bytes")
    assert one.header.digest == other.header.digest
    await tier.put(one, None)
    await tier.put(other, None)
    assert await tier.delete(one.header.key, one.header.digest)
    got = await tier.get(other.header.key, other.header.digest)
    assert got is not None and got.header == other.header and verify(got) == b"same bytes"
    assert await tier.get(one.header.key, one.header.digest) is None


@pytest.mark.parametrize("wrong", ["digest", "short", "long"])
async def test_bytes_that_do_not_fit_the_header_are_refused(
    tier: Tier, new_artifact: Callable[..., Artifact], wrong: str
) -> None:
    made = new_artifact("a", b"right")
    data = {"digest": b"wrong", "short": b"righ", "long": b"right+"}[wrong]
    with pytest.raises(ArtifactCorrupt):
        await tier.put(Artifact(made.header, BytesPayload(data)), None)
    assert await tier.find(made.header.key) == ()
    assert await tier.put(made, None) == made.header


async def test_a_payload_that_lies_about_its_size_is_refused(
    tier: Tier, new_artifact: Callable[..., Artifact], tmp_path: Path
) -> None:
    made = new_artifact("a", b"right")
    (tmp_path / "short").write_bytes(b"rig")
    with pytest.raises(ArtifactCorrupt):
        await tier.put(Artifact(made.header, FilePayload(tmp_path / "short", 0, 5)), None)
    with pytest.raises(TierError, match="payload to store"):
        await tier.put(Artifact(made.header, FilePayload(tmp_path / "absent", 0, 5)), None)
    assert await tier.find(made.header.key) == ()


async def test_delete_lets_the_next_put_win(
    tier: Tier, new_artifact: Callable[..., Artifact], new_record: Callable[..., object]
) -> None:
    first, second = new_artifact("a", b"first"), new_artifact("a", b"second")
    await tier.put(first, new_record("a"))
    assert await tier.delete(first.header.key, second.header.digest) is False
    assert await tier.delete(first.header.key, first.header.digest) is True
    assert await tier.delete(first.header.key, first.header.digest) is False
    assert await tier.record(first.header.key) is None
    assert await tier.put(second, None) == second.header


async def test_quarantine_takes_away_what_was_served(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"bad")
    await tier.put(made, None)
    for _ in range(3):  # a chain serves the next tier's copy first
        if await tier.find(made.header.key):
            assert await tier.quarantine(made.header.key, made.header.digest, "corrupt") is True
    assert await tier.find(made.header.key) == ()
    assert await tier.get(made.header.key, made.header.digest) is None
    assert await tier.quarantine(made.header.key, made.header.digest, "corrupt") is False


@pytest.mark.parametrize("tier", ["disk", "redis", "gcs"], indirect=True)
async def test_a_quarantine_is_remembered_until_something_else_comes(
    tier: DiskTier, new_artifact: Callable[..., Artifact]
) -> None:
    """By tiers that say why they have nothing: a copy that a reader rejected was neither evicted nor never there."""
    damaged = tier.damaged_recently
    made, absent = new_artifact("a", b"x"), new_artifact("absent")
    await tier.put(made, None)
    await tier.quarantine(absent.header.key, absent.header.digest, "corrupt")
    assert not damaged(absent.header.key) and not damaged(made.header.key)
    assert await tier.quarantine(made.header.key, made.header.digest, "corrupt")
    assert damaged(made.header.key)
    await tier.put(made, None)
    assert not damaged(made.header.key)


async def test_what_never_fits_is_told_apart(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    with pytest.raises(TooLarge):
        await tier.put(new_artifact("a", b"x" * (LIMIT + 1)), None)


@pytest.mark.parametrize("key", ["", "cs1-", "../../etc/passwd", "cs1-" + "0" * 63 + "/", "K" * 65])
async def test_no_name_is_made_of_what_is_not_a_key(
    tier: Tier, new_artifact: Callable[..., Artifact], key: str
) -> None:
    made = new_artifact("a")
    with pytest.raises(InvalidRequest):
        await tier.find(key)
    with pytest.raises(InvalidRequest):
        await tier.get(key, made.header.digest)
    with pytest.raises(InvalidRequest):
        await tier.record(key)
    with pytest.raises(InvalidRequest):
        await tier.get(made.header.key, "../" + made.header.digest[3:])
    header = dataclasses.replace(made.header, key=key)
    with pytest.raises(InvalidRequest):
        await tier.put(Artifact(header, made.payload), None)


async def test_close_is_idempotent_and_final(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    assert isinstance(tier.name, str) and tier.writable
    await tier.close()
    await tier.close()
    with pytest.raises(TierError):
        await tier.find(new_artifact("a").header.key)


async def test_a_scan_tells_each_artifact_once(
    tier: Tier, new_artifact: Callable[..., Artifact]
) -> None:
    made = [new_artifact(name, name.encode() * 100) for name in ("a", "b", "c")]
    made.append(new_artifact("a", b"wide", cpu_features=("avx2",)))
    assert [kept async for kept in tier.scan()] == []
    for each in made:
        await tier.put(each, None)
    kept = [kept async for kept in tier.scan()]
    assert sorted(k.header.digest for k in kept) == sorted(m.header.digest for m in made)
    assert {k.header for k in kept} == {m.header for m in made}
    for k in kept:
        assert k.bytes >= len(k.header.prefix()) + k.header.payload_bytes
    await tier.delete(made[0].header.key, made[0].header.digest)
    assert len([kept async for kept in tier.scan()]) == 3
