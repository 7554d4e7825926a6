"""When a tier is not asked any more, when it is asked again, and what doesn't count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from coldstart.artifact import Artifact
from coldstart.errors import ArtifactCorrupt, BreakerOpen, TierError, TierNotReady, TierTimeout
from coldstart.store.breaker import NOBODYS_KEY, Breaker
from coldstart.store.memory import MemoryTier
from coldstart.store.wrap import Failing

READS, WRITES = {"find", "get", "record"}, {"put", "delete", "quarantine"}


class World:
    """A breaker around a tier that fails on demand; `time` moves only when the test says so."""

    def __init__(self, first_seconds: float = 60.0) -> None:
        self.time = 0.0
        self.counts: Counter[str] = Counter()
        self.tier = Failing(MemoryTier(), TierError("memory: down"), ())
        self.breaker = Breaker(
            self.tier, recorder=self._count, first_seconds=first_seconds, now=lambda: self.time
        )

    def _count(self, tier: str, op: str, outcome: str, seconds: float) -> None:
        self.counts[f"{op}.{outcome}"] += 1

    async def fail_reads(self, times: int = 3) -> None:
        self.tier.ops = READS
        for _ in range(times):
            with pytest.raises(TierError):
                await self.breaker.find(NOBODYS_KEY)


async def test_three_failures_in_a_row_open_it_and_nobody_asks() -> None:
    world = World()
    await world.fail_reads(2)
    world.tier.ops = set()
    assert await world.breaker.find(NOBODYS_KEY) == ()  # which begins the row anew
    await world.fail_reads(3)
    asked = len(world.tier.calls)
    for call in (
        world.breaker.find(NOBODYS_KEY),
        world.breaker.get(NOBODYS_KEY, "0" * 64),
        world.breaker.record(NOBODYS_KEY),
    ):
        with pytest.raises(BreakerOpen):
            await call
    assert len(world.tier.calls) == asked
    assert world.breaker.open == ("reads",) and "reads" in world.breaker.trouble
    assert world.counts == {"breaker.open": 1}
    await world.breaker.close()


async def test_it_is_tried_in_the_background_until_it_answers() -> None:
    world = World(first_seconds=0.01)
    await world.fail_reads()
    await asyncio.sleep(0.1)
    assert world.breaker.open and world.tier.calls.count("find") > 3  # nobody else asked
    world.tier.ops = set()
    async with asyncio.timeout(20):
        while world.breaker.open:
            await asyncio.sleep(0.01)
    assert await world.breaker.find(NOBODYS_KEY) == () and not world.breaker.trouble
    assert world.counts == {"breaker.open": 1, "breaker.closed": 1}
    await world.breaker.close()


async def test_writes_that_fail_leave_reads_alone_and_one_is_let_through_now_and_then(
    new_artifact: Callable[..., Artifact],
) -> None:
    world, made = World(), new_artifact("a")
    world.tier.ops = WRITES
    for _ in range(3):
        with pytest.raises(TierError, match="down"):
            await world.breaker.put(made, None)
    for _ in range(5):
        with pytest.raises(BreakerOpen):
            await world.breaker.delete(made.header.key, made.header.digest)
    assert await world.breaker.find(made.header.key) == ()
    world.time += 73  # 60 s and their jitter
    with pytest.raises(TierError, match="down"):
        await world.breaker.put(made, None)
    with pytest.raises(BreakerOpen):
        await world.breaker.put(made, None)
    world.time += 145
    world.tier.ops = set()
    assert await world.breaker.put(made, None) == made.header
    assert await world.breaker.put(made, None) == made.header
    assert world.counts == {"breaker.open": 1, "breaker.closed": 1}
    await world.breaker.close()


@pytest.mark.parametrize(
    "error",
    [TierNotReady("memory: no credentials yet"), ArtifactCorrupt("bad"), "lasting"],
    ids=["starting", "corrupt", "lasting"],
)
async def test_what_says_nothing_against_a_tier_does_not_count(error: object) -> None:
    world = World()
    if error == "lasting":
        error = TierError("memory: somebody else's")
        error.lasting = True
    world.tier.error = error  # type: ignore[assignment]
    world.tier.ops = {"get"}
    for _ in range(10):
        with pytest.raises(type(error)):  # type: ignore[arg-type]
            await world.breaker.get(NOBODYS_KEY, "0" * 64)
    assert world.breaker.open == ()
    await world.breaker.close()


@pytest.mark.parametrize(("silent_seconds", "opens"), [(0.5, False), (1.5, True)])
async def test_a_call_that_is_given_up_counts_where_it_was_silent_for_long(
    silent_seconds: float, opens: bool
) -> None:
    world = World()
    world.tier.error, world.tier.ops = None, {"find"}
    for _ in range(3):
        call = asyncio.ensure_future(world.breaker.find(NOBODYS_KEY))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.time += silent_seconds
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert bool(world.breaker.open) is opens
    await world.breaker.close()


async def test_timeouts_open_it_and_close_ends_the_probe() -> None:
    world = World(first_seconds=0.01)
    world.tier.error = TierTimeout("memory: silent")
    await world.fail_reads()
    assert world.breaker.open
    before = asyncio.all_tasks()
    await world.breaker.close()
    await world.breaker.close()
    assert len(asyncio.all_tasks()) == len(before) - 1
