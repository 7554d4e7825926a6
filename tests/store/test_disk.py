"""What only a disk has to bear: limits, pins, strangers, rot, races, permissions, a slow writer."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from coldstart.artifact import Artifact, BytesPayload, FilePayload, open_file, verify
from coldstart.errors import ArtifactCorrupt, ConfigError, TierError, TierFull, TooLarge
from coldstart.identity.key import key_of
from coldstart.store import disk_layout
from coldstart.store.disk import DiskTier
from coldstart.store.disk_space import INDEX_BYTES
from coldstart.store.urls import open_store

NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def tier(root: Path) -> AsyncIterator[DiskTier]:
    made = DiskTier(root)
    yield made
    await made.close()


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


async def test_the_object_is_a_whole_artifact_file_and_its_path_is_told(
    tier: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    one, other = new_artifact("a", b"same"), new_artifact("b", b"same")
    await put(tier, one)
    await put(tier, other)
    for made in (one, other):
        relative = tier.relative_path(made.header.digest, made.header.key)
        assert relative.startswith(f"v1/objects/{made.header.digest[:2]}/{made.header.digest}-")
        found = open_file(root / relative)
        assert found.header == made.header and verify(found) == b"same"
    assert tier.relative_path(one.header.digest) != ""
    assert tier.relative_path("0" * 64) == tier.relative_path("0" * 64, one.header.key) == ""


async def test_a_nonce_proves_the_volume(tier: DiskTier, root: Path) -> None:
    path, content = tier.nonce()
    assert (root / path).read_bytes() == content and len(content) == 32
    assert tier.nonce() == (path, content)
    await tier.close()
    assert not (root / path).exists()


async def test_a_spooled_artifact_is_taken_over_without_a_copy(
    tier: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"y" * 10_000)
    prefix = made.header.prefix()
    for name, path in (
        ("reserved", await tier.reserve_spool(len(prefix) + 10_000)),
        ("free", tier.spool_path()),
    ):
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(prefix + b"y" * 10_000)
        inode = path.stat().st_ino
        await put(tier, Artifact(made.header, FilePayload(path, len(prefix), 10_000)))
        stored = root / tier.relative_path(made.header.digest, made.header.key)
        assert stored.stat().st_ino == inode, name
        assert not path.exists() and temps(root) == []
        assert await tier.delete(made.header.key, made.header.digest)


async def test_a_spooled_artifact_is_verified_and_left_to_its_owner_when_refused(
    tier: DiskTier, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"good")
    path, prefix = tier.spool_path(), made.header.prefix()
    path.write_bytes(prefix + b"evil")
    with pytest.raises(ArtifactCorrupt):
        await tier.put(Artifact(made.header, FilePayload(path, len(prefix), 4)), None)
    assert path.exists() and not await has(tier, made)


async def test_a_reservation_that_nobody_waits_for_is_dropped(tier: DiskTier, root: Path) -> None:
    await tier.usage()  # the start's scan is over
    with disk_layout.flocked(root / "v1" / "locks" / "limit"):
        reserving = asyncio.ensure_future(tier.reserve_spool(1000))
        await asyncio.sleep(0)
        reserving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reserving
    await tier.usage()
    while temps(root):  # the drop runs on the loop, right after the reservation
        await asyncio.sleep(0.001)
    assert (await tier.usage()).bytes == 0


# --- the byte limit


@pytest.mark.parametrize("at_once", [1, 4])
async def test_three_times_the_limit_never_exceeds_it_and_the_hot_entry_stays(
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
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


async def test_pinned_artifacts_stay_until_the_pin_ends(
    root: Path, new_artifact: Callable[..., Artifact]
) -> None:
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
        await tier.reserve_spool(20_001)
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


# --- rot, orphans, strangers


async def test_a_missing_object_is_a_miss_and_healed(
    tier: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    gone, kept = new_artifact("a", b"gone"), new_artifact("b", b"kept")
    await put(tier, gone)
    await put(tier, kept)
    (root / tier.relative_path(gone.header.digest, gone.header.key)).unlink()
    assert await tier.get(gone.header.key, gone.header.digest) is None
    assert await tier.find(gone.header.key) == ()
    assert len(files(root, "keys")) == 1 and await has(tier, kept)
    await put(tier, gone)


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
    tier: DiskTier,
    root: Path,
    new_artifact: Callable[..., Artifact],
    rot: Callable[[bytes], bytes],
) -> None:
    made = new_artifact("a", b"one")
    await put(tier, made)
    (entry,) = files(root, "keys")
    entry.write_bytes(rot(entry.read_bytes()))
    assert await tier.find(made.header.key) == ()
    assert files(root, "keys") == []
    other = new_artifact("a", b"two")
    await put(tier, other)
    assert (await tier.sweep()).objects == 1  # what the corrupt entry had named
    assert await has(tier, other) and len(files(root, "objects")) == 1


async def test_an_entry_moved_to_another_key_is_not_believed(
    tier: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made, other = new_artifact("a", b"one"), new_artifact("b", b"two")
    await put(tier, made)
    await put(tier, other)
    mine, others = (
        next(p for p in files(root, "keys") if p.parent.name == a.header.key) for a in (made, other)
    )
    others.write_bytes(mine.read_bytes())
    assert await tier.find(other.header.key) == ()
    assert await has(tier, made)


@pytest.mark.parametrize("damage", ["cut", "header"])
async def test_a_damaged_object_is_a_miss_and_makes_room_for_the_next_put(
    tier: DiskTier, root: Path, new_artifact: Callable[..., Artifact], damage: str
) -> None:
    made = new_artifact("a", b"x" * 1000)
    await put(tier, made)
    (path,) = files(root, "objects")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data) if damage == "header" else bytes(data[:-1]))
    assert await tier.get(made.header.key, made.header.digest) is None
    await put(tier, made)
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == b"x" * 1000


async def test_strangers_files_are_left_alone(
    tier: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    made = new_artifact("a", b"one")
    await put(tier, made)
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
    assert await tier.find(made.header.key) == (made.header,)
    await tier.sweep()
    await put(tier, new_artifact("b", b"two"))
    assert (await tier.usage()).count == 2
    assert await tier.delete(made.header.key, made.header.digest)
    assert all(path.read_bytes() == b"not ours" for path in strangers)
    await put(tier, made)


async def test_the_janitor_removes_what_crashes_left(
    tier: DiskTier,
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
) -> None:
    kept, no_index, no_object = (new_artifact(word, word.encode()) for word in ("k", "i", "o"))
    for made in (kept, no_index, no_object):
        await tier.put(made, new_record(made.header.program_name))
    (root / tier.relative_path(no_object.header.digest, no_object.header.key)).unlink()
    next(p for p in files(root, "keys") if p.parent.name == no_index.header.key).unlink()
    (root / "v1" / "keys" / no_index.header.key[4:6] / no_index.header.key).rmdir()
    (root / "v1" / "tmp" / f"{'ab' * 8}-{'cd' * 8}").write_bytes(b"its owner is dead")
    swept = await tier.sweep()
    assert (swept.temps, swept.entries, swept.objects, swept.records) == (1, 1, 1, 1)
    assert await has(tier, kept)
    assert [len(files(root, kind)) for kind in ("keys", "objects", "records")] == [1, 1, 1]
    again = await tier.sweep()
    assert (again.temps, again.entries, again.objects, again.records) == (0, 0, 0, 0)


async def test_a_live_owners_temporary_files_are_not_swept(tier: DiskTier, root: Path) -> None:
    path = await tier.reserve_spool(100)
    other = DiskTier(root)
    assert (await other.sweep()).temps == 0 and path.exists()
    await tier.close()
    assert (await other.sweep()).temps == 1 and not path.exists()
    await other.close()


async def test_a_record_that_cannot_be_read_is_absent(
    tier: DiskTier,
    root: Path,
    new_artifact: Callable[..., Artifact],
    new_record: Callable[..., object],
) -> None:
    made = new_artifact("a")
    await tier.put(made, new_record("a"))
    (path,) = files(root, "records")
    path.write_bytes(b"\xff{")
    assert await tier.record(made.header.key) is None
    await tier.put(made, new_record("a"))  # adopts, and brings the record back
    assert await tier.record(made.header.key) == new_record("a")


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
    tier: DiskTier, new_artifact: Callable[..., Artifact]
) -> None:
    ready = new_artifact("ready", b"ready")
    await put(tier, ready)
    go_on = threading.Event()
    slow = [new_artifact(f"s{n}", b"%d" % n * 2000) for n in range(4)]  # as many as write threads
    halves = [threading.Event() for _ in slow]
    puts = [
        asyncio.ensure_future(
            tier.put(
                Artifact(made.header, SlowPayload(b"%d" % n * 2000, halves[n], go_on)),
                None,
            )
        )
        for n, made in enumerate(slow)
    ]
    for half in halves:
        assert await asyncio.to_thread(half.wait, 30)
    for made in slow:
        assert await tier.find(made.header.key) == ()
        assert await tier.get(made.header.key, made.header.digest) is None
    got = await tier.get(ready.header.key, ready.header.digest)
    assert got is not None and verify(got) == b"ready"
    go_on.set()
    await asyncio.gather(*puts)
    for made in slow:
        assert await has(tier, made)


RACER = """
import asyncio, pathlib, sys
sys.path.insert(0, sys.argv[3])
from conftest import make_artifact
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
    tier: DiskTier, root: Path, new_artifact: Callable[..., Artifact]
) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(root), word, str(Path(__file__).parent)],
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
        (header,) = await tier.find(new_artifact(f"a{n}").header.key)
        assert header.digest == digest
        got = await tier.get(header.key, digest)
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


async def test_keys_name_the_scheme(tier: DiskTier, new_record: Callable[..., object]) -> None:
    assert disk_layout.shard(key_of(new_record("a"))) == key_of(new_record("a"))[4:6]  # type: ignore[arg-type]


async def test_bytes_payloads_over_one_chunk(
    tier: DiskTier, new_artifact: Callable[..., Artifact]
) -> None:
    data = os.urandom(5 << 19)
    made = new_artifact("a", data)
    await put(tier, Artifact(made.header, BytesPayload(data)))
    got = await tier.get(made.header.key, made.header.digest)
    assert got is not None and verify(got) == data
