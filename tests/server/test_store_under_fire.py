"""Daemons on stores in trouble: two on one, slow puts, orphans, a tier that is only read, a disk that is full."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from disk_faults import HeldFile, can_mount

from coldstart import artifact, wire
from coldstart.client.client import CacheClient
from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc, cache_pb2_grpc
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server import app
from coldstart.server.in_process import daemon_in_process


def held_bytes(root: Path) -> int:
    """Sizes of all files below; what vanishes while it looks is not counted."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def files(root: Path, *kinds: str) -> list[Path]:
    return sorted(p for kind in kinds for p in (root / "v1" / kind).rglob("*") if p.is_file())


class Watching(threading.Thread):
    """Looks again and again until it is told to stop; remembers the most that it saw, and what failed."""

    def __init__(self, look) -> None:
        super().__init__()
        self._look, self._stop_it = look, threading.Event()
        self.most, self.looks, self.error = 0, 0, None

    def run(self) -> None:
        try:
            while not self._stop_it.is_set():
                self.most = max(self.most, self._look())
                self.looks += 1
        except BaseException as exc:
            self.error = exc

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_it.set()
        self.join(60)
        assert self.error is None, self.error


def test_two_daemons_evict_one_store(tmp_path, start_daemon, asking, made) -> None:
    """T27: three times the limit, never above it; the entry that is read stays, and so does one that is pinned."""
    limit, size, root = 4 << 20, 100_000, tmp_path / "store"
    url = f"disk://{root}?cs.limit={limit}"
    daemons = [start_daemon(folder=name, stores=[url]) for name in ("one", "two")]
    hot, pinned = made.record("hot"), made.record("pinned")
    for record in (hot, pinned):
        one = asking(daemons[0].cache, record)
        one.publish(made.artifact(record, raw=os.urandom(50_000), codec="raw"))
    holding = [asking(daemon.cache, pinned) for daemon in daemons]  # not finished: pinned
    assert [each.lookup().WhichOneof("answer") for each in holding] == ["hit", "hit"]
    digest = asking(daemons[0].cache, hot).lookup().hit.header

    def publish(daemon, name: str) -> None:
        with grpc.insecure_channel(daemon.address) as channel:
            cache = cache_pb2_grpc.CacheStub(channel)
            for n in range(63):
                record = made.record(f"{name}{n}")
                one = asking(cache, record)
                one.publish(made.artifact(record, raw=os.urandom(size), codec="raw"))

    def read_hot() -> int:
        found = asking(daemons[1].cache, hot).lookup()
        assert found.hit.header == digest
        time.sleep(0.02)
        return 1

    with Watching(lambda: held_bytes(root)) as bytes_held, Watching(read_hot) as reads:
        threads = [
            threading.Thread(target=publish, args=(daemon, name))
            for daemon, name in zip(daemons, "ab", strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
            assert not thread.is_alive()
    assert 2 * 63 * size >= 3 * limit
    # A file that is renamed while the walk looks may be seen under both names.
    assert bytes_held.most <= limit + size + 4096 and held_bytes(root) <= limit
    assert bytes_held.looks > 10 and reads.looks > 10
    for daemon in daemons:
        (tier,) = daemon.stats().tiers
        assert tier.bytes <= limit and tier.operations["put.ok"] == 63 + 2 * (daemon is daemons[0])
    assert sum(daemon.stats().tiers[0].operations["evict.ok"] for daemon in daemons) > 50
    assert asking(daemons[0].cache, hot).lookup().hit.header == digest
    assert asking(daemons[0].cache, made.record("b62")).lookup().WhichOneof("answer") == "hit"


def test_a_reader_sees_a_whole_artifact_or_none(tmp_path, start_daemon, asking, made) -> None:
    """T22: 50 MB come slowly, in fifty pieces; somebody asks all the time."""
    daemon = start_daemon()
    record = made.record("slow")
    content = os.urandom(1 << 20) * 50
    one = asking(daemon.cache, record)
    big = made.artifact(record, raw=content, codec="raw")
    states: list[int] = []

    def look() -> int:
        batch = daemon.cache.Batch(pb.BatchRequest(keys=[one.key]), timeout=20)
        state = batch.answers[0].state
        if state == pb.KEY_STATE_PRESENT:
            whole = asking(daemon.cache, record).fetch(batch.answers[0].digest)
            found, offset = artifact.read_header(whole)
            assert whole[offset:] == content and found == big.header
        states.append(state)
        return 0

    start = pb.PublishStart(
        lookup_id=one.id, header=big.header.encode(), record=wire.record_to_pb(record)
    )
    with Watching(look):
        request = pb.UploadRequest(upload_id="slow", start=start)
        for data in big.payload.chunks():
            request.data = data
            daemon.cache.Upload(request, timeout=20)
            request = pb.UploadRequest(upload_id="slow")
            time.sleep(0.01)
        request.last = True
        daemon.cache.Upload(request, timeout=60)
        seen = len(states)
        while len(states) < seen + 2:
            time.sleep(0.01)
    absent = states.count(pb.KEY_STATE_ABSENT)
    assert absent > 5 and states == sorted(states, key=lambda s: s == pb.KEY_STATE_PRESENT)
    assert states[-1] == pb.KEY_STATE_PRESENT


def test_orphans_harm_nobody_and_the_janitor_takes_them(
    tmp_path, asking, made, monkeypatch
) -> None:
    """T28: only the index entry of one artifact is gone, only the bytes of another."""
    root = tmp_path / "store"
    monkeypatch.setattr(app, "FIRST_JANITOR_SECONDS", 0.0)
    monkeypatch.setattr(app, "JANITOR_SECONDS", 0.05)
    with (
        daemon_in_process([f"disk://{root}"]) as address,
        grpc.insecure_channel(address) as channel,
    ):
        cache = cache_pb2_grpc.CacheStub(channel)
        records = {word: made.record(word) for word in ("kept", "no index", "no object")}
        for word, record in records.items():
            asking(cache, record).publish(made.artifact(record, raw=word.encode(), codec="raw"))
        (lonely,) = [p for p in files(root, "objects") if p.read_bytes().endswith(b"no index")]
        (lost,) = [p for p in files(root, "objects") if p.read_bytes().endswith(b"no object")]
        key = artifact.open_file(lonely).header.key
        (entry,) = [p for p in files(root, "keys") if p.parent.name == key]
        entry.unlink()
        lost.unlink()
        assert asking(cache, records["kept"]).lookup().WhichOneof("answer") == "hit"
        other = made.record("other")
        asking(cache, other).publish(made.artifact(other))
        deadline = time.monotonic() + 30
        while lonely.exists() or len(files(root, "keys", "records")) != 4:
            assert time.monotonic() < deadline, files(root, "keys", "records", "objects")
            time.sleep(0.02)
        for word in ("no index", "no object"):
            one = asking(cache, records[word])
            lease = one.lookup().lease.lease_id
            assert lease and not one.publish(made.artifact(one.record), lease).adopted
            assert asking(cache, records[word]).lookup().WhichOneof("answer") == "hit"


def test_a_remote_that_is_only_read(tmp_path, asking, made) -> None:
    """T31: it stays as it is, what is new goes to the local tier, and that is no error."""
    remote = tmp_path / "remote"
    with daemon_in_process([f"disk://{remote}"]) as address, grpc.insecure_channel(address) as c:
        shared = asking(cache_pb2_grpc.CacheStub(c), made.record("shared"))
        shared.publish(made.artifact(shared.record))
    before = {path: path.stat().st_mtime_ns for path in files(remote, "objects", "keys", "records")}
    stores = ["memory://", f"disk://{remote}?cs.write=false"]
    with daemon_in_process(stores) as address, grpc.insecure_channel(address) as channel:
        cache = cache_pb2_grpc.CacheStub(channel)
        first = asking(cache, shared.record).lookup().hit
        assert first.tier == "disk"
        deadline = time.monotonic() + 20
        while asking(cache, shared.record).lookup().hit.tier != "memory":  # copied by now
            assert time.monotonic() < deadline
            time.sleep(0.02)
        new = asking(cache, made.record("new"))
        reply = new.publish(made.artifact(new.record), new.lookup().lease.lease_id)
        assert not reply.kept_local and not reply.adopted
        assert asking(cache, new.record).lookup().hit.tier == "memory"
        client = CacheClient(address, holder="test")
        stats = client.stats()
        client.close()
    operations = {tier.name: dict(tier.operations) for tier in stats.tiers}
    assert operations["memory"]["put.ok"] == 2 and operations["memory"]["backfill.ok"] == 1
    assert not {name for name in operations["disk"] if name.startswith("put")}
    assert not stats.events
    after = {path: path.stat().st_mtime_ns for path in files(remote, "objects", "keys", "records")}
    assert before.keys() == after.keys()
    objects = {path for path in before if path.suffix == ".csa"}  # a use moves an object's time
    assert {path: before[path] for path in before.keys() - objects} == {
        path: after[path] for path in after.keys() - objects
    }


# --- a disk that is really full


@contextmanager
def _daemon_on(size: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A daemon whose store lies on a file system of that size; the mount goes with its process."""
    mount = folder / "mount"
    mount.mkdir()
    daemon = [sys.executable, "-m", "coldstart.cli.main", "daemon", f"--listen=unix://{folder}/s"]
    daemon += [f"--store=disk://{mount}/store", f"--ready-file={folder}/ready"]
    command = f"mount -t tmpfs -o size={size} tmpfs {mount} && exec " + " ".join(daemon)
    process = subprocess.Popen(["unshare", "-rm", "sh", "-c", command], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "ready").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        yield process, Path(f"/proc/{process.pid}/root{mount}/store")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a tmpfs of its own")
def test_a_full_disk_refuses_reads_on_and_recovers(tmp_path, asking, made) -> None:
    """The kernel itself says ENOSPC, at whatever step the room ends; the limit is far away."""
    with (
        _daemon_on("1m", tmp_path) as (_, root),
        grpc.insecure_channel(f"unix://{tmp_path}/s") as c,
    ):
        cache = cache_pb2_grpc.CacheStub(c)
        kept = asking(cache, made.record("kept"))
        digest = kept.publish(made.artifact(kept.record, raw=bytes(5000), codec="raw")).digest
        assert digest
        filler = root / "filler"
        ends = []
        for free_kib in range(0, 120, 4):
            filler.unlink(missing_ok=True)
            space = os.statvfs(root)
            filler.write_bytes(bytes(max(0, space.f_bavail * space.f_bsize - free_kib * 1024)))
            one = asking(cache, made.record(f"full{free_kib}"))
            lease = one.lookup().lease.lease_id
            reply = one.publish(
                made.artifact(one.record, raw=os.urandom(20_000), codec="raw"), lease
            )
            stored = reply.kept_local == pb.REASON_UNSPECIFIED
            assert stored or reply.kept_local == pb.REASON_QUOTA, reply
            ends.append(stored)
            again = asking(cache, one.record).lookup()
            assert again.WhichOneof("answer") == ("hit" if stored else "refused")
            assert asking(cache, kept.record).fetch(digest)
            assert [p for p in files(root, "tmp") if p.suffix != ".owner"] == []
        assert True in ends and ends[:3] == [False] * 3 and len(set(ends)) == 2
        stats = admin_pb2_grpc.AdminStub(c).Stats(admin_pb2.StatsRequest(), timeout=10)
        assert any(e.kind == "quota" and "no space left" in e.message for e in stats.events)
        filler.unlink()
        late = asking(cache, made.record("late"))
        assert not late.publish(made.artifact(late.record, raw=bytes(20_000))).kept_local
        assert asking(cache, late.record).lookup().WhichOneof("answer") == "hit"


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a tmpfs of its own")
def test_a_disk_that_is_full_for_a_while_is_a_disk_all_the_same(tmp_path, asking, made) -> None:
    """Who has a proof of an earlier daemon's is answered, and paths are handed over again once there is room."""
    with (
        _daemon_on("4m", tmp_path) as (_, root),
        grpc.insecure_channel(f"unix://{tmp_path}/s") as c,
    ):
        cache = cache_pb2_grpc.CacheStub(c)
        kept = asking(cache, made.record("kept"), volume_proof=bytes(32))
        assert kept.publish(made.artifact(kept.record)).digest
        filler = root / "filler"
        filler.write_bytes(bytes(os.statvfs(root).f_bavail * os.statvfs(root).f_bsize))
        hit = kept.lookup().hit
        assert hit.header and not hit.path
        for _ in range(2):
            assert not cache.Hello(pb.HelloRequest(), timeout=10).volume.nonce_path
        assert files(root, "nonces") == []
        filler.unlink()
        told = cache.Hello(pb.HelloRequest(), timeout=10).volume
        proof = (root / told.nonce_path).read_bytes()
        again = asking(cache, kept.record, volume_proof=proof).lookup()
        assert (root / again.hit.path).is_file()
        # And a publish is spooled there, not in memory.
        late = asking(cache, made.record("late"))
        start = pb.PublishStart(
            lookup_id=late.id,
            header=made.artifact(late.record).header.encode(),
            record=wire.record_to_pb(late.record),
        )
        assert not cache.Upload(pb.UploadRequest(upload_id="u", start=start)).HasField("published")
        deadline = time.monotonic() + 30
        while not any(path.suffix == ".spool" for path in files(root, "tmp")):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_frozen_process_with_the_limits_lock_makes_nobody_unready(
    tmp_path, start_daemon, asking, made
) -> None:
    """As a paused container does that shares the store: publishes say so in turn, and nothing else waits."""
    daemon = start_daemon("--health=127.0.0.1:0")
    kept = asking(daemon.cache, made.record("kept"))
    assert kept.publish(made.artifact(kept.record)).digest
    ends: list[int] = []

    def publish(n: int) -> None:
        one = asking(daemon.cache, made.record(f"late{n}"))
        ends.append(one.publish(made.artifact(one.record)).kept_local)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
    with (daemon.store / "v1" / "locks" / "limit").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for thread in threads:
            thread.start()
        assert daemon.stats().tiers[0].limit_bytes
        for path, word in (("readyz", b"ok"), ("metrics", b"coldstart_tier_limit_bytes")):
            url = f"http://{daemon.ready['health']}/{path}"
            with urllib.request.urlopen(url, timeout=5) as reply:
                assert word in reply.read()
        assert asking(daemon.cache, kept.record).lookup().WhichOneof("answer") == "hit"
        for thread in threads:
            thread.join(30)  # eight times ten seconds would be too late
    assert ends == [pb.REASON_DEADLINE] * 8
    late = asking(daemon.cache, made.record("free again"))
    assert not late.publish(made.artifact(late.record)).kept_local


@pytest.mark.long  # a real deadline, of 5 s
def test_a_daemon_whose_disk_is_silent_says_so_and_stops(start_daemon, asking, made) -> None:
    """A file server that is gone: lookups end, the page and its numbers go on, and so does the end of the daemon."""
    daemon = start_daemon("--health=127.0.0.1:0", "--drain-seconds=1")
    kept, silent = (asking(daemon.cache, made.record(word)) for word in ("kept", "silent"))
    for one in (kept, silent):
        assert one.publish(made.artifact(one.record)).digest
    (entry,) = [path for path in files(daemon.store, "keys") if path.parent.name == silent.key]
    with HeldFile(entry):
        began = time.monotonic()
        for _ in range(10):
            one = asking(daemon.cache, silent.record)
            assert one.lookup().refused.reason == pb.REASON_DEADLINE
        assert time.monotonic() - began < 25  # not ten times five seconds
        assert daemon.stats().tiers[0].operations["find.timeout"] == 10
        began = time.monotonic()
        assert daemon.stop() == 0
        assert time.monotonic() - began < 20  # the kernel would hold on for 45 s
