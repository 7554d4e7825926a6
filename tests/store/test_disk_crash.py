"""Durability: the order of system calls, and what a killed process leaves (I4).

A killed process alone can't show that something was synced, so the order is asserted as such; and kills at every
single call show that no order of names leaves anything torn.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, FilePayload, verify
from coldstart.store.disk import DiskTier

SUPPORT = Path(__file__).resolve().parents[1] / "support"  # for the processes that are started


def temps(root: Path) -> list[Path]:
    return [p for p in (root / "v1" / "tmp").iterdir() if p.suffix != ".owner"]


def record_calls(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """The calls that durability rests on, as `name place`, in order; random and hashed names by their folder."""
    calls: list[str] = []
    numbered: dict[str, str] = {}

    def told(path: object) -> str:
        place = str(path).removeprefix(str(root / "v1") + "/")
        if place.startswith("tmp/"):
            return numbered.setdefault(place, f"tmp/{len(numbered) + 1}")
        place = re.sub(r"/[0-9a-f]{2}(?=/|$)", "/xx", place)
        return re.sub(r"/(cs1-)?[0-9a-f]{64}[^/]*", "/name", place)

    def opened(fd: int) -> str:
        return told(os.readlink(f"/proc/self/fd/{fd}"))

    real = {name: getattr(os, name) for name in ("write", "fsync", "rename", "link", "ftruncate")}

    def write(fd: int, data: bytes) -> int:
        calls.append(f"write {opened(fd)}")
        return int(real["write"](fd, data))

    def fsync(fd: int) -> None:
        calls.append(f"fsync {opened(fd)}")
        real["fsync"](fd)

    def ftruncate(fd: int, size: int) -> None:
        calls.append(f"reserve {opened(fd)}")
        real["ftruncate"](fd, size)

    def rename(source: Path, target: Path) -> None:
        calls.append(f"rename {told(source)} {told(target)}")
        real["rename"](source, target)

    def link(source: Path, target: Path) -> None:
        calls.append(f"link {told(source)} {told(target)}")
        real["link"](source, target)

    for call in (write, fsync, ftruncate, rename, link):
        monkeypatch.setattr(os, call.__name__, call)
    return calls


COMMIT = [
    "fsync objects",  # the shard folder is new
    "rename tmp/1 objects/xx/name",
    "fsync objects/xx",
    "fsync records",
    "write tmp/2",
    "fsync tmp/2",
    "rename tmp/2 records/xx/name",
    "fsync records/xx",
    "fsync keys",
    "write tmp/3",
    "fsync tmp/3",
    "link tmp/3 keys/xx/name/any",
    "fsync keys/xx/name",
    "fsync keys/xx",
]


async def test_every_name_is_durable_before_the_next_one_appears(
    tmp_path: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = DiskTier(tmp_path)
    await tier.usage()
    calls = record_calls(monkeypatch, tmp_path)
    await tier.put(new_artifact("a"), new_record("a"))  # type: ignore[arg-type]
    assert calls == ["reserve tmp/1", "write tmp/1", "write tmp/1", "fsync tmp/1", *COMMIT]
    await tier.close()


async def test_a_spooled_artifact_is_synced_before_it_is_named(
    tmp_path: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = DiskTier(tmp_path)
    made = new_artifact("a", b"abc")
    prefix = made.header.prefix()
    path = tier.spool_path()
    path.write_bytes(prefix + b"abc")
    calls = record_calls(monkeypatch, tmp_path)
    spooled = Artifact(made.header, FilePayload(path, len(prefix), 3))
    await tier.put(spooled, new_record("a"))  # type: ignore[arg-type]
    assert calls == ["fsync tmp/1", *COMMIT]
    await tier.close()


# One child per call: stopped dead right before its n-th call, and once more for a store that has a neighbour.
KILLED_AT = """
import asyncio, os, pathlib, signal, sys
root, tests = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, tests)
from small_artifacts import make_artifact, make_record
from coldstart.store.disk import DiskTier

