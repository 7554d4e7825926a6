"""Daemons that share a bucket and nothing else: one compile for all, one digest everywhere, and what outages cost."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections import Counter

import pytest
from fleet_cases import FleetCases, compiled, served, until
from fleet_cases import operations as operations_of
from gcs_proxy import WRITES
from gcs_server import Cloud

from coldstart import artifact
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

LEASE_SECONDS = 2.0
DEADLINE_SECONDS = 2.0


@pytest.fixture
def fleet(start_daemon, tmp_path, cloud: Cloud):
    """Start daemons with a disk of their own and the one bucket."""

    def start(name: str, *options: str, more: str = ""):
        url = f"gs://{cloud.bucket}/team?cs.timeout={DEADLINE_SECONDS:g}s{more}"
        return start_daemon(
            f"--lease-seconds={LEASE_SECONDS}",
            "--heartbeat-seconds=0.5",
            *options,
            folder=name,
            stores=(f"disk://{tmp_path}/{name}/store", url),
            environ={"STORAGE_EMULATOR_HOST": cloud.proxy.url},
        )

    yield start
    cloud.proxy.heal()  # before the daemons are stopped, which finish what they do


class TestOverABucket(FleetCases):
    tier, lease_seconds = "gcs", LEASE_SECONDS


def operations(daemon, name: str = "gcs") -> dict[str, int]:
    return operations_of(daemon, name)


# --- good copies and bad ones --------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_a_bad_copy_on_the_disk_is_served_from_the_bucket_and_repaired(
    fleet, asking, new_record, made, damage
):
    """T15: 0 compiles, one bad copy counted."""
    daemon = fleet("one")
    raw = os.urandom(50_000)
    good = compiled(asking, daemon, made, new_record, raw)
    (path,) = (daemon.store / "v1" / "objects").rglob(f"{good.header.digest}-*")
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[:-9] + b"?" + data[-8:] if damage == "flip" else data[:-9])
    one = asking(daemon.cache, new_record)
    reply = one.lookup()
    if reply.hit.tier == "disk":  # which doesn't read what it hands out: the client finds it
        reject = pb.RejectRequest(
            lookup_id=one.id, key=one.key, digest=served(reply), reason=pb.REASON_CORRUPT
        )
        reply = daemon.cache.Reject(reject, timeout=30)
    assert (reply.hit.tier, served(reply)) == ("gcs", good.header.digest)
    assert artifact.read_header(one.fetch(served(reply)))[0] == good.header
    one.finish(Outcome.HIT, Reason.OK, tier="gcs")
    until(
        lambda: asking(daemon.cache, new_record).lookup().hit.tier == "disk",
        "the disk was not repaired",
    )
    (path,) = (daemon.store / "v1" / "objects").rglob(f"{good.header.digest}-*")
    assert path.read_bytes() == data
    stats = daemon.stats()
    assert stats.compiles == 1  # the one that made it
    counted = operations(daemon, "disk")
    words = ("quarantine.ok", "get.corrupt", "heal.corrupt")  # by whom and how early it was found
    assert sum(counted.get(word, 0) for word in words) == 1, counted
    assert operations(daemon).get("heal.corrupt", 0) == 0


def test_a_bad_copy_in_the_bucket_is_never_served_and_repaired_by_a_publish(
    fleet, asking, new_record, made, cloud
):
    one, two = fleet("one"), fleet("two")
    good = compiled(asking, one, made, new_record, os.urandom(50_000))
    name = cloud.only()
    cloud.server.damage(cloud.bucket, name, lambda data: data[:-900] + b"?" + data[-899:])
    reader = asking(two.cache, new_record)
    reply = reader.lookup()
    assert reply.lease.reason == pb.REASON_CORRUPT
    assert reader.publish(good, reply.lease.lease_id).digest == good.header.digest
    assert operations(two)["heal.corrupt"] == 1 and cloud.only("/quarantine/")
    three = fleet("three")
    assert served(asking(three.cache, new_record).lookup()) == good.header.digest


def test_a_bucket_that_is_only_read_stays_as_it_is(fleet, asking, made, cloud):
    """T31: remote unchanged, the second run hits here, and a put that isn't made is no error."""
    writer = fleet("writer")
    known, new = made.record("known"), made.record("new")
    compiled(asking, writer, made, known)
    before = {name: cloud.server.about(cloud.bucket, name)["generation"] for name in cloud.names()}
    cloud.proxy.requests.clear()
    reader = fleet("reader", more="&cs.write=false")
    assert reader.stats().leases_kept == "local"
    assert asking(reader.cache, known).lookup().hit.tier == "gcs"
    compiled(asking, reader, made, new)
    for record in (known, new):
        until(
            lambda r=record: asking(reader.cache, r).lookup().hit.tier == "disk",
            "the second run did not hit here",
        )
    now = {name: cloud.server.about(cloud.bucket, name)["generation"] for name in cloud.names()}
    assert now == before and not cloud.proxy.asked(*WRITES)
    counted = operations(reader)
    assert not any(name.startswith("put.") for name in counted), counted
    assert not any(name.endswith((".error", ".timeout")) for name in counted), counted


