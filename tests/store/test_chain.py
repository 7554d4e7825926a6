"""Ordered tiers acting as one: what is asked, copied, skipped, adopted, and what is not known."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldstart.artifact import Artifact, BytesPayload, FilePayload, verify
from coldstart.errors import (
    ArtifactCorrupt,
    ConfigError,
    TierError,
    TierFull,
    TierTimeout,
    TooLarge,
)
from coldstart.store import backfill
from coldstart.store.backfill import MOST_COPIES
from coldstart.store.chain import WRITE_POLICIES, ChainTier
from coldstart.store.disk import DiskTier
from coldstart.store.memory import MemoryTier
from coldstart.store.wrap import Failing, ReadOnly


class Heard(list[tuple[str, str, str]]):
    """A recorder that remembers."""

    def __call__(self, tier: str, op: str, outcome: str, seconds: float) -> None:
        self.append((tier, op, outcome))


async def has(tier: object, made: Artifact) -> bool:
    return made.header in await tier.find(made.header.key)  # type: ignore[attr-defined]


async def test_a_hit_below_is_back_filled_with_its_record(
    new_artifact: Callable[..., Artifact], new_record: Callable[..., object]
) -> None:
    top, middle, bottom = (MemoryTier(name=name) for name in ("top", "middle", "bottom"))
    heard = Heard()
    chain = ChainTier([top, ReadOnly(middle), bottom], recorder=heard)
    made = new_artifact("a", b"deep")
    await bottom.put(made, new_record("a"))  # type: ignore[arg-type]
    assert await has(chain, made) and not await has(top, made)
    got = await chain.get_with_source(made.header.key, made.header.digest)
    assert got is not None and verify(got[0]) == b"deep" and got[1] == "bottom"
    await chain.settle()
    assert await has(top, made) and not await has(middle, made)
    assert await top.record(made.header.key) == new_record("a")
    assert heard == [("top", "backfill", "ok")]
    again = await chain.get_with_source(made.header.key, made.header.digest)
    assert again is not None and again[1] == "top"
    assert await chain.get_with_source(made.header.key, "0" * 64) is None


@pytest.mark.parametrize("error", [TierError("down"), TierTimeout("silent")])
@pytest.mark.parametrize("op", ["find", "get", "record"])
async def test_a_failing_tier_is_skipped_counted_and_never_a_miss(
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    error: TierError,
    op: str,
) -> None:
    failing, heard = Failing(MemoryTier(), error, {op}), Heard()
    sound = MemoryTier()
    chain = ChainTier([failing, sound], recorder=heard)
    made, absent = new_artifact("a"), new_artifact("absent")
    await sound.put(made, new_record("a"))  # type: ignore[arg-type]

    async def ask(about: Artifact) -> object:
        if op == "find":
            return await chain.find(about.header.key)
        if op == "get":
            return await chain.get(about.header.key, about.header.digest)
        return await chain.record(about.header.key)

    assert await ask(made)
    with pytest.raises(type(error), match=str(error)):
        await ask(absent)
    assert heard == [("chain", op, "timeout" if isinstance(error, TierTimeout) else "error")] * 2
    failing.ops.clear()
    assert not await ask(absent)


async def test_an_error_and_a_timeout_together_are_an_error(
    new_artifact: Callable[..., Artifact],
) -> None:
    chain = ChainTier(
        [
            Failing(MemoryTier(), TierTimeout("silent"), {"find"}),
            Failing(MemoryTier(), TierError("down"), {"find"}),
        ]
    )
    with pytest.raises(TierError, match=r"silent; down") as caught:
        await chain.find(new_artifact("a").header.key)
    assert type(caught.value) is TierError


async def test_a_failed_back_fill_costs_nothing_but_a_count(
    new_artifact: Callable[..., Artifact],
) -> None:
    heard, bottom = Heard(), MemoryTier()
    full = Failing(MemoryTier(name="full"), TierFull("no room"), {"put"})
    small = MemoryTier(name="small", limit_bytes=2)
    chain = ChainTier([full, small, bottom], recorder=heard)
    made = new_artifact("a", b"large")
    await bottom.put(made, None)
    assert await chain.get(made.header.key, made.header.digest) is not None
    await chain.settle()
    assert heard == [("full", "backfill", "full"), ("small", "backfill", "too-large")]


async def test_a_bad_copy_found_while_back_filling_is_put_aside(
    tmp_path: Path, new_artifact: Callable[..., Artifact]
) -> None:
    top, rotten, good = MemoryTier(name="top"), DiskTier(tmp_path), MemoryTier(name="good")
    chain, made = ChainTier([top, rotten, good]), new_artifact("a", b"sound bytes")
    await rotten.put(made, None)
    await good.put(made, None)
    path = tmp_path / rotten.relative_path(made.header.digest, made.header.key)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    got = await chain.get_with_source(made.header.key, made.header.digest)
    assert (
        got is not None and got[1] == "disk"
    )  # nobody has read its payload yet; the loading side will
    with pytest.raises(ArtifactCorrupt):
        verify(got[0])
    await chain.settle()
    assert not await has(top, made) and not await has(rotten, made)
    got = await chain.get_with_source(made.header.key, made.header.digest)
    assert got is not None and verify(got[0]) == b"sound bytes" and got[1] == "good"
    await chain.settle()
    assert await has(top, made) and await has(rotten, made)
    assert len(list((tmp_path / "v1" / "quarantine").iterdir())) == 1
    await chain.close()


async def test_put_adopts_what_any_tier_has(new_artifact: Callable[..., Artifact]) -> None:
    top, bottom = MemoryTier(), MemoryTier()
    first, second = new_artifact("a", b"first"), new_artifact("a", b"second")
    await bottom.put(first, None)
    for chain in (ChainTier([top, bottom]), ChainTier([top, ReadOnly(bottom)])):
        assert await chain.put(second, None) == first.header
        assert await top.find(first.header.key) == ()


async def test_put_repeated_fills_the_tiers_that_lack_it(
    new_artifact: Callable[..., Artifact],
) -> None:
    top, bottom = MemoryTier(), MemoryTier()
    made = new_artifact("a")
    await bottom.put(made, None)
    assert await ChainTier([top, bottom]).put(made, None) == made.header
    assert await has(top, made)


@pytest.mark.parametrize(
    "policy, broken, stored",
    [
        ("best_effort", (), (True, True, True)),
        ("best_effort", (1, 2), (True, False, False)),
        ("best_effort", (0,), None),
        ("first", (), (True, False, False)),
        ("first", (1,), (True, False, False)),
        ("first", (0,), None),
        ("all", (), (True, True, True)),
        ("all", (2,), None),
        ("all", (0,), None),
    ],
)
async def test_write_policies(
    new_artifact: Callable[..., Artifact],
    policy: str,
    broken: tuple[int, ...],
    stored: tuple[bool, ...] | None,
) -> None:
    inner = [MemoryTier() for _ in range(3)]
    tiers = [
        Failing(tier, TierError("down"), {"put"} if n in broken else ())
        for n, tier in enumerate(inner)
    ]
    made, chain = new_artifact("a"), ChainTier(tiers, write_policy=policy)  # type: ignore[arg-type]
    if stored is None:
        with pytest.raises(TierError, match="down"):
            await chain.put(made, None)
        return
    assert await chain.put(made, None) == made.header
    assert tuple([await has(tier, made) for tier in inner]) == stored


async def test_the_first_writable_tier_is_not_always_the_first(
    new_artifact: Callable[..., Artifact],
) -> None:
    read_only, small, large = MemoryTier(), MemoryTier(limit_bytes=2), MemoryTier()
    chain, made = ChainTier([ReadOnly(read_only), small, large]), new_artifact("a", b"large")
    with pytest.raises(TooLarge):
        await ChainTier([ReadOnly(read_only), small], write_policy="all").put(made, None)
    with pytest.raises(TooLarge):
        await ChainTier([small, large], write_policy="first").put(made, None)
    assert await chain.put(made, None) == made.header  # where another one is large enough
    assert await has(large, made) and not await has(small, made)
    with pytest.raises(TierError, match="no tier of it can be written"):
        await ChainTier([ReadOnly(large)]).put(made, None)
    assert not ChainTier([ReadOnly(large)]).writable and chain.writable


async def test_a_spooled_payload_reaches_every_tier_though_the_disk_takes_the_file(
    tmp_path: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"spooled")
    prefix = made.header.prefix()
    for n, order in enumerate(itertools.permutations(["disk", "memory", "memory"])):
        disk = DiskTier(tmp_path / str(n))
        tiers = [disk if kind == "disk" else MemoryTier() for kind in order]
        chain = ChainTier(tiers, write_policy="all")
        path = disk.spool_path()
        path.write_bytes(prefix + b"spooled")
        await chain.put(Artifact(made.header, FilePayload(path, len(prefix), 7)), None)
        assert not path.exists()
        for tier in tiers:
            got = await tier.get(made.header.key, made.header.digest)
            assert got is not None and verify(got) == b"spooled"
        await chain.close()


async def test_variants_are_gathered_from_all_tiers_and_the_upper_one_speaks_first(
    new_artifact: Callable[..., Artifact],
) -> None:
    top, bottom = MemoryTier(), Failing(MemoryTier(), None, ())
    here, there, other = (
        new_artifact("a", content, cpu_features=features)
        for content, features in ((b"1", ("x",)), (b"2", ("x", "y")), (b"3", ("x",)))
    )
    await top.put(here, None)
    await bottom.put(there, None)
    await bottom.put(other, None)
    chain = ChainTier([top, bottom])
    assert set(await chain.find(here.header.key)) == {here.header, there.header}
    bottom.calls.clear()
    plain = new_artifact("plain")
    await top.put(plain, None)
    assert await chain.find(plain.header.key) == (plain.header,)
    assert bottom.calls == []  # a key without variants is answered by the first that has it


async def test_quarantine_is_of_the_copy_that_was_served(
    new_artifact: Callable[..., Artifact],
) -> None:
    top, bottom, made = MemoryTier(), MemoryTier(), new_artifact("a")
    await top.put(made, None)
    await bottom.put(made, None)
    chain, key, digest = ChainTier([top, bottom]), made.header.key, made.header.digest
    assert await chain.quarantine(key, digest, "corrupt")
    assert not await has(top, made) and await has(bottom, made)
    assert await chain.get(key, digest) is not None  # the next copy, and back-filled again


async def test_a_bad_copy_that_cannot_be_removed_is_not_served_again(
    new_artifact: Callable[..., Artifact],
) -> None:
    shared, made, better = MemoryTier(), new_artifact("a", b"bad"), new_artifact("a", b"better")
    await shared.put(made, None)
    top = MemoryTier()
    chain = ChainTier([ReadOnly(shared), top])
    assert await chain.quarantine(made.header.key, made.header.digest, "corrupt")
    assert await chain.find(made.header.key) == ()
    assert await chain.get(made.header.key, made.header.digest) is None
    assert await chain.put(better, None) == better.header
    assert await chain.find(made.header.key) == (better.header,)
    assert await has(shared, made)


async def test_delete_says_when_a_copy_may_be_left(new_artifact: Callable[..., Artifact]) -> None:
    top, bottom, made = MemoryTier(), MemoryTier(), new_artifact("a")
    down = Failing(bottom, TierError("down"), {"delete"})
    for tier in (top, bottom):
        await tier.put(made, None)
    with pytest.raises(TierError, match="down"):
        await ChainTier([down, top]).delete(made.header.key, made.header.digest)
    assert not await has(top, made)
    assert await ChainTier([top, bottom]).delete(made.header.key, made.header.digest)
    assert not await ChainTier([top, bottom]).delete(made.header.key, made.header.digest)


def test_a_chain_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        ChainTier([])
    with pytest.raises(ConfigError, match=", ".join(WRITE_POLICIES)):
        ChainTier([MemoryTier()], write_policy="most")  # type: ignore[arg-type]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "get", "break", "mend"]), st.integers(0, 2)), max_size=25
    )
)
async def test_whatever_fails_a_digest_once_answered_stays_while_its_tier_lives(
    steps: list[tuple[str, int]], new_artifact: Callable[..., Artifact]
) -> None:
    """The last tier never fails: so there is no unknown, and the first put of a key decides for ever."""
    upper = [Failing(MemoryTier(), TierError("down"), ()) for _ in range(2)]
    chain = ChainTier([ReadOnly(upper[0]), MemoryTier(), upper[1]])
    first: dict[int, str] = {}
    for turn, (step, n) in enumerate(steps):
        if step in ("break", "mend"):
            upper[n % 2].ops = {"find", "get", "put", "record"} if step == "break" else set()
            continue
        made = new_artifact(f"a{n}", b"%d" % turn)
        if step == "put":
            header = await chain.put(Artifact(made.header, BytesPayload(b"%d" % turn)), None)
            assert first.setdefault(n, header.digest) == header.digest
        elif n in first:
            got = await chain.get(made.header.key, first[n])
            assert got is not None and got.header.digest == first[n]


async def test_a_bad_copy_above_is_served_from_below_and_repaired(
    tmp_path: Path, new_artifact: Callable[..., Artifact], new_record: Callable[..., object]
) -> None:
    """T15."""
    top, bottom = DiskTier(tmp_path, limit_bytes=1 << 20), MemoryTier(name="bottom")
    chain = ChainTier([top, bottom])
    made = new_artifact("a", b"good")
    await chain.put(made, new_record("a"))  # type: ignore[arg-type]
    (path,) = tmp_path.rglob("*.csa")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data))
    got = await chain.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"good"
    await chain.settle()
    repaired = await top.get(made.header.key, made.header.digest)
    assert repaired is not None and verify(repaired) == b"good"
    await chain.close()


async def test_a_bad_copy_with_nothing_below_is_said_to_be_bad(
    tmp_path: Path, new_artifact: Callable[..., Artifact]
) -> None:
    top = DiskTier(tmp_path, limit_bytes=1 << 20)
    chain = ChainTier([top, MemoryTier(name="bottom")])
    made = new_artifact("a", b"good")
    await top.put(made, None)
    (path,) = tmp_path.rglob("*.csa")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactCorrupt):
        await chain.get(made.header.key, made.header.digest)
    assert await chain.get(made.header.key, made.header.digest) is None
    await chain.close()


async def test_nobody_waits_for_a_back_fill(
    new_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tier above that takes for ever costs no reader anything, and holds a bounded number of copies."""
    monkeypatch.setattr(backfill, "CLOSE_SECONDS", 0.1)
    heard, bottom = Heard(), MemoryTier(name="bottom")
    stuck = Failing(MemoryTier(name="top"), None, {"put"})
    chain = ChainTier([stuck, bottom], recorder=heard)
    for n in range(MOST_COPIES + 3):
        made = new_artifact(f"a{n}", b"%d" % n)
        await bottom.put(made, None)
        for _ in range(2):  # the second asks for no second copy
            got = await asyncio.wait_for(chain.get(made.header.key, made.header.digest), 10)
            assert got is not None and verify(got) == b"%d" % n
    await asyncio.sleep(0)
    assert stuck.calls.count("put") == MOST_COPIES
    assert heard == [("top", "backfill", "dropped")] * 6
    await chain.close()


async def test_copies_hold_a_bounded_number_of_bytes(
    new_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "MOST_BYTES", 1000)
    monkeypatch.setattr(backfill, "CLOSE_SECONDS", 0.1)
    heard, bottom = Heard(), MemoryTier(name="bottom")
    stuck = Failing(MemoryTier(name="top"), None, {"put"})
    chain = ChainTier([stuck, bottom], recorder=heard)
    for n, size in enumerate((5000, 600, 600)):
        made = new_artifact(f"a{n}", b"x" * size)
        await bottom.put(made, None)
        assert await chain.get(made.header.key, made.header.digest) is not None
    assert heard == [("top", "backfill", "dropped")] * 2  # the first, alone, may be larger
    await chain.close()
