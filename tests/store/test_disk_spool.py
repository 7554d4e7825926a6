"""What arrives piece by piece: it takes room as it comes, and can't empty a store that others rely on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, FilePayload, verify
from coldstart.errors import TierFull, TooLarge
from coldstart.store.disk import DiskTier

LIMIT = 1_000_000
KEPT = 8


async def filled(root: Path, new_artifact: Callable[..., Artifact]) -> tuple[DiskTier, list[str]]:
    """A store of which four fifths are taken, and the keys in it."""
    tier = DiskTier(root, limit_bytes=LIMIT)
    keys = []
    for n in range(KEPT):
        made = new_artifact(f"kept{n}", b"k" * 100_000)
        await tier.put(made, None)
        keys.append(made.header.key)
    return tier, keys


async def still_there(tier: DiskTier, keys: list[str]) -> int:
    return sum([bool(await tier.find(key)) for key in keys])


async def test_what_is_only_announced_evicts_nothing(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    tier, keys = await filled(root, new_artifact)
    for _ in range(20):
        path = await tier.open_spool(900_000)
        assert path.stat().st_size == 0
    assert await still_there(tier, keys) == KEPT
    await tier.close()


async def test_all_that_arrives_at_once_holds_a_half_at_most(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    tier, keys = await filled(root, new_artifact)
    other = DiskTier(root, limit_bytes=LIMIT)  # the limit is one for both
    spools = [await (tier, other)[n % 2].open_spool(400_000) for n in range(8)]
    grown, refused = 0, 0
    for path in spools:
        for to_bytes in range(50_000, 400_001, 50_000):
            try:
                await tier.grow_spool(path, to_bytes)
                grown += 50_000
            except TierFull as full:
                assert "cs.limit" in str(full)
                refused += 1
                break
            assert (await tier.usage()).bytes <= LIMIT
    assert grown == LIMIT // 2 and refused == 7
    assert await still_there(tier, keys) >= 3
    for path in spools:
        path.unlink()
    assert (await other.usage()).bytes < LIMIT // 2
    await tier.close()
    await other.close()


async def test_one_alone_may_be_as_large_as_the_limit(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    tier, _ = await filled(root, new_artifact)
    made = new_artifact("large", b"l" * 900_000)
    prefix = made.header.prefix()
    total = len(prefix) + 900_000
    path = await tier.open_spool(total)
    with path.open("r+b") as file:
        data = prefix + b"l" * 900_000
        for start in range(0, total, 90_000):
            piece = data[start : start + 90_000]
            await tier.grow_spool(path, start + len(piece))
            file.write(piece)
            assert (await tier.usage()).bytes <= LIMIT
    await tier.put(Artifact(made.header, FilePayload(path, len(prefix), 900_000)), None)
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"l" * 900_000
    with pytest.raises(TooLarge, match=r"cs\.limit"):
        await tier.open_spool(LIMIT)
    await tier.close()