# --- outages -------------------------------------------------------------------------------------------------


def test_a_black_hole_costs_its_deadline_then_next_to_nothing(fleet, asking, made, cloud):
    """T18: each lookup ends within its deadline and a fifth; with the breaker open they cost < 5 ordinary misses."""
    daemon = fleet("one", more="")

    def timed(word: str) -> tuple[float, int]:
        one = asking(daemon.cache, made.record(word))
        began = time.monotonic()
        reply = one.lookup()
        seconds = time.monotonic() - began
        assert reply.WhichOneof("answer") == "lease", (
            reply
        )  # it compiles, and others here wait for it
        return seconds, reply.lease.reason

    ordinary = statistics.median(timed(f"ordinary {n}")[0] for n in range(15))
    cloud.proxy.fail(silent=True)
    slow = [timed(f"silent {n}") for n in range(3)]
    assert [reason for _, reason in slow] == [pb.REASON_DEADLINE] * 3
    assert all(seconds <= DEADLINE_SECONDS * 1.2 for seconds, _ in slow), slow
    fast = [timed(f"open {n}") for n in range(15)]
    assert {reason for _, reason in fast} == {pb.REASON_BREAKER_OPEN}
    assert statistics.median(seconds for seconds, _ in fast) < 5 * ordinary, (ordinary, fast)
    print(f"ordinary {ordinary:.4f} s, silent {slow}, open {sorted(fast)}")
    stats = daemon.stats()
    assert operations(daemon)["find.timeout"] == 3 and operations(daemon)["breaker.open"] == 1
    assert "not asked" in next(tier for tier in stats.tiers if tier.name == "gcs").trouble
    assert stats.leases_trouble
    cloud.proxy.heal()
    until(lambda: operations(daemon).get("breaker.closed"), "it was not seen to be back")
    assert timed("after")[1] == pb.REASON_COLD


@pytest.mark.parametrize("seconds", [4, pytest.param(30, marks=pytest.mark.long)])
def test_a_storm_of_429_is_ridden_out(fleet, asking, made, cloud, seconds):
    """T19: bounded tries with pauses, no error at a client, uploads that happen later, and the tries are counted."""
    one = fleet("one")
    storm = cloud.proxy.fail(status=429, reason="rateLimitExceeded")
    records = [made.record(f"storm {n}") for n in range(6)]
    began = time.monotonic()
    published = []
    for record in records:
        lookup = asking(one.cache, record)
        reply = lookup.lookup()
        assert reply.WhichOneof("answer") == "lease", reply
        done = lookup.publish(made.artifact(record), reply.lease.lease_id)
        assert not done.kept_local
        published.append(done.digest)
        assert served(asking(one.cache, record).lookup()) == done.digest
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    asked = len(cloud.proxy.asked())
    assert not cloud.names() and asked < 60 + 5 * seconds, asked
    assert operations(one)["retry.full"] >= 3
    with cloud.proxy.lock:
        cloud.proxy.faults.remove(storm)
    until(lambda: len([n for n in cloud.names() if "/artifacts/" in n]) == 6, "uploads never came")
    until(lambda: operations(one).get("write-back.ok") == 6, "they were not counted")
    two = fleet("two")
    assert [served(asking(two.cache, record).lookup()) for record in records] == published


