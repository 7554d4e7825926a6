"""Writers and readers at once, between threads and processes; and a file system that says no."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, verify
from coldstart.errors import ConfigError, TierError, TierFull
from coldstart.store.disk import DiskTier
from coldstart.store.urls import open_store

NOBODY = 65534
SUPPORT = Path(__file__).resolve().parents[1] / "support"  # for the processes that are started


def files(root: Path, *kinds: str) -> list[Path]:
    """Files below the given folders of a store, or below all."""
    places = [root / "v1" / kind for kind in kinds] or [root]
    return sorted(path for place in places for path in place.rglob("*") if path.is_file())


def temps(root: Path) -> list[Path]:
    return [path for path in files(root, "tmp") if path.suffix != ".owner"]


async def put(tier: DiskTier, artifact: Artifact) -> None:
    assert await tier.put(artifact, None) == artifact.header


async def has(tier: DiskTier, artifact: Artifact) -> bool:
    return artifact.header in await tier.find(artifact.header.key)


# --- writers and readers at once


@dataclass
class SlowPayload:
    """Gives half of its bytes, then waits."""

    data: bytes
    half: threading.Event
    go_on: threading.Event

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def chunks(self, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
        middle = len(self.data) // 2
        yield self.data[:middle]
        self.half.set()
        assert self.go_on.wait(30)
        yield self.data[middle:]


async def test_readers_see_nothing_of_slow_puts_and_do_not_wait_for_them(
    disk: DiskTier, new_artifact: Callable[..., Artifact]
) -> None:
    """T22."""
    ready = new_artifact("ready", b"ready")
    await put(disk, ready)
    go_on = threading.Event()
    slow = [new_artifact(f"s{n}", b"%d" % n * 2000) for n in range(4)]  # as many as write threads
    halves = [threading.Event() for _ in slow]
    puts = [
        asyncio.ensure_future(
            disk.put(
                Artifact(made.header, SlowPayload(b"%d" % n * 2000, halves[n], go_on)),
                None,
            )
        )
        for n, made in enumerate(slow)
    ]
    for half in halves:
        assert await asyncio.to_thread(half.wait, 30)
    for made in slow:
        assert await disk.find(made.header.key) == ()
        assert await disk.get(made.header.key, made.header.digest) is None
    got = await disk.get(ready.header.key, ready.header.digest)
    assert got is not None and verify(got) == b"ready"
    go_on.set()
    await asyncio.gather(*puts)
    for made in slow:
        assert await has(disk, made)


RACER = """
import asyncio, pathlib, sys
sys.path.insert(0, sys.argv[3])
from small_artifacts import make_artifact
from coldstart.store.disk import DiskTier

async def main():
    tier = DiskTier(pathlib.Path(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(40):
        made = make_artifact(f"a{n}", sys.argv[2].encode() * 50)
        print((await tier.put(made, None)).digest, flush=True)
    await tier.close()

asyncio.run(main())
"""


async def test_two_processes_racing_agree_on_one_digest_per_key(
    disk: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(root), word, str(SUPPORT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for word in ("left", "right")
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    left, right = (racer.communicate(timeout=60)[0].split() for racer in racers)
    assert [racer.returncode for racer in racers] == [0, 0]
    assert len(left) == 40 and left == right
    for n, digest in enumerate(left):
        (header,) = await disk.find(new_artifact(f"a{n}").header.key)
        assert header.digest == digest
        got = await disk.get(header.key, digest)
        assert got is not None and verify(got)
    assert len(files(root, "objects")) == 40 and temps(root) == []


# --- trouble with the file system


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write anywhere: be somebody who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_read_only_store_reads_and_says_what_to_do(
    new_artifact: Callable[..., Artifact],
) -> None:
    with tempfile.TemporaryDirectory(prefix="cs-") as folder:
        os.chmod(folder, 0o755)
        root = Path(folder) / "store"
        made = new_artifact("a", b"one")
        writer = DiskTier(root)
        await put(writer, made)
        await writer.close()
        for path in (root, *root.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with as_nobody():
            tier = DiskTier(root)
            got = await tier.get(made.header.key, made.header.digest)
            assert got is not None and verify(got) == b"one"
            with pytest.raises(TierError, match=r"disk: .*/v1/.*cs\.write=false") as caught:
                await tier.put(new_artifact("b"), None)
            assert str(root) in str(caught.value)
            with pytest.raises(TierError):
                await tier.delete(made.header.key, made.header.digest)
            assert (await tier.usage()).count == 1
            await tier.close()
            with pytest.raises(ConfigError, match=r"store disk://.*/elsewhere.*not allowed"):
                open_store([f"disk://{root}/elsewhere"])
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_failure_at_any_step_leaves_nothing_behind(
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    """Each of the calls that make an artifact durable fails in turn, until one put gets through them all."""
    calls = fail_at = 0

    def failing(name: str) -> None:
        inner = getattr(os, name)

        def maybe(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise OSError(number, os.strerror(number))
            return inner(*arguments, **options)

        monkeypatch.setattr(os, name, maybe)

    for name in ("ftruncate", "write", "fsync", "rename", "link"):
        failing(name)
    made, record = new_artifact("a", b"one"), new_record("a")
    expected = TierError if number == errno.EIO else TierFull
    for step in range(1, 60):
        tier = DiskTier(root / str(step))
        await tier.usage()
        calls, fail_at = 0, step
        try:
            await tier.put(made, record)  # type: ignore[arg-type]
        except TierError as exc:
            assert type(exc) is expected
            assert await tier.find(made.header.key) == ()
            assert files(root / str(step), "objects", "keys") == [], step
            assert temps(root / str(step)) == []
            fail_at = 0
            await put(tier, made)
            await tier.close()
            continue
        await tier.close()
        break
    assert step > 15  # there were as many steps to fail at
