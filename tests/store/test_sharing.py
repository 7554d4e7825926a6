"""Small programs stay on the host: what tiers that hosts share are given by a put, a copy, a late put and a plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, verify
from coldstart.errors import TierError
from coldstart.store import agreement, write_back
from coldstart.store.chain import ChainTier
from coldstart.store.disk import DiskTier
from coldstart.store.late_marks import LateMarks
from coldstart.store.memory import MemoryTier
from coldstart.store.sharing import Sharing
from coldstart.store.tier import Tier
from coldstart.store.urls import open_store
from coldstart.store.within import within
from coldstart.store.wrap import Failing, Metered, ReadOnly

New = Callable[..., Artifact]


class Shared(MemoryTier):
    """As a tier that hosts share."""

    def __init__(self, name: str, min_compile_seconds: float = 0.5) -> None:
        super().__init__(name=name)
        self.min_compile_seconds = min_compile_seconds


class Host:
    """A daemon's chain over its own tier and two that hosts share."""

    def __init__(
        self, redis: Tier, bucket: Tier, own: Tier | None = None, marks: LateMarks | None = None
    ) -> None:
        self.own = own or MemoryTier(name="own")
        self.heard: list[tuple[str, str, str]] = []
        self.bucket = Failing(bucket, TierError("away"), ())
        self.chain = ChainTier(
            [self.own, redis, self.bucket],
            recorder=lambda tier, op, outcome, seconds: self.heard.append((tier, op, outcome)),
            write_back_seconds=0.01,
            marks=marks,
        )

    def cut_off(self) -> None:
        self.bucket.ops = {"find", "get", "put", "record", "delete"}


