"""What only a disk has to bear: limits, pins, strangers, rot, races, permissions, a slow writer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, BytesPayload, FilePayload, open_file, verify
from coldstart.errors import ArtifactCorrupt, TierFull, TooLarge
from coldstart.identity.key import key_of
from coldstart.store import disk_layout
from coldstart.store.disk import DiskTier
from coldstart.store.disk_space import INDEX_BYTES, Space, Usage

NOBODY = 65534


def files(root: Path, *kinds: str) -> list[Path]:
    """Files below the given folders of a store, or below all."""
    places = [root / "v1" / kind for kind in kinds] or [root]
    return sorted(path for place in places for path in place.rglob("*") if path.is_file())


def held_bytes(root: Path) -> int:
    """Sizes of all files; what vanishes while it looks is not counted."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def temps(root: Path) -> list[Path]:
    return [path for path in files(root, "tmp") if path.suffix != ".owner"]


async def put(tier: DiskTier, artifact: Artifact) -> None:
    assert await tier.put(artifact, None) == artifact.header


async def has(tier: DiskTier, artifact: Artifact) -> bool:
    return artifact.header in await tier.find(artifact.header.key)


# --- layout, restart, adoption


async def test_a_restart_finds_everything(
    root: Path, new_artifact: Callable[..., Artifact], new_record: Callable[..., object]
) -> None:
    made = new_artifact("a", b"kept", cpu_features=("avx2",))
    first = DiskTier(root)
    await first.put(made, new_record("a"))
    await first.close()
    assert files(root, "tmp") == []
    again = DiskTier(root)
    got = await again.get(made.header.key, made.header.digest)
    assert got is not None and got.header == made.header and verify(got) == b"kept"
    assert await again.record(made.header.key) == new_record("a")
    usage = await again.usage()
    stored = held_bytes(root) - sum(path.stat().st_size for path in files(root, "keys"))
    assert (usage.count, usage.bytes) == (1, stored + INDEX_BYTES)
    await again.close()


