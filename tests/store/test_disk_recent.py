"""What the disk tier remembers of its index is believed exactly as long as it is true, whoever changes the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coldstart.errors import ArtifactError
from coldstart.store import disk_recent
from coldstart.store.disk import DiskTier


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders count as settled at once, or every test would have to wait for their clock."""
    monkeypatch.setattr(disk_recent, "SETTLED_NS", -1)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each turn of a reading thread."""
    taken: list[str] = []
    original = DiskTier._read

    async def counted(self: DiskTier, work: Callable[..., Any], *arguments: object) -> Any:
        taken.append(work.__name__)
        return await original(self, work, *arguments)

    monkeypatch.setattr(DiskTier, "_read", counted)
    return taken


def path_of(tier: DiskTier, artifact: Any) -> Path:
    return tier.root / tier.relative_path(artifact.header.digest, artifact.header.key)


async def warm(tier: DiskTier, artifact: Any) -> Path:
    await tier.put(artifact, None)
    assert await tier.get(artifact.header.key, artifact.header.digest) is not None
    return path_of(tier, artifact)


@pytest.mark.usefixtures("settled")
async def test_a_hit_that_is_known_takes_no_thread(
    root: Path, new_artifact: Any, reads: list[str]
) -> None:
    tier, artifact = DiskTier(root), new_artifact("a")
    path = await warm(tier, artifact)
    reads.clear()
    used = path.stat().st_mtime_ns
    for _ in range(3):
        assert await tier.find(artifact.header.key) == (artifact.header,)
        found = await tier.get(artifact.header.key, artifact.header.digest)
        assert found is not None and found.header == artifact.header
        assert b"".join(found.payload.chunks()) == b"".join(artifact.payload.chunks())
    assert reads == []
    assert path.stat().st_mtime_ns > used  # and is a use all the same
    await tier.close()


async def test_a_folder_that_has_just_changed_is_not_remembered(
    root: Path, new_artifact: Any, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_recent, "SETTLED_NS", 3600 * 10**9)
    tier, artifact = DiskTier(root), new_artifact("a")
    await warm(tier, artifact)
    reads.clear()
    await tier.find(artifact.header.key)
    assert reads == ["_find"]
    await tier.close()


def flip(path: Path, artifact: Any) -> None:
    data = bytearray(path.read_bytes())
    data[60] ^= 1  # in the header
    path.write_bytes(bytes(data))


def shorten(path: Path, artifact: Any) -> None:
    os.truncate(path, path.stat().st_size - 1)


def replace(path: Path, artifact: Any) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.rename(other, path)


def remove(path: Path, artifact: Any) -> None:
    path.unlink()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", [flip, shorten, replace, remove])
async def test_an_object_that_changed_is_looked_at_again(
    root: Path, new_artifact: Any, change: Callable[[Path, Any], None]
) -> None:
    tier, artifact = DiskTier(root), new_artifact("a")
    change(await warm(tier, artifact), artifact)
    with suppress(ArtifactError):
        assert await tier.get(artifact.header.key, artifact.header.digest) is None
    assert await tier.find(artifact.header.key) == ()
    await tier.close()


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("change", [shorten, replace, remove])
async def test_an_object_that_was_found_and_never_opened_is_looked_at(
    root: Path, new_artifact: Any, change: Callable[[Path, Any], None]
) -> None:
    tier, artifact = DiskTier(root), new_artifact("a")
    await tier.put(artifact, None)
    assert await tier.find(artifact.header.key) == (artifact.header,)
    change(path_of(tier, artifact), artifact)
    with suppress(ArtifactError):
        assert await tier.get(artifact.header.key, artifact.header.digest) is None
    assert await tier.find(artifact.header.key) == ()
    await tier.put(artifact, None)
    assert await tier.get(artifact.header.key, artifact.header.digest) is not None
    await tier.close()


@pytest.mark.usefixtures("settled")
async def test_what_another_thread_learns_meanwhile_disturbs_no_hit(
    root: Path, new_artifact: Any
) -> None:
    tier, artifact = DiskTier(root), new_artifact("a")
    key, digest = artifact.header.key, artifact.header.digest
    await warm(tier, artifact)

    def stamp() -> int:
        tier._find(key)  # as a reader's thread may do at any moment
        return tier._stamp()

    found = tier._recent.artifact(key, digest, stamp)
    assert found is not None and found.header == artifact.header
    tier._find(key)
    assert await tier.get(key, digest) is not None
    await tier.close()


@pytest.mark.usefixtures("settled")
async def test_another_process_on_the_same_root_is_seen(root: Path, new_artifact: Any) -> None:
    ours, theirs = DiskTier(root), DiskTier(root)
    one = new_artifact("a")
    await warm(ours, one)
    other = new_artifact("a", b"other", cpu_features=("avx9000",))
    await theirs.put(other, None)
    assert {h.digest for h in await ours.find(one.header.key)} == {
        one.header.digest,
        other.header.digest,
    }
    await warm(ours, one)
    assert await theirs.delete(one.header.key, one.header.digest)
    assert await ours.get(one.header.key, one.header.digest) is None
    assert {h.digest for h in await ours.find(one.header.key)} == {other.header.digest}
    await ours.close()
    await theirs.close()


@pytest.mark.usefixtures("settled")
async def test_what_is_remembered_is_bounded(
    root: Path, new_artifact: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_recent, "MAX_KEYS", 3)
    tier = DiskTier(root)
    for word in "abcde":
        await warm(tier, new_artifact(word))
    assert len(tier._recent._known) == 3
    await tier.close()
