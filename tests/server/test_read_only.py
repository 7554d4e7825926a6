"""Daemons on stores that can't be written: one line at the start, or readers because they were asked to be."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc, cache_pb2_grpc
from coldstart.rpc.v1 import cache_pb2 as pb

# Root without the right to write anywhere obeys modes as others do. Dropped in the process that becomes the daemon:
# a function between fork and exec is no option in a test process with threads.
OBEY_MODES = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
if os.geteuid() == 0:
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def locked_store(start_daemon, asking, made) -> Iterator[tuple[Path, str]]:
    """A store with one artifact in it whose folders may not be written, and that artifact's digest."""
    daemon = start_daemon()
    one = asking(daemon.cache, made.record("stored"))
    digest = one.publish(made.artifact(one.record)).digest
    daemon.stop()
    for path in (daemon.store, *daemon.store.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield daemon.store, digest
    for path in (daemon.store, *daemon.store.rglob("*")):
        path.chmod(0o755)


def _start(store: Path, folder: Path, options: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OBEY_MODES]
    command += [sys.executable, "-m", "coldstart.cli.main", "daemon", f"--listen=unix://{folder}/s"]
    command += [f"--store=disk://{store}{options}", f"--ready-file={folder}/ready"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cs-") as folder:  # a socket's path is short
        yield Path(folder)


def test_a_store_that_cannot_be_written_is_one_line_at_the_start(locked_store, place) -> None:
    store, _ = locked_store
    daemon = _start(store, place)
    _, words = daemon.communicate(timeout=60)
    assert daemon.returncode == 2, words
    (line,) = [line for line in words.splitlines() if "coldstart" in line]
    assert str(store) in line and "cs.write=false" in line
    assert not (place / "ready").exists()


def _ready(daemon: subprocess.Popen[str], place: Path) -> grpc.Channel:
    deadline = time.monotonic() + 60
    while not (place / "ready").exists():
        assert daemon.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return grpc.insecure_channel(f"unix://{place}/s")


def _stop(daemon: subprocess.Popen[str]) -> str:
    daemon.send_signal(signal.SIGTERM)
    _, words = daemon.communicate(timeout=30)
    assert daemon.returncode == 0
    return words


def test_a_reader_by_choice_serves_and_says_why_it_stores_nothing(
    locked_store, place, asking, made
) -> None:
    store, digest = locked_store
    daemon = _start(store, place, "?cs.write=false")
    try:
        with _ready(daemon, place) as channel:
            cache = cache_pb2_grpc.CacheStub(channel)
            one = asking(cache, made.record("stored"))
            assert one.lookup().WhichOneof("answer") == "hit"
            assert one.fetch(digest)
            other = asking(cache, made.record("new"))
            lease = other.lookup().lease.lease_id
            reply = other.publish(made.artifact(other.record), lease)
            assert reply.kept_local == pb.REASON_TIER_DOWN
    finally:
        words = _stop(daemon)
    assert "cs.write=false" in words


def test_rights_that_are_lost_while_it_runs_cost_the_publishes_only(
    tmp_path, place, asking, made
) -> None:
    store = tmp_path / "store"
    daemon = _start(store, place)
    try:
        with _ready(daemon, place) as channel:
            cache = cache_pb2_grpc.CacheStub(channel)
            one = asking(cache, made.record("before"))
            digest = one.publish(made.artifact(one.record)).digest
            folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
            for path in folders:
                path.chmod(0o555)
            again = asking(cache, made.record("before"))
            assert again.lookup().WhichOneof("answer") == "hit" and again.fetch(digest)
            late = asking(cache, made.record("after"))
            lease = late.lookup().lease.lease_id
            assert late.publish(made.artifact(late.record), lease).kept_local == pb.REASON_TIER_DOWN
            stats = admin_pb2_grpc.AdminStub(channel).Stats(admin_pb2.StatsRequest(), timeout=10)
            (event,) = stats.events
            assert event.kind == "tier-down" and "give user id" in event.message
            for path in folders:
                path.chmod(0o755)
            assert not late.publish(made.artifact(late.record)).kept_local
            assert asking(cache, late.record).lookup().WhichOneof("answer") == "hit"
    finally:
        for path in [store, *(path for path in store.rglob("*") if path.is_dir())]:
            path.chmod(0o755)
        _stop(daemon)