@pytest.fixture
async def hosts() -> AsyncIterator[Callable[..., Host]]:
    """Start daemons over the same two tiers."""
    redis, bucket, started = Shared("redis"), Shared("bucket"), []

    def start(**more: object) -> Host:
        started.append(Host(redis, bucket, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for host in started:
        host.bucket.ops = set()
        await host.chain.close()


async def has(tier: Tier, made: Artifact) -> bool:
    return made.header in await tier.find(made.header.key)


async def where(host: Host, made: Artifact) -> list[str]:
    host.bucket.calls.clear()
    return [tier.name for tier in host.chain.tiers if await has(tier, made)]


async def until(true: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(20):
        while not await true():
            await asyncio.sleep(0.01)


async def quiet(host: Host) -> None:
    """Until nothing is copied or compared any more."""
    await host.chain.settle()
    await until(lambda: asyncio.sleep(0, not host.chain._later._tasks))


EVERYWHERE = ["own", "redis", "bucket"]


@pytest.mark.parametrize(
    "seconds, planned, places",
    [(0.1, False, ["own"]), (0.5, False, EVERYWHERE), (0.1, True, EVERYWHERE)],
)
async def test_a_put_goes_where_it_is_worth_it(
    hosts: Callable[..., Host], new_artifact: New, seconds: float, planned: bool, places: list[str]
) -> None:
    host, made = hosts(), new_artifact("a", compile_seconds=seconds)
    assert await host.chain.put(made, None, planned=planned) == made.header
    await quiet(host)
    assert await where(host, made) == places
    left_out = [(tier, "put", "too-small") for tier in EVERYWHERE if tier not in places]
    assert host.heard == left_out


async def test_each_tier_has_its_own_measure(new_artifact: New) -> None:
    redis, bucket = Shared("redis", 0.0), Shared("bucket", 10.0)
    host, made = Host(redis, bucket), new_artifact("a", compile_seconds=1.0)
    await host.chain.put(made, None)
    assert await where(host, made) == ["own", "redis"]
    await host.chain.close()


async def test_a_hit_on_the_host_shares_nothing_small_however_often_it_is_served(
    hosts: Callable[..., Host], new_artifact: New
) -> None:
    host, made = hosts(), new_artifact("a", compile_seconds=0.1)
    await host.own.put(made, None)
    for _ in range(3):
        assert await host.chain.get(made.header.key, made.header.digest) is not None
        await quiet(host)
    assert await where(host, made) == ["own"] and host.heard == []


async def test_that_the_lowest_tier_lacks_it_is_asked_now_and_then_only(
    hosts: Callable[..., Host], new_artifact: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host's plan may put another digest there, which counts from then on."""
    host, other = hosts(), hosts()
    mine, theirs = (new_artifact("a", c, compile_seconds=0.1) for c in (b"mine", b"theirs"))
    key = mine.header.key
    clock = [0.0]
    host.chain._authority._agreement._now = lambda: clock[0]
    await host.chain.put(mine, None)

    async def served() -> Artifact | None:
        host.bucket.calls.clear()
        got = await host.chain.get(key, mine.header.digest)
        await quiet(host)
        return got

    assert await served() is not None and "find" in host.bucket.calls
    await other.chain.put(theirs, None, planned=True)
    assert await served() is not None and host.bucket.calls == []
    clock[0] += agreement.BELIEVED_SECONDS
    replaced: list[str] = []
    host.chain.on_replaced.append(lambda header: replaced.append(header.digest))
    assert await served() is not None  # the last time
    assert await has(host.own, theirs) and not await has(host.own, mine)
    assert replaced == [theirs.header.digest]
    assert await served() is None


async def test_a_plan_shares_what_the_host_has(
    hosts: Callable[..., Host], new_artifact: New
) -> None:
    host = hosts()
    by_get, by_batch, by_put = (new_artifact(w, compile_seconds=0.1) for w in "abc")
    for made in (by_get, by_batch, by_put):
        await host.chain.put(made, None)
    header = by_get.header
    assert await host.chain.get_with_source(header.key, header.digest, planned=True) is not None
    await host.chain.share(by_batch.header)
    again = new_artifact("c", b"compiled once more", compile_seconds=0.1)
    assert await host.chain.put(again, None, planned=True) == by_put.header
    await quiet(host)
    for made in (by_get, by_batch, by_put):
        assert await where(host, made) == EVERYWHERE
    host.heard.clear()
    await host.chain.share(by_batch.header)  # once is enough
    assert host.chain.late_puts == 0


async def test_what_a_plan_shared_is_not_shared_again_by_each_host(
    hosts: Callable[..., Host], new_artifact: New
) -> None:
    host, made = hosts(), new_artifact("a", compile_seconds=0.1)
    key, digest = made.header.key, made.header.digest
    await host.bucket.inner.put(made, None)
    for _ in range(2):  # from the bucket, then from the host's own tier
        assert await host.chain.get_with_source(key, digest, planned=True) is not None
        await quiet(host)
    assert host.heard == [("own", "backfill", "ok"), ("redis", "backfill", "ok")]


async def test_what_finds_no_place_among_the_late_puts_is_shared_when_it_is_asked_for_again(
    hosts: Callable[..., Host], new_artifact: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, made = hosts(), new_artifact("a", compile_seconds=0.1)
    await host.chain.put(made, None)
    monkeypatch.setattr(write_back, "MOST_WAITING", 0)
    await host.chain.share(made.header)
    await quiet(host)
    assert await where(host, made) == ["own"]
    monkeypatch.undo()
    await host.chain.share(made.header)
    await quiet(host)
    assert await where(host, made) == EVERYWHERE


async def test_copies_upwards_obey_it_too(new_artifact: New) -> None:
    """A tier that hosts share may stand above the host's own."""
    heard: list[tuple[str, str, str]] = []
    redis, own = Shared("redis"), MemoryTier(name="own")
    chain = ChainTier([redis, own], recorder=lambda t, o, w, s: heard.append((t, o, w)))
    small, large, named = (
        new_artifact(word, compile_seconds=seconds)
        for word, seconds in (("small", 0.1), ("large", 1.0), ("named", 0.1))
    )
    for made in (small, large, named):
        await own.put(made, None)
        key, digest = made.header.key, made.header.digest
        await chain.get_with_source(key, digest, planned=made is named)
        await chain.settle()
    assert [await has(redis, made) for made in (small, large, named)] == [False, True, True]
    assert ("redis", "backfill", "too-small") in heard
    await chain.close()


async def test_what_a_plan_put_into_a_bucket_is_copied_to_who_asks(
    hosts: Callable[..., Host], new_artifact: New
) -> None:
    host, made = hosts(), new_artifact("a", compile_seconds=0.1)
    await host.bucket.inner.put(made, None)
    assert await host.chain.get(made.header.key, made.header.digest) is not None
    await quiet(host)
    assert await where(host, made) == EVERYWHERE


async def test_late_puts_are_of_what_is_wanted(
    hosts: Callable[..., Host], new_artifact: New, tmp_path: Path
) -> None:
    own, marks = DiskTier(tmp_path), LateMarks(tmp_path / "late")
    host = hosts(own=own, marks=marks)
    small, named = (new_artifact(w, compile_seconds=0.1) for w in ("small", "named"))
    host.cut_off()
    await host.chain.put(small, None)
    await host.chain.put(named, None, planned=True)
    assert [header.key for header in marks.all("bucket")] == [named.header.key]
    for tier in (host.chain._later, own):
        await tier.close()
    host.bucket.ops = set()
    again = hosts(own=DiskTier(tmp_path), marks=marks)
    again.chain.resume()
    await until(lambda: has(again.bucket, named))
    got = await again.bucket.get(named.header.key, named.header.digest)
    assert got is not None and verify(got) == b"code"
    assert not await has(again.bucket, small)


async def test_nothing_is_stored_where_everything_is_shared(new_artifact: New) -> None:
    redis, made = Shared("redis"), new_artifact("a", compile_seconds=0.1)
    chain = ChainTier([redis, ReadOnly(MemoryTier())])
    with pytest.raises(TierError, match="too small for every tier") as caught:
        await chain.put(made, None)
    assert caught.value.lasting
    assert await chain.put(made, None, planned=True) == made.header
    rule = Sharing([redis])
    assert rule.nowhere(made.header) and rule.stays(made.header)
    assert not rule.nowhere(made.header, planned=True)
    own = Sharing([MemoryTier()])
    assert not own.stays(made.header) and not own.nowhere(made.header)
    beside = Sharing([MemoryTier(), redis])
    assert beside.stays(made.header) and not beside.nowhere(made.header)
    assert not Sharing([MemoryTier(), ReadOnly(redis)]).stays(made.header)
    assert Sharing([Metered(redis, lambda *words: None)]).stays(made.header)


@pytest.mark.parametrize(
    "url, seconds",
    [
        ("redis://127.0.0.1:1/0", 0.5),
        ("gs://some-bucket", 0.5),
        ("redis://127.0.0.1:1/0?cs.min_compile_seconds=0", 0.0),
        ("gs://some-bucket?cs.min_compile_seconds=250ms", 0.25),
        ("gs://some-bucket?cs.min_compile_seconds=2", 2.0),
    ],
)
async def test_urls_say_it(url: str, seconds: float) -> None:
    pytest.importorskip("redis" if url.startswith("redis") else "google.cloud.storage")
    tier = open_store([url], environ={})
    said = [one.min_compile_seconds for one in within(tier) if hasattr(one, "min_compile_seconds")]
    assert said == [seconds]
    await tier.close()


async def test_a_put_can_be_read_here_before_it_is_everywhere(
    hosts: Callable[..., Host], new_artifact: New
) -> None:
    host, made = hosts(), new_artifact("a", compile_seconds=1.0)
    seen: list[list[str]] = []

    async def readable(header: object) -> None:
        assert header == made.header
        seen.append(await where(host, made))

    await host.chain.put(made, None, readable=readable)
    assert seen == [["own"]] and await where(host, made) == EVERYWHERE


@pytest.mark.parametrize("about", [{"required": ["bucket"]}, {"write_policy": "all"}])
async def test_what_a_failure_below_would_undo_is_not_readable_before(
    new_artifact: New, about: dict[str, object]
) -> None:
    own, bucket, seen = MemoryTier(name="own"), MemoryTier(name="bucket"), []
    chain, made = ChainTier([own, bucket], **about), new_artifact("a")  # type: ignore[arg-type]

    async def readable(header: object) -> None:
        seen.append(await has(bucket, made))

    await chain.put(made, None, readable=readable)
    assert seen == [True]