def arm(kill_at):
    calls = 0
    for name in ("open", "ftruncate", "write", "fsync", "rename", "link", "unlink", "mkdir", "close", "utime"):
        def armed(*arguments, inner=getattr(os, name), **options):
            nonlocal calls
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return inner(*arguments, **options)
        setattr(os, name, armed)

async def puts(folder, kill_at, acknowledged):
    tier = DiskTier(folder)
    await tier.put(make_artifact("before", b"before"), make_record("before"))
    raw_write = os.write
    raw_write(acknowledged, b"before\\n")
    arm(kill_at)
    await tier.put(make_artifact("after", b"after" * 100), make_record("after"))
    raw_write(acknowledged, b"after\\n")
    os._exit(0)

for kill_at in range(1, 200):
    folder = root / str(kill_at)
    folder.mkdir()
    acknowledged = os.open(root / f"{kill_at}.acknowledged", os.O_CREAT | os.O_WRONLY)
    child = os.fork()
    if child == 0:
        asyncio.run(puts(folder, kill_at, acknowledged))
    os.close(acknowledged)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(kill_at)
"""


async def test_killed_at_any_call_it_leaves_a_whole_artifact_or_none(
    tmp_path: Path, new_artifact: Callable[..., Artifact]
) -> None:
    here = str(SUPPORT)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT, str(tmp_path), here],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    )
    points = int(done.stdout)
    assert points > 30
    seen = set()
    for point in range(1, points + 1):
        words = (tmp_path / f"{point}.acknowledged").read_text().split()
        assert words[0] == "before"
        tier = DiskTier(tmp_path / str(point))
        for word, content in (("before", b"before"), ("after", b"after" * 100)):
            made = new_artifact(word, content)
            found = await tier.find(made.header.key)
            got = await tier.get(made.header.key, made.header.digest)
            assert (got is not None) == bool(found), point
            assert found or word not in words, f"acknowledged and lost at call {point}"
            if got is not None:
                assert verify(got) == content
            if word == "after":
                seen.add(bool(found))
        await tier.sweep()
        assert temps(tmp_path / str(point)) == []
        again = new_artifact("after", b"another")
        await tier.put(again, None)
        (header,) = await tier.find(again.header.key)
        assert await tier.get(header.key, header.digest) is not None
        assert len(list((tmp_path / str(point) / "v1" / "objects").rglob("*.csa"))) == 2
        await tier.close()
    assert seen == {False, True}


# Many puts at once, killed from outside.
WRITER = """
import asyncio, pathlib, sys
sys.path.insert(0, sys.argv[2])
from small_artifacts import make_artifact
from coldstart.store.disk import DiskTier

async def main():
    tier = DiskTier(pathlib.Path(sys.argv[1]), limit_bytes=1 << 30)
    async def put(n):
        await tier.put(make_artifact(f"a{n}", b"%d" % n * 5000), None)
        print(n, flush=True)
    for first in range(int(sys.argv[3]), 1 << 30, 8):
        await asyncio.gather(*(put(n) for n in range(first, first + 8)))

asyncio.run(main())
"""


async def test_kill_9_loses_nothing_that_was_acknowledged(
    tmp_path: Path, new_artifact: Callable[..., Artifact]
) -> None:
    choose = random.Random(924)
    root, acknowledged = tmp_path / "store", set[int]()
    for life in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(SUPPORT), str(life * 1000)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(choose.randrange(1, 40)):
            acknowledged.add(int(writer.stdout.readline()))
        for _ in range(choose.randrange(20_000)):  # a moment of its own choosing inside a put
            pass
        writer.send_signal(signal.SIGKILL)
        acknowledged |= {int(line) for line in writer.stdout.read().split("\n")[:-1]}
        writer.wait(10)
        writer.stdout.close()
        tier = DiskTier(root)
        await tier.sweep()
        assert temps(root) == []
        for n in acknowledged:
            made = new_artifact(f"a{n}", b"%d" % n * 5000)
            got = await tier.get(made.header.key, made.header.digest)
            assert got is not None and verify(got) == b"%d" % n * 5000
        await tier.close()
    assert len(acknowledged) >= 20
