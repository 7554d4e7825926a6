"""The Redis tier beyond the contract: chunks, expiry, eviction, damage, pointers, room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis_server import RedisServer, redis_tier

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.artifact import Artifact, verify
from coldstart.errors import ArtifactCorrupt, TierFull
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier
from coldstart.store.redis import CHUNK_BYTES, RedisTier
from coldstart.store.wrap import Metered

NewArtifact = Callable[..., Artifact]
LARGE = os.urandom(3 * CHUNK_BYTES + 17)


class Counts(dict[tuple[str, str, str], int]):
    """A recorder."""

    def __call__(self, tier: str, op: str, outcome: str, seconds: float) -> None:
        self[tier, op, outcome] = self.get((tier, op, outcome), 0) + 1


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
async def tier(shared_redis: RedisServer, counts: Counts) -> AsyncIterator[RedisTier]:
    made = redis_tier(shared_redis, recorder=counts)
    yield made
    await made.close()


@pytest.fixture
def redis(shared_redis: RedisServer) -> Any:
    with shared_redis.client() as client:
        yield client


def keys_of(redis: Any, tier: RedisTier, part: str = "") -> list[bytes]:
    return sorted(redis.keys(f"{tier.link.place.prefix}:*{part}*"))


async def test_large_payloads_travel_in_chunks(
    tier: RedisTier, redis: Any, new_artifact: NewArtifact
) -> None:
    made = new_artifact("a", LARGE)
    await tier.put(made, None)
    assert len(keys_of(redis, tier, ":bytes:")) == 4
    assert max(redis.strlen(key) for key in keys_of(redis, tier, ":bytes:")) == CHUNK_BYTES
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == LARGE
    assert await tier.delete(made.header.key, made.header.digest)
    assert keys_of(redis, tier) == []


async def test_an_empty_payload(tier: RedisTier, new_artifact: NewArtifact) -> None:
    made = new_artifact("a", b"")
    assert await tier.put(made, None) == made.header
    assert await tier.find(made.header.key) == (made.header,)
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b""


async def test_all_names_of_a_key_are_in_one_slot(
    tier: RedisTier, redis: Any, new_artifact: NewArtifact, new_record: Callable[..., Any]
) -> None:
    made = new_artifact("a", LARGE)
    await tier.put(made, new_record("a"))
    names = keys_of(redis, tier)
    assert len(names) == 6 and all(b"{" + made.header.key.encode() + b"}" in n for n in names)


async def test_everything_expires_and_a_use_puts_it_off(
    shared_redis: RedisServer, redis: Any, new_artifact: NewArtifact, new_record: Callable[..., Any]
) -> None:
    tier = redis_tier(shared_redis, ttl_seconds=3600)
    made = new_artifact("a", LARGE)
    await tier.put(made, new_record("a"))
    names = keys_of(redis, tier)
    assert all(3500 < redis.ttl(name) <= 3600 for name in names)
    for name in names:
        redis.expire(name, 100)
    await tier.get(made.header.key, made.header.digest)
    assert all(redis.ttl(name) > 3500 for name in names)
    await tier.close()
    short = redis_tier(shared_redis, ttl_seconds=0.3)
    await short.put(made, None)
    await asyncio.sleep(0.5)
    assert await short.find(made.header.key) == () and keys_of(redis, short) == []
    assert await short.put(made, None) == made.header
    await short.close()


async def test_an_upload_that_never_ends_is_invisible_and_goes(
    tier: RedisTier, redis: Any, new_artifact: NewArtifact
) -> None:
    made = new_artifact("a", LARGE)
    await tier._send(made, tier._names(made.header.key, "dead", 4))  # killed before the index row
    assert await tier.find(made.header.key) == ()
    assert all(0 < redis.ttl(name) <= 600 for name in keys_of(redis, tier))
    assert await tier.put(made, None) == made.header


# --- damage ------------------------------------------------------------------------------------


async def test_evicted_bytes_are_a_miss_and_the_index_is_put_right(
    tier: RedisTier, redis: Any, counts: Counts, new_artifact: NewArtifact
) -> None:
    """T21, in one tier."""
    made = new_artifact("a", LARGE)
    for lost in range(4):
        await tier.put(made, None)
        redis.delete(keys_of(redis, tier, ":bytes:")[lost])
        if lost % 2:  # gone after it was found
            assert await tier.get(made.header.key, made.header.digest) is None
        assert await tier.find(made.header.key) == ()
        assert keys_of(redis, tier) == []
    assert counts["redis", "heal", "ok"] == 4
    assert not tier.damaged_recently(made.header.key)


@pytest.mark.parametrize("how", ["truncated", "emptied", "longer", "flipped", "swapped"])
async def test_bad_bytes_are_found_by_digest_and_taken_away(
    tier: RedisTier, redis: Any, new_artifact: NewArtifact, how: str
) -> None:
    """T14, in one tier."""
    made = new_artifact("a", LARGE)
    await tier.put(made, None)
    first, second = keys_of(redis, tier, ":bytes:")[:2]
    value = redis.get(first)
    flipped = bytes([value[9] ^ 1])
    {
        "truncated": lambda: redis.set(first, value[:500]),
        "emptied": lambda: redis.set(first, b""),
        "longer": lambda: redis.append(first, b"x"),
        "flipped": lambda: redis.setrange(first, 9, flipped),
        "swapped": lambda: (redis.set(first, redis.get(second)), redis.set(second, value)),
    }[how]()
    with pytest.raises(ArtifactCorrupt):
        await tier.get(made.header.key, made.header.digest)
    assert await tier.find(made.header.key) == () and keys_of(redis, tier) == []
    assert tier.damaged_recently(made.header.key)
    assert await tier.put(made, None) == made.header
    assert not tier.damaged_recently(made.header.key)
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == LARGE


async def test_index_rows_that_can_not_be_used_are_taken_away(
    tier: RedisTier, redis: Any, counts: Counts, new_artifact: NewArtifact
) -> None:
    made, other = new_artifact("a"), new_artifact("b")
    await tier.put(made, None)
    await tier.put(other, None)
    index = tier.link.key(made.header.key, "index")
    good = redis.hget(index, "-")
    place, _, prefix = good.partition(b"\n")
    bad = {
        "empty": b"",
        "no header": place + b"\n",
        "cut": good[:-1],
        "flipped": good[:60] + bytes([good[60] ^ 1]) + good[61:],
        "another place": b"there 5\n" + prefix,
        "another key": redis.hget(tier.link.key(other.header.key, "index"), "-"),
        "no chunk size": place.rpartition(b" ")[0] + b" 0\n" + prefix,
        "another format": place + b"\nCSA9" + prefix[4:],
    }
    for name, row in bad.items():
        redis.hset(index, "-", row)
        assert await tier.find(made.header.key) == (), name
        assert redis.hlen(index) == 0, name
    assert counts["redis", "heal", "ok"] == len(bad)
    redis.hset(index, "0123456789abcdef", good)  # under another variant's name
    assert await tier.find(made.header.key) == ()
    assert await tier.find(other.header.key) == (other.header,)


async def test_what_is_no_record_is_none(
    tier: RedisTier, redis: Any, new_artifact: NewArtifact
) -> None:
    key = new_artifact("a").header.key
    redis.set(tier.link.key(key, "record"), b"\xff{")
    assert await tier.record(key) is None and keys_of(redis, tier) == []


async def test_a_repaired_copy_survives_a_late_finder_of_the_bad_one(
    shared_redis: RedisServer, redis: Any, new_artifact: NewArtifact
) -> None:
    """Two daemons met the bad copy; one has put a good one when the other takes the bad one away."""
    one = redis_tier(shared_redis)
    two = redis_tier(shared_redis, place={"prefix": one.link.place.prefix})
    made = new_artifact("a", LARGE)
    await one.put(made, None)
    (row,) = await two._rows(made.header.key)
    redis.setrange(keys_of(redis, one, ":bytes:")[0], 5, b"bad")
    with pytest.raises(ArtifactCorrupt):
        await one.get(made.header.key, made.header.digest)
    await one.put(made, None)
    assert await two._read(made.header.key, row) is None  # those chunks are gone
    assert await two.find(made.header.key) == (made.header,)
    await one.close()
    await two.close()


async def test_a_good_copy_below_serves_and_repairs(
    shared_redis: RedisServer, redis: Any, counts: Counts, new_artifact: NewArtifact
) -> None:
    """T15: Redis is bad, the copy below is not: nobody compiles."""
    tier = redis_tier(shared_redis, recorder=counts)
    below = MemoryTier(name="gcs")
    chain = ChainTier([Metered(tier, counts), Metered(below, counts)], recorder=counts)
    made = new_artifact("a", LARGE)
    await chain.put(made, None)
    redis.set(
        keys_of(redis, tier, ":bytes:")[0], redis.get(keys_of(redis, tier, ":bytes:")[0])[:500]
    )
    got = await chain.get_with_source(made.header.key, made.header.digest)
    assert got is not None and verify(got[0]) == LARGE and got[1] == "gcs"
    assert counts["redis", "get", "corrupt"] == 1
    await chain.settle()
    again = await chain.get_with_source(made.header.key, made.header.digest)
    assert again is not None and again[1] == "redis" and verify(again[0]) == LARGE
    assert counts["redis", "get", "corrupt"] == 1
    await chain.close()


async def test_evicted_bytes_are_served_from_below(
    shared_redis: RedisServer, redis: Any, counts: Counts, new_artifact: NewArtifact
) -> None:
    """T21."""
    tier = redis_tier(shared_redis, recorder=counts)
    chain = ChainTier([tier, MemoryTier(name="gcs")], recorder=counts)
    made = new_artifact("a", LARGE)
    await chain.put(made, None)
    redis.delete(*keys_of(redis, tier, ":bytes:"))
    assert await chain.find(made.header.key) == (made.header,)
    got = await chain.get_with_source(made.header.key, made.header.digest)
    assert got is not None and got[1] == "gcs"
    await chain.settle()
    assert await tier.find(made.header.key) == (made.header,)
    assert counts["redis", "heal", "ok"] == 1
    await chain.close()


# --- what lies below ---------------------------------------------------------------------------


class Asked(MemoryTier):
    """Counts how often it is asked what it has."""

    finds = 0

    async def find(self, key: str) -> Any:
        self.finds += 1
        return await super().find(key)


async def test_what_is_too_large_is_an_index_row_that_points_below(
    shared_redis: RedisServer, redis: Any, new_artifact: NewArtifact
) -> None:
    tier, below = redis_tier(shared_redis, max_value_bytes=1000), Asked(name="gcs")
    chain = ChainTier([tier, below])
    made = new_artifact("a", LARGE)
    assert await chain.put(made, None) == made.header
    assert len(keys_of(redis, tier)) == 1 and await tier.find(made.header.key) == ()
    below.finds = 0
    assert await chain.find(made.header.key) == (made.header,) and below.finds == 0
    got = await chain.get_with_source(made.header.key, made.header.digest)
    assert got is not None and got[1] == "gcs"

    await (
        chain.settle()
    )  # or the copy that is too large for Redis may be told of after the next lines
    await below.delete(made.header.key, made.header.digest)  # the row is a hint
    assert await chain.get(made.header.key, made.header.digest) is None
    assert await chain.find(made.header.key) == () and keys_of(redis, tier) == []
    other = new_artifact("a", LARGE[:-1])
    assert await chain.put(other, None) == other.header
    await chain.close()


async def test_a_row_is_left_where_a_hit_was_too_large_to_copy(
    shared_redis: RedisServer, new_artifact: NewArtifact
) -> None:
    tier, below = redis_tier(shared_redis, max_value_bytes=1000), Asked(name="gcs")
    chain = ChainTier([tier, below])
    made = new_artifact("a", LARGE)
    await below.put(made, None)
    await chain.get(made.header.key, made.header.digest)
    await chain.settle()
    assert await tier.pointed(made.header.key) == ((made.header, "gcs"),)
    await chain.close()


async def test_a_stale_pointer_keeps_nobody_from_storing(
    shared_redis: RedisServer, new_artifact: NewArtifact
) -> None:
    tier, below = redis_tier(shared_redis), MemoryTier(name="gcs")
    chain = ChainTier([tier, below])
    gone, made = new_artifact("a", b"gone"), new_artifact("a", b"new")
    await tier.point(gone.header, "gcs")
    assert await chain.put(made, None) == made.header
    assert await chain.find(made.header.key) == (made.header,)
    assert await tier.find(made.header.key) == (made.header,)
    await chain.close()


# --- room --------------------------------------------------------------------------------------


async def test_a_full_redis_is_told_and_leaves_nothing_half(
    redis_servers: Callable[..., RedisServer], counts: Counts, new_artifact: NewArtifact
) -> None:
    """T20, in one tier."""
    server = redis_servers(maxmemory="6mb", maxmemory_policy="noeviction")
    tier = redis_tier(server, recorder=counts)
    full = 0
    for n in range(6):
        try:
            await tier.put(new_artifact(f"a{n}", os.urandom(2 << 20)), None)
        except TierFull as exc:
            full += 1
            assert "no room" in str(exc)
    assert full and counts["redis", "oom", "full"] == full and "full" in tier.link.trouble
    with server.client() as client:
        chunks = len(client.keys("*:bytes:*"))
        assert chunks == 2 * len(client.keys("*:index"))  # of those that were stored
    assert await tier.delete(
        new_artifact("a0").header.key, (await tier.find(new_artifact("a0").header.key))[0].digest
    )
    await tier.put(new_artifact("b", b"small"), None)
    await tier.close()


async def test_under_eviction_a_reader_sees_all_or_a_miss(
    redis_servers: Callable[..., RedisServer], new_artifact: NewArtifact
) -> None:
    server = redis_servers(maxmemory="8mb", maxmemory_policy="allkeys-lru")
    tier = redis_tier(server)
    hits = misses = 0
    for n in range(40):
        made = new_artifact(f"a{n % 10}", bytes([n % 10]) * (2 << 20))
        try:
            await tier.put(made, None)
        except TierFull:
            continue
        for header in await tier.find(made.header.key):
            got = await tier.get(header.key, header.digest)
            if got is None:
                misses += 1
            else:
                hits += 1
                assert verify(got) == bytes([n % 10]) * (2 << 20)
    assert hits
    await tier.close()


async def test_a_reader_of_a_slow_put_sees_nothing_or_all(
    shared_redis: RedisServer, new_artifact: NewArtifact
) -> None:
    """T22."""
    writer = redis_tier(shared_redis)
    reader = redis_tier(shared_redis, place={"prefix": writer.link.place.prefix})
    made = new_artifact("a", os.urandom(20 << 20))
    putting = asyncio.create_task(writer.put(made, None))
    seen = []
    while not putting.done():
        headers = await reader.find(made.header.key)
        seen.append(bool(headers))
        if headers:
            got = await reader.get(made.header.key, made.header.digest)
            assert got is not None and verify(got) == verify(made)
        await asyncio.sleep(0.001)
    await putting
    assert not seen[0] and seen == sorted(seen)
    assert await reader.find(made.header.key)
    await writer.close()
    await reader.close()
