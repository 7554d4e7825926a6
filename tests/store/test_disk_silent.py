"""A disk that doesn't answer, and one that is taken away: callers go on, and so does the store when it is back."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from disk_faults import HeldFile, Volume, can_mount

from coldstart.artifact import Artifact, verify
from coldstart.errors import TierError, TierTimeout
from coldstart.store import disk as disk_module
from coldstart.store import disk_threads
from coldstart.store.disk import DiskTier

SUPPORT = Path(__file__).resolve().parents[1] / "support"


def files(root: Path, kind: str) -> list[Path]:
    return sorted(path for path in (root / "v1" / kind).rglob("*") if path.is_file())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READ_SECONDS", "WRITE_SECONDS"):
        monkeypatch.setattr(disk_module, name, 1.0)
    monkeypatch.setattr(disk_threads, "DOUBTFUL_SECONDS", 0.1)


@pytest.mark.parametrize("own_seconds", [0.9, 30.0])
@pytest.mark.usefixtures("hasty")
async def test_nobody_stands_in_line_behind_a_disk_that_is_silent(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact], own_seconds: float
) -> None:
    """Whether the first caller waits for the disk's deadline or has a shorter one of its own, as a chain has."""
    silent, other = new_artifact("a", b"one"), new_artifact("b", b"two")
    for made in (silent, other):
        await disk.put(made, None)
    entry = root / "v1" / "keys" / silent.header.key[4:6] / silent.header.key / "any"
    with HeldFile(entry) as held:
        began = time.monotonic()
        with pytest.raises((TierTimeout, TimeoutError)):
            async with asyncio.timeout(own_seconds):
                await disk.find(silent.header.key)
        assert held.waited_for
        for _ in range(20):  # more than there are threads; each would wait for a second
            with pytest.raises(TierTimeout):
                async with asyncio.timeout(own_seconds):
                    await disk.find(silent.header.key)
        assert time.monotonic() - began < 15
    for made in (silent, other):  # it answers: nothing is left of the doubt
        assert await disk.find(made.header.key) == (made.header,)


async def test_a_crowd_is_not_taken_for_silence() -> None:
    """Each of many jobs takes a while, and the last waits far longer than the deadline: a busy disk answers."""
    threads = disk_threads.Threads("busy", 2)
    slow = [threads.run(lambda: time.sleep(0.2) or 1, 1.0) for _ in range(20)]
    assert await asyncio.gather(*slow) == [1] * 20
    assert await threads.run(lambda: time.sleep(0.6) or 2, 1.0) == 2  # nobody doubts
    await threads.close()


@pytest.mark.usefixtures("hasty")
async def test_a_spool_that_comes_too_late_is_nobodys(disk: DiskTier, root: Path) -> None:
    await disk.open_spool(100)
    with HeldFile(root / "v1" / "locks" / "limit"), pytest.raises(TierTimeout):
        await disk.open_spool(100)
    async with asyncio.timeout(20):
        while (await disk.usage()).bytes > 5000:  # one spool's entry is 4096
            await asyncio.sleep(0.01)
    spools = [path for path in files(root, "tmp") if path.suffix == ".spool"]
    assert len(spools) == 1


ENDING = """
import asyncio, pathlib, sys
from coldstart.errors import TierTimeout
from coldstart.store import disk
disk.READ_SECONDS = 0.5

async def main():
    tier = disk.DiskTier(pathlib.Path(sys.argv[1]))
    try:
        await tier.find(sys.argv[2])
    except TierTimeout:
        print("silent", flush=True)
    await tier.close()

asyncio.run(main())
print("closed", flush=True)
"""


async def test_a_process_ends_though_its_disk_is_silent(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    """The kernel would keep its thread for 45 s."""
    made = new_artifact("a")
    await disk.put(made, None)
    with HeldFile(files(root, "keys")[0]):
        command = [sys.executable, "-c", ENDING, str(root), made.header.key]
        ran = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=30
        )
    assert ran.stdout.split() == ["silent", "closed"] and ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("kind", ["keys", "records", "objects"])
async def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(
    disk: DiskTier,
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    kind: str,
) -> None:
    made = new_artifact("a", b"good")
    await disk.put(made, new_record("a"))
    (path,) = files(root, kind)
    path.unlink()
    os.mkfifo(path)
    async with asyncio.timeout(20):
        for _ in range(disk_module.READ_THREADS + 1):
            found = await disk.find(made.header.key)
            assert found == ((made.header,) if kind == "records" else ())
            assert await disk.record(made.header.key) in (None, new_record("a"))
        await disk.put(made, new_record("a"))
        got = await disk.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"good"
    assert await disk.record(made.header.key) == new_record("a")


@pytest.mark.parametrize("all_of_it", [False, True])
async def test_a_store_that_somebody_removed_is_begun_anew(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact], all_of_it: bool
) -> None:
    made = new_artifact("a", b"good")
    await disk.put(made, None)
    told, _ = await disk.nonce()
    other = DiskTier(root)
    await other.put(new_artifact("b"), None)
    shutil.rmtree(root if all_of_it else root / "v1")
    for tier in (disk, other):
        assert await tier.find(made.header.key) == ()
    spool = await disk.open_spool(100)
    tells, _ = await disk.nonce()
    assert tells != told and (root / tells).is_file()
    assert (await other.sweep()).temps == 0 and spool.exists()  # its owner is known to live
    await other.put(made, None)
    got = await disk.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"good"
    await other.close()


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a tmpfs of its own")
async def test_no_store_is_begun_where_its_volume_was(
    tmp_path: Path, new_artifact: Callable[..., Artifact]
) -> None:
    with Volume(tmp_path, 1024) as volume:
        root = volume.root / "store"
        tier = DiskTier(root)
        await tier.put(new_artifact("a"), None)
        volume.leave()
        with pytest.raises(TierError, match="No such file"):
            await tier.put(new_artifact("b"), None)
        assert not root.exists()
        await tier.close()
