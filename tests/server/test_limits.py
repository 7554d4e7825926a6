"""Everything that a daemon remembers is bounded. What has a file of its own: aliases, descriptors and key records
(test_program_memory, test_canonicalizer), negative entries and open lookups (test_lookups), uploads (test_uploads),
quarantine (tests/store/test_disk), back-fills (tests/store/test_chain).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from coldstart.errors import InvalidRequest
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc
from coldstart.server import key_memory, open_lookups, tally
from coldstart.server.answers import Asker
from coldstart.server.key_memory import KeyMemory
from coldstart.server.open_lookups import OpenLookups
from coldstart.server.tally import Tally
from coldstart.store import disk, disk_room
from coldstart.store.disk import DiskTier


def test_what_was_seen_of_keys(made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_memory, "MAX_KEYS", 10)
    memory = KeyMemory(Tally())
    header = made.artifact(made.record("x")).header
    for n in range(25):
        memory.see(replace(header, key=f"cs1-{n:064x}"))
    assert [memory.get(f"cs1-{n:064x}") is not None for n in (0, 14, 15, 24)] == [
        False,
        False,
        True,
        True,
    ]


def test_ids_of_ended_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_lookups, "MAX_FINISHED", 10)
    lookups = OpenLookups(lambda: 0.0)
    for n in range(25):
        lookups.enter(Asker(lookup_id=f"l{n}", holder="me"))
        assert lookups.end(f"l{n}")[0]
    assert len(lookups._finished) == 10
    with pytest.raises(InvalidRequest):
        lookups.enter(Asker(lookup_id="l24", holder="me"))


def test_events() -> None:
    counted = Tally()
    for n in range(tally.MAX_EVENTS + 50):
        counted.event("replaced", str(n))
    assert len(counted.events) == tally.MAX_EVENTS
    assert counted.event_counts["replaced"] == tally.MAX_EVENTS + 50


async def test_evicted_and_damaged_keys(
    tmp_path: Path, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_room, "EVICTED_KEYS", 3)
    monkeypatch.setattr(disk, "DAMAGED_KEYS", 3)
    tier = DiskTier(tmp_path / "store", limit_bytes=60_000)
    keys = []
    for n in range(12):
        one = made.artifact(made.record(f"a{n}"), raw=bytes(10_000), codec="raw")
        keys.append(one.header.key)
        await tier.put(one, None)
    assert sum(tier.evicted_recently(key) for key in keys) == 3
    held = [key for key in keys if await tier.find(key)]
    assert len(held) >= 4
    for path in (tmp_path / "store").rglob("*.csa"):
        path.write_bytes(b"")
    for key in held:
        assert await tier.find(key) == ()
    assert sum(tier.damaged_recently(key) for key in keys) == 3
    await tier.close()


JUMPING = """
import sys, time
real, file = time.time, sys.argv.pop(1)
def jumped():
    with open(file) as opened: return real() + float(opened.read())
time.time = jumped
from coldstart.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("jump_seconds", [-864_000, 864_000])
def test_leases_and_pins_follow_no_wall_clock(
    tmp_path: Path, asking: Callable, made, jump_seconds: int
) -> None:
    """Ten days forth or back: a lease that is renewed stays, one that is not runs out, a pin holds for its time."""
    offset = tmp_path / "offset"
    offset.write_text("0")
    options = [f"--listen=unix://{tmp_path}/s", f"--ready-file={tmp_path}/ready"]
    options += [f"--store=disk://{tmp_path}/store?cs.limit=100KiB"]
    options += ["--lease-seconds=3", "--heartbeat-seconds=0.5"]
    daemon = subprocess.Popen([sys.executable, "-c", JUMPING, str(offset), "daemon", *options])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert daemon.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        with grpc.insecure_channel(f"unix://{tmp_path}/s") as channel:
            cache = cache_pb2_grpc.CacheStub(channel)
            pinned = asking(cache, made.record("pinned"))
            pinned.publish(made.artifact(pinned.record, raw=bytes(50_000), codec="raw"))
            reader = asking(cache, pinned.record)
            assert reader.lookup().WhichOneof("answer") == "hit"  # pinned until it finishes
            holder, waiter = (asking(cache, made.record("leased")) for _ in range(2))
            lease = holder.lookup().lease.lease_id
            assert waiter.lookup().WhichOneof("answer") == "wait"
            offset.with_suffix(".new").write_text(str(jump_seconds))
            offset.with_suffix(".new").rename(offset)
            large = asking(cache, made.record("large"))
            reply = large.publish(made.artifact(large.record, raw=bytes(60_000), codec="raw"))
            assert reply.kept_local == pb.REASON_QUOTA  # what is pinned doesn't go
            for _ in range(8):
                time.sleep(0.5)
                assert cache.Renew(pb.RenewRequest(lease_id=lease), timeout=10).seconds > 0
                assert waiter.wait(0.01).WhichOneof("answer") == "wait"
            began = time.monotonic()
            assert waiter.wait(60).WhichOneof("answer") == "lease"
            assert 1.0 < time.monotonic() - began < 30
    finally:
        daemon.terminate()
        daemon.wait(30)
