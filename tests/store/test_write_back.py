"""What a tier couldn't take is put later; what it had by then replaces what the tiers above took."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from coldstart.artifact import Artifact, verify
from coldstart.errors import TierError, TierFull, TierTimeout, TooLarge
from coldstart.store import write_back
from coldstart.store.chain import ChainTier
from coldstart.store.memory import MemoryTier
from coldstart.store.wrap import Failing

New = Callable[..., Artifact]


class World:
    """Memory over a tier that can't be written for now."""

    def __init__(self, error: Exception | None = None, **how: object) -> None:
        self.counts: Counter[str] = Counter()
        self.above = MemoryTier(name="above")
        self.inner = MemoryTier(name="below")
        self.below = Failing(self.inner, error or TierError("below: down"), {"put"})  # type: ignore[arg-type]
        self.chain = ChainTier(
            [self.above, self.below], recorder=self._count, write_back_seconds=0.01, **how
        )

    def _count(self, tier: str, op: str, outcome: str, seconds: float) -> None:
        self.counts[f"{tier}.{op}.{outcome}"] += 1

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [TierError("x"), TierTimeout("x"), TierFull("x")], ids=repr)
async def test_it_is_put_once_the_tier_can_take_it(
    new_artifact: New, new_record: Callable[..., object], error: Exception
) -> None:
    world = World(error)
    made = [new_artifact(word, word.encode()) for word in "abc"]
    for one in made:
        assert await world.chain.put(one, new_record(one.header.program_name)) == one.header
    assert world.chain.late_puts == 3 and await world.inner.find(made[0].header.key) == ()
    await world.until(lambda: sum(n for c, n in world.counts.items() if "write-back" in c) >= 3)
    assert world.chain.late_puts == 3  # tried, and still not taken
    world.below.ops = set()
    await world.until(lambda: world.chain.late_puts == 0)
    for one in made:
        got = await world.inner.get(one.header.key, one.header.digest)
        assert got is not None and verify(got) == verify(one)
        assert await world.inner.record(one.header.key) == new_record(one.header.program_name)
    assert world.counts["below.write-back.ok"] == 3
    await world.chain.close()


async def test_who_was_first_meanwhile_decides(new_artifact: New) -> None:
    world = World()
    mine, theirs = new_artifact("a", b"mine"), new_artifact("a", b"theirs")
    assert await world.chain.put(mine, None) == mine.header
    await world.inner.put(theirs, None)  # another daemon's
    assert await world.chain.find(mine.header.key) == (mine.header,)  # provisional
    world.below.ops = set()
    await world.until(lambda: world.chain.late_puts == 0)
    await world.chain.settle()
    assert await world.above.find(mine.header.key) == (theirs.header,)
    assert await world.chain.find(mine.header.key) == (theirs.header,)
    assert world.counts["below.write-back.adopted"] == world.counts["above.put.adopted"] == 1
    await world.chain.close()


async def test_a_lower_tier_that_is_ahead_at_the_very_put_decides(new_artifact: New) -> None:
    """Between looking and putting, another daemon was faster."""
    world = World()
    world.below.ops = {"find"}  # so that looking doesn't show it
    mine, theirs = new_artifact("a", b"mine"), new_artifact("a", b"theirs")
    await world.inner.put(theirs, None)
    assert await world.chain.put(mine, None) == theirs.header
    await world.chain.settle()
    assert await world.above.find(mine.header.key) == (theirs.header,)
    await world.chain.close()


async def test_what_is_gone_above_or_never_fits_is_given_up(new_artifact: New) -> None:
    world = World()
    gone, large = new_artifact("a"), new_artifact("b")
    await world.chain.put(gone, None)
    await world.above.delete(gone.header.key, gone.header.digest)
    world.below.ops = set()
    await world.until(lambda: world.chain.late_puts == 0)
    assert world.counts["below.write-back.dropped"] == 1
    world.below.ops, world.below.error = {"put"}, TooLarge("below: never")
    await world.chain.put(large, None)
    assert world.chain.late_puts == 0
    lasting = TierError("below: somebody else's")
    lasting.lasting = True
    world.below.error = lasting
    await world.chain.put(large, None)
    assert world.chain.late_puts == 0
    await world.chain.close()


async def test_the_queue_is_bounded_and_what_is_left_at_the_end_is_counted(
    new_artifact: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_back, "MOST_WAITING", 3)
    world = World()
    for n in range(5):
        await world.chain.put(new_artifact(str(n)), None)
    assert world.chain.late_puts == 3 and world.counts["below.write-back.dropped"] == 2
    await world.chain.close()
    assert world.counts["below.write-back.dropped"] == 5 and world.chain.late_puts == 0


async def test_a_required_tier_must_take_it_now(new_artifact: New) -> None:
    world = World(required={"below"})
    with pytest.raises(TierError, match="down"):
        await world.chain.put(new_artifact("a"), None)
    assert world.chain.late_puts == 0
    await world.chain.close()


async def test_an_unknown_says_whether_one_can_go_on_with_another_tier(new_artifact: New) -> None:
    world = World()
    world.below.ops = {"find", "get"}
    header = new_artifact("a").header
    for ask in (world.chain.find(header.key), world.chain.get(header.key, header.digest)):
        with pytest.raises(TierError) as found:
            await ask
        assert found.value.partial
    alone = ChainTier([world.below])
    with pytest.raises(TierError) as found:
        await alone.find(header.key)
    assert not found.value.partial
    await world.chain.close()