async def test_a_restart_answers_before_the_store_was_read(
    root: Path, new_artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the start's look at all folders takes, nobody who reads waits for it."""
    made = new_artifact("a", b"kept")
    first = DiskTier(root)
    await put(first, made)
    await first.close()
    looking, go_on = threading.Event(), threading.Event()
    usage = Space.usage

    def slow(self: Space) -> Usage:
        looking.set()
        assert go_on.wait(60)
        return usage(self)

    monkeypatch.setattr(Space, "usage", slow)
    second = DiskTier(root)
    assert await asyncio.to_thread(looking.wait, 30)
    assert await has(second, made)
    second.pin(made.header.digest, 30)
    got = await second.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"kept"
    assert second.relative_path(made.header.digest, made.header.key)
    assert not go_on.is_set()
    go_on.set()
    await second.close()


async def test_the_object_is_a_whole_artifact_file_and_its_path_is_told(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    one, other = new_artifact("a", b"same"), new_artifact("b", b"same")
    await put(disk, one)
    await put(disk, other)
    for made in (one, other):
        relative = disk.relative_path(made.header.digest, made.header.key)
        assert relative.startswith(f"v1/objects/{made.header.digest[:2]}/{made.header.digest}-")
        found = open_file(root / relative)
        assert found.header == made.header and verify(found) == b"same"
    assert disk.relative_path(one.header.digest) != ""
    assert disk.relative_path("0" * 64) == disk.relative_path("0" * 64, one.header.key) == ""


async def test_a_nonce_proves_the_volume(disk: DiskTier, root: Path) -> None:
    path, content = await disk.nonce()
    assert (root / path).read_bytes() == content and len(content) == 32
    assert await disk.nonce() == (path, content)
    await disk.close()
    assert not (root / path).exists()


async def test_a_spooled_artifact_is_taken_over_without_a_copy(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"y" * 10_000)
    prefix = made.header.prefix()
    for name, path in (
        ("reserved", await disk.open_spool(len(prefix) + 10_000)),
        ("free", disk.spool_path()),
    ):
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(prefix + b"y" * 10_000)
        inode = path.stat().st_ino
        await put(disk, Artifact(made.header, FilePayload(path, len(prefix), 10_000)))
        stored = root / disk.relative_path(made.header.digest, made.header.key)
        assert stored.stat().st_ino == inode, name
        assert not path.exists() and temps(root) == []
        assert await disk.delete(made.header.key, made.header.digest)


async def test_a_spooled_artifact_is_verified_and_left_to_its_owner_when_refused(
    disk: DiskTier, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"good")
    path, prefix = disk.spool_path(), made.header.prefix()
    path.write_bytes(prefix + b"evil")
    with pytest.raises(ArtifactCorrupt):
        await disk.put(Artifact(made.header, FilePayload(path, len(prefix), 4)), None)
    assert path.exists() and not await has(disk, made)


async def test_a_reservation_that_nobody_waits_for_is_dropped(disk: DiskTier, root: Path) -> None:
    await disk.usage()  # the start's scan is over
    with disk_layout.flocked(root / "v1" / "locks" / "limit"):
        reserving = asyncio.ensure_future(disk.open_spool(1000))
        await asyncio.sleep(0)
        reserving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reserving
    async with asyncio.timeout(
        30
    ):  # writers run side by side: it may be made, and dropped, only now
        while temps(root) or (await disk.usage()).bytes:
            await asyncio.sleep(0.01)


# --- the byte limit


@pytest.mark.parametrize("at_once", [1, 4])
async def test_three_times_the_limit_never_exceeds_it_and_the_hot_entry_stays(
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    """T27."""
    limit = 600_000
    most = 0
    one_at_a_time = threading.Lock()  # nothing grows while it is measured

    def watch(name: str) -> None:
        inner = getattr(os, name)

        def watched(*arguments: object, **options: object) -> object:
            nonlocal most
            with one_at_a_time:
                try:
                    return inner(*arguments, **options)
                finally:
                    most = max(most, held_bytes(root))

        monkeypatch.setattr(os, name, watched)

    for name in ("ftruncate", "rename", "link", "write"):
        watch(name)
    clock = iter(range(1_000_000, 9_000_000))  # every use a second after the last
    tier = DiskTier(root, limit_bytes=limit, now=lambda: float(next(clock)))
    hot = new_artifact("hot", b"h" * 20_000)
    await tier.put(hot, new_record("hot"))
    stored = 0
    for first in range(0, 48, at_once):
        batch = range(first, first + at_once)
        made = [new_artifact(f"a{n}", b"%02d" % n * 20_000) for n in batch]
        await asyncio.gather(
            *(tier.put(each, new_record(f"a{n}")) for n, each in zip(batch, made, strict=True))
        )
        stored += sum(each.header.payload_bytes for each in made)
        assert await tier.get(hot.header.key, hot.header.digest) is not None
    assert stored >= 3 * limit - 100_000
    assert limit / 2 < most <= limit
    assert await has(tier, made[-1]) and not await has(tier, new_artifact("a0", b"00" * 20_000))
    assert tier.evicted_recently(new_artifact("a0").header.key)
    kept = {path.stem for path in files(root, "records")}
    assert kept == {path.parent.name for path in files(root, "keys")}
    await tier.close()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_that_is_set_back_does_not_evict_what_is_used_most(
    root: Path, new_artifact: Callable[..., Artifact], restarted: bool
) -> None:
    clock = [2_000_000_000.0]
    tier = DiskTier(root, limit_bytes=200_000, now=lambda: clock[0])
    hot = new_artifact("hot", b"h" * 20_000)
    await put(tier, hot)
    await put(tier, new_artifact("cold", b"c" * 20_000))
    clock[0] -= 5 * 86_400
    if restarted:
        await tier.close()
        tier = DiskTier(root, limit_bytes=200_000, now=lambda: clock[0])
        await tier.usage()
    for n in range(20):
        clock[0] += 1
        assert await tier.get(hot.header.key, hot.header.digest) is not None
        new = new_artifact(f"a{n}", b"%02d" % n * 10_000)
        await put(tier, new)
        assert await has(tier, new) and (await tier.usage()).bytes <= 200_000
    assert await has(tier, hot) and not await has(tier, new_artifact("cold", b"c" * 20_000))
    await tier.close()


async def test_pinned_artifacts_stay_until_the_pin_ends(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    """T27."""
    clock = [0.0]
    tier = DiskTier(root, limit_bytes=30_000, monotonic=lambda: clock[0])
    pinned, big = (
        new_artifact("p", b"p" * 10_000),
        [new_artifact(f"b{n}", b"%d" % n * 18_000) for n in range(4)],
    )
    await put(tier, pinned)
    tokens = [tier.pin(pinned.header.digest, 30), tier.pin(pinned.header.digest, 10)]
    with pytest.raises(TierFull, match=r"pinned"):
        await tier.put(big[0], None)
    assert tier.unpin(tokens[0]) and not tier.unpin(tokens[0])
    clock[0] = 9.0
    with pytest.raises(TierFull):
        await tier.put(big[0], None)
    clock[0] = 10.0
    await put(tier, big[0])
    assert not await has(tier, pinned) and not tier.unpin(tokens[1])
    assert temps(root) == []
    await tier.close()


async def test_what_never_fits_is_refused_before_anything_is_evicted(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    tier = DiskTier(root, limit_bytes=20_000)
    kept = new_artifact("a", b"a" * 5_000)
    await put(tier, kept)
    with pytest.raises(TooLarge, match=r"cs\.limit"):
        await tier.put(new_artifact("b", b"b" * 20_000), None)
    with pytest.raises(TooLarge):
        await tier.open_spool(20_001)
    assert await has(tier, kept)
    await tier.close()


async def test_two_tiers_on_one_root_keep_one_limit(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    one, two = DiskTier(root, limit_bytes=100_000), DiskTier(root, limit_bytes=100_000)
    for n in range(12):
        await put((one, two)[n % 2], new_artifact(f"a{n}", b"%02d" % n * 10_000))
        assert held_bytes(root) <= 100_000
    assert (await one.usage()).count == (await two.usage()).count == 4
    await one.close()
    await two.close()


async def test_quarantine_keeps_a_bounded_number_of_bad_copies(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    tier = DiskTier(root, limit_bytes=1_000_000)  # of which a twentieth may be bad copies
    for n in range(24):
        made = new_artifact(f"a{n}", b"%02d" % n * 100)
        await put(tier, made)
        assert await tier.quarantine(made.header.key, made.header.digest, "Target mismatch/../")
    kept = files(root, "quarantine")
    assert len(kept) == 16 and all(path.name.endswith("-targetmismatch.csa") for path in kept)
    assert kept[-1].read_bytes().endswith(b"23" * 100)
    large = new_artifact("large", b"x" * 60_000)
    await put(tier, large)
    assert await tier.quarantine(large.header.key, large.header.digest, "")
    assert held_bytes(root) < 50_000 and not await has(tier, large)
    await tier.close()


async def test_keys_name_the_scheme(disk: DiskTier, new_record: Callable[..., object]) -> None:
    assert disk_layout.shard(key_of(new_record("a"))) == key_of(new_record("a"))[4:6]  # type: ignore[arg-type]


async def test_bytes_payloads_over_one_chunk(
    disk: DiskTier, new_artifact: Callable[..., Artifact]
) -> None:
    data = os.urandom(5 << 19)
    made = new_artifact("a", data)
    await put(disk, Artifact(made.header, BytesPayload(data)))
    got = await disk.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == data
