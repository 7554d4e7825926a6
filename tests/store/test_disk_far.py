"""A disk on a file system that asks another machine: what it doesn't answer keeps threads waiting, and nobody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disk_faults import Volume, can_mount

from coldstart.artifact import Artifact
from coldstart.errors import TierTimeout
from coldstart.store import disk as disk_module
from coldstart.store import disk_recent, disk_threads
from coldstart.store.disk import DiskTier
from coldstart.store.disk_locality import OWN_TYPES, answers_at_once, file_system

NewArtifact = Callable[..., Artifact]

MOUNTS = """\
25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 25 0:40 / /mnt/cache rw - nfs4 server:/export rw,vers=4.2
31 25 0:41 / /mnt/team\\040share rw master:2 propagate_from:1 - fuse.sshfs me@server rw
32 25 0:33 /sub /data rw - btrfs /dev/vdb rw
33 25 254:2 / /mnt/over rw - xfs /dev/vdc rw
34 33 0:50 / /mnt/over rw - ceph mon:/ rw
35 25 0:60 / /run/pod rw - overlay overlay rw,lowerdir=a
not a line of it
"""


@pytest.mark.parametrize(
    "device, path, kind",
    [
        ("254:1", "/var/cache", "ext4"),
        ("254:1", "/mnt/cachet", "ext4"),
        ("0:40", "/mnt/cache", "nfs4"),
        ("0:40", "/mnt/cache/deep/er", "nfs4"),
        ("0:41", "/mnt/team share/x", "fuse.sshfs"),
        ("0:99", "/data/x", "btrfs"),  # a subvolume: another device than the mount's
        ("0:50", "/mnt/over/x", "ceph"),
        ("0:60", "/run/pod", "overlay"),
        ("0:77", "/var/cache", ""),  # seen through another namespace
    ],
)
def test_the_type_is_that_of_the_nearest_mount(device: str, path: str, kind: str) -> None:
    assert file_system(MOUNTS, device, path) == kind


def test_this_kernels_own_file_systems_are_known(tmp_path: Path) -> None:
    said = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert answers_at_once(tmp_path) is any(kind in said for kind in (*OWN_TYPES, "ext2/ext3"))
    assert not answers_at_once(Path("/proc"))
    assert not answers_at_once(tmp_path / "nothing")


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks are taken for ones that may not answer; callers wait a second for them."""
    monkeypatch.setattr(disk_module, "answers_at_once", lambda root: False)
    monkeypatch.setattr(disk_recent, "SETTLED_NS", -1)
    monkeypatch.setattr(disk_module, "READ_SECONDS", 1.0)
    monkeypatch.setattr(disk_threads, "DOUBTFUL_SECONDS", 0.1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each stat or utime of what is remembered: whether the event loop's thread did it."""
    seen: list[bool] = []
    for name in ("stat", "utime"):
        original = getattr(os, name)

        def told(*args: object, original: Callable[..., object] = original, **more: object):
            seen.append(threading.current_thread() is threading.main_thread())
            return original(*args, **more)

        monkeypatch.setattr(disk_recent.os, name, told)
    yield seen


@pytest.mark.usefixtures("far")
async def test_what_is_remembered_is_looked_at_in_threads(
    root: Path, new_artifact: NewArtifact, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, made = DiskTier(root), new_artifact("a")
    key, digest = made.header.key, made.header.digest
    await tier.put(made, None)
    assert await tier.get(key, digest) is not None
    read: list[str] = []
    sound = tier._sound
    monkeypatch.setattr(tier, "_sound", lambda key: read.append(key) or sound(key))
    looks.clear()
    for _ in range(3):
        assert await tier.find(key) == (made.header,)
        got = await tier.get(key, digest)
        assert got is not None and b"".join(got.payload.chunks()) == b"code"
    assert read == []  # the memory was believed
    assert len(looks) >= 3 * 5 and not any(looks)
    (path,) = root.rglob("*.csa")
    path.unlink()
    assert await tier.get(key, digest) is None and await tier.find(key) == ()
    await tier.close()


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a tmpfs of its own")
@pytest.mark.usefixtures("far")
async def test_a_hung_file_system_freezes_nobody(tmp_path: Path, new_artifact: NewArtifact) -> None:
    with Volume(tmp_path, 4096) as volume:
        tier, made = DiskTier(volume.root), new_artifact("a")
        key, digest = made.header.key, made.header.digest
        await tier.put(made, None)
        assert await tier.get(key, digest) is not None and await tier.find(key) == (made.header,)
        volume.hang("v1/keys")
        ticks, loop = [0.0], asyncio.get_running_loop()

        async def tick() -> None:
            last = loop.time()
            while True:
                await asyncio.sleep(0.01)
                ticks.append(loop.time() - last)
                last = loop.time()

        ticking = asyncio.create_task(tick())
        for ask in (tier.find(key), tier.get(key, digest), tier.find(key)):
            with pytest.raises(TierTimeout):
                await ask
        assert max(ticks) < 0.9 and len(ticks) > 20  # a whole second, if the loop had waited
        ticking.cancel()
        volume.answer()
        async with asyncio.timeout(20):
            while True:
                try:
                    found = await tier.find(key)
                except TierTimeout:
                    continue
                break
        assert found == (made.header,)
        await tier.close()