def test_a_bucket_that_comes_later_is_used_without_a_restart(fleet, asking, made, cloud):
    """As T17, and what two daemons published during the outage comes to one digest (I2)."""
    cloud.proxy.refuse()
    daemons = [fleet("one"), fleet("two")]
    record = made.record("provisional")
    for n, daemon in enumerate(daemons):
        one = asking(daemon.cache, record)
        reply = one.lookup()
        assert reply.lease.reason in (pb.REASON_TIER_DOWN, pb.REASON_BREAKER_OPEN)
        assert asking(daemon.cache, record).lookup().WhichOneof("answer") == "wait"
        one.publish(made.artifact(record, raw=b"by %d" % n), reply.lease.lease_id)
        assert daemon.stats().leases_trouble
    both = [served(asking(daemon.cache, record).lookup()) for daemon in daemons]
    assert len(set(both)) == 2  # provisional
    cloud.proxy.accept()

    def digests() -> set[str]:
        replies = [asking(daemon.cache, record).lookup() for daemon in daemons]
        return {served(r) if r.WhichOneof("answer") == "hit" else "?" for r in replies}

    until(lambda: len(digests()) == 1 and "?" not in digests(), "two digests stayed")
    assert digests() <= set(both)
    counts = Counter[str]()
    for daemon in daemons:
        until(
            lambda d=daemon: (
                operations(d).get("write-back.ok", 0) + operations(d).get("write-back.adopted", 0)
            ),
            "",
        )
        counts.update(operations(daemon))
    assert counts["write-back.ok"] == counts["write-back.adopted"] == 1
    for daemon in daemons:
        new = itertools.count()

        def shared(daemon=daemon, new=new) -> bool:  # seen when somebody asks for a lease
            compiled(asking, daemon, made, made.record(f"{daemon.folder.name} {next(new)}"))
            return not daemon.stats().leases_trouble

        until(shared, "leases stayed this daemon's own")


def test_a_store_process_that_is_killed_and_started_again(
    start_daemon, tmp_path, own_cloud, asking, made
):
    """The server itself: frozen, killed, back with what it had."""
    cloud = own_cloud
    daemon = start_daemon(
        folder="d",
        stores=(f"disk://{tmp_path}/d/store", f"gs://{cloud.bucket}?cs.timeout=1s"),
        environ={"STORAGE_EMULATOR_HOST": cloud.proxy.url},
    )
    compiled(asking, daemon, made, made.record("before"))
    cloud.server.freeze()
    reply = asking(daemon.cache, made.record("frozen")).lookup()
    assert reply.lease.reason == pb.REASON_DEADLINE
    cloud.server.stop()
    compiled(asking, daemon, made, made.record("dead"))
    cloud.server.start(cloud.proxy.url)
    until(lambda: len([n for n in cloud.names() if "/artifacts/" in n]) == 2, "never written back")
    other = start_daemon(
        folder="e",
        stores=(f"disk://{tmp_path}/e/store", f"gs://{cloud.bucket}"),
        environ={"STORAGE_EMULATOR_HOST": cloud.proxy.url},
    )
    for word in ("before", "dead"):
        assert asking(other.cache, made.record(word)).lookup().hit.tier == "gcs"
