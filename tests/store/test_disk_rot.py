"""Rot, orphans and strangers: what is not sound is a miss, and goes; what is not ours stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, verify
from coldstart.errors import ArtifactCorrupt
from coldstart.store.disk import DiskTier


def files(root: Path, *kinds: str) -> list[Path]:
    """Files below the given folders of a store, or below all."""
    places = [root / "v1" / kind for kind in kinds] or [root]
    return sorted(path for place in places for path in place.rglob("*") if path.is_file())


async def put(tier: DiskTier, artifact: Artifact) -> None:
    assert await tier.put(artifact, None) == artifact.header


async def has(tier: DiskTier, artifact: Artifact) -> bool:
    return artifact.header in await tier.find(artifact.header.key)


# --- rot, orphans, strangers


async def test_a_missing_object_is_a_miss_and_healed(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    gone, kept = new_artifact("a", b"gone"), new_artifact("b", b"kept")
    await put(disk, gone)
    await put(disk, kept)
    (root / disk.relative_path(gone.header.digest, gone.header.key)).unlink()
    assert await disk.get(gone.header.key, gone.header.digest) is None
    assert await disk.find(gone.header.key) == ()
    assert len(files(root, "keys")) == 1 and await has(disk, kept)
    await put(disk, gone)


@pytest.mark.parametrize(
    "rot",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: b"\xff\x00" + text,
        lambda text: text.replace(b"cpu:16", b"cpu:17"),
        lambda text: json.dumps(json.loads(text) | {"digest": "0" * 64}).encode(),
        lambda text: json.dumps([json.loads(text)]).encode(),
    ],
)
async def test_a_corrupt_index_entry_is_absent_and_healed(
    disk: DiskTier,
    root: Path,
    new_artifact: Callable[..., Artifact],
    rot: Callable[[bytes], bytes],
) -> None:
    made = new_artifact("a", b"one")
    await put(disk, made)
    (entry,) = files(root, "keys")
    entry.write_bytes(rot(entry.read_bytes()))
    assert await disk.find(made.header.key) == ()
    assert files(root, "keys") == []
    other = new_artifact("a", b"two")
    await put(disk, other)
    assert (await disk.sweep()).objects == 1  # what the corrupt entry had named
    assert await has(disk, other) and len(files(root, "objects")) == 1


async def test_an_entry_moved_to_another_key_is_not_believed(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made, other = new_artifact("a", b"one"), new_artifact("b", b"two")
    await put(disk, made)
    await put(disk, other)
    mine, others = (
        next(p for p in files(root, "keys") if p.parent.name == a.header.key) for a in (made, other)
    )
    others.write_bytes(mine.read_bytes())
    assert await disk.find(other.header.key) == ()
    assert await has(disk, made)


@pytest.mark.parametrize("damage", ["cut", "header"])
async def test_a_damaged_object_is_put_aside_and_makes_room_for_the_next_put(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact], damage: str
) -> None:
    made = new_artifact("a", b"x" * 1000)
    await put(disk, made)
    (path,) = files(root, "objects")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data) if damage == "header" else bytes(data[:-1]))
    if damage == "header":
        with pytest.raises(ArtifactCorrupt):
            await disk.get(made.header.key, made.header.digest)
    assert await disk.get(made.header.key, made.header.digest) is None
    await put(disk, made)
    got = await disk.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"x" * 1000


async def test_strangers_files_are_left_alone(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"one")
    await put(disk, made)
    (entry,), (stored,) = files(root, "keys"), files(root, "objects")
    strangers = [
        root / "notes.txt",
        root / "v1" / "objects" / "lost+found",
        stored.parent / "README",
        stored.parent / (stored.name + ".bak"),
        entry.parent / ".nfs0001",
        entry.parent / "000",
        root / "v1" / "keys" / "xx",
        root / "v1" / "tmp" / "core.1234",
        root / "v1" / "records" / "zz",
    ]
    for path in strangers:
        path.write_bytes(b"not ours")
    assert await disk.find(made.header.key) == (made.header,)
    await disk.sweep()
    await put(disk, new_artifact("b", b"two"))
    assert (await disk.usage()).count == 2
    assert await disk.delete(made.header.key, made.header.digest)
    assert all(path.read_bytes() == b"not ours" for path in strangers)
    await put(disk, made)


async def test_the_janitor_removes_what_crashes_left(
    disk: DiskTier,
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
) -> None:
    """T28."""
    kept, no_index, no_object = (new_artifact(word, word.encode()) for word in ("k", "i", "o"))
    for made in (kept, no_index, no_object):
        await disk.put(made, new_record(made.header.program_name))
    (root / disk.relative_path(no_object.header.digest, no_object.header.key)).unlink()
    next(p for p in files(root, "keys") if p.parent.name == no_index.header.key).unlink()
    (root / "v1" / "keys" / no_index.header.key[4:6] / no_index.header.key).rmdir()
    (root / "v1" / "tmp" / f"{'ab' * 8}-{'cd' * 8}").write_bytes(b"its owner is dead")
    swept = await disk.sweep()
    assert (swept.temps, swept.entries, swept.objects, swept.records) == (1, 1, 1, 1)
    assert await has(disk, kept)
    assert [len(files(root, kind)) for kind in ("keys", "objects", "records")] == [1, 1, 1]
    again = await disk.sweep()
    assert (again.temps, again.entries, again.objects, again.records) == (0, 0, 0, 0)


async def test_a_live_owners_temporary_files_are_not_swept(disk: DiskTier, root: Path) -> None:
    path = await disk.open_spool(100)
    other = DiskTier(root)
    assert (await other.sweep()).temps == 0 and path.exists()
    await disk.close()
    assert (await other.sweep()).temps == 1 and not path.exists()
    await other.close()


async def test_a_record_that_cannot_be_read_is_absent(
    disk: DiskTier,
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
) -> None:
    made = new_artifact("a")
    await disk.put(made, new_record("a"))
    (path,) = files(root, "records")
    path.write_bytes(b"\xff{")
    assert await disk.record(made.header.key) is None
    await disk.put(made, new_record("a"))  # adopts, and brings the record back
    assert await disk.record(made.header.key) == new_record("a")


# What may lie in the place of something of ours, and isn't of its kind.
PLACES: dict[str, Callable[[Path, str, str], Path]] = {
    "object": lambda base, key, digest: next((base / "objects").rglob(f"{digest}*")),
    "objects of a shard": lambda base, key, digest: base / "objects" / digest[:2],
    "index entry": lambda base, key, digest: base / "keys" / key[4:6] / key / "any",
    "folder of a key": lambda base, key, digest: base / "keys" / key[4:6] / key,
    "keys of a shard": lambda base, key, digest: base / "keys" / key[4:6],
    "key record": lambda base, key, digest: base / "records" / key[4:6] / f"{key}.json",
    "records of a shard": lambda base, key, digest: base / "records" / key[4:6],
    "lock": lambda base, key, digest: base / "locks" / key[4:6],
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("what", PLACES)
async def test_a_thing_of_another_kind_in_its_place_is_put_aside(
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    what: str,
    restarted: bool,
) -> None:
    """A folder instead of a file, a file instead of a folder: no key is lost to it for ever."""
    tier = DiskTier(root, limit_bytes=150_000)
    made = new_artifact("a", b"good")
    await tier.put(made, new_record("a"))
    if restarted:
        await tier.close()
        tier = DiskTier(root, limit_bytes=150_000)
    key, digest = made.header.key, made.header.digest
    path = PLACES[what](root / "v1", key, digest)
    was_folder = path.is_dir()
    aside = root / "aside"
    path.rename(aside)
    if was_folder:
        path.write_bytes(b"not a folder")
    else:
        path.mkdir()
        (path / "full").write_bytes(b"x")
    headers = await tier.find(key)
    got = await tier.get(key, digest)
    assert bool(headers) == (got is not None)
    assert got is None or verify(got) == b"good"
    await tier.put(made, new_record("a"))
    got = await tier.get(key, digest)
    assert got is not None and verify(got) == b"good"
    assert await tier.record(key) == new_record("a")
    await tier.sweep()
    assert await has(tier, made)
    for n in range(3):  # what was put aside goes when there is no more room
        await put(tier, new_artifact(f"more{n}", b"%02d" % n * 30_000))
    assert (await tier.usage()).bytes <= 150_000
    await tier.close()


async def test_schemes_live_side_by_side_and_the_old_one_is_collected(
    root: Path, new_artifact: Callable[..., Artifact], new_record: Callable[..., object]
) -> None:
    """Another release's keys and key records are kept as they are, and go when nobody uses them and room is short."""
    tier = DiskTier(root, limit_bytes=200_000)
    new = new_artifact("a", b"n" * 20_000)
    old = new_artifact("a", b"o" * 20_000, key="cs0-" + new.header.key.partition("-")[2])
    await put(tier, old)
    await tier.put(new, new_record("a"))
    record = root / "v1" / "records" / old.header.key[4:6] / f"{old.header.key}.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text('{"scheme": "cs0", "components": "of another kind"}')
    for made in (old, new):
        assert await tier.find(made.header.key) == (made.header,)
        got = await tier.get(made.header.key, made.header.digest)
        assert got is not None and verify(got)[:1] == (b"o" if made is old else b"n")
    assert await tier.record(old.header.key) is None and record.exists()
    await tier.sweep()
    assert await has(tier, old) and record.exists()
    for n in range(12):
        assert await tier.get(new.header.key, new.header.digest) is not None
        await put(tier, new_artifact(f"b{n}", b"%02d" % n * 10_000))
    assert await has(tier, new) and not await has(tier, old) and not record.exists()
    await tier.close()


async def test_damage_is_remembered_until_something_sound_comes(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made, other = new_artifact("a", b"good"), new_artifact("b", b"good")
    await put(disk, made)
    await put(disk, other)
    path = root / disk.relative_path(made.header.digest, made.header.key)
    path.write_bytes(b"")
    assert await disk.find(made.header.key) == ()
    assert disk.damaged_recently(made.header.key)
    assert not disk.damaged_recently(other.header.key)
    await put(disk, made)
    assert not disk.damaged_recently(made.header.key)
    assert await disk.delete(other.header.key, other.header.digest)
    assert await disk.find(other.header.key) == ()
    assert not disk.damaged_recently(other.header.key)
