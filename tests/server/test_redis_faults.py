"""A daemon whose Redis is frozen, empties, lies or is full of damage; and two that publish at the same moment."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import fleet_cases
import grpc
import pytest
from fleet_cases import compiled, served, until
from redis_server import RedisServer

from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

REPLY_SECONDS = 1.0  # cs.timeout here


@pytest.fixture
def fleet(start_daemon, tmp_path, redis_server):
    """Start daemons with a disk of their own and the one Redis."""

    def start(name: str, *options: str, below: tuple[str, ...] = ()):
        url = f"{redis_server.url}?cs.timeout={REPLY_SECONDS:g}s"
        stores = (f"disk://{tmp_path}/{name}/store", url, *below)
        return start_daemon(*options, folder=name, stores=stores)

    yield start
    if redis_server.running:
        redis_server.thaw()


def tier_of(daemon):
    return fleet_cases.tier_of(daemon, "redis")


def published(asking, made, daemon, name: str, raw: bytes = b"executable"):
    """The artifact of a program that a client of that daemon compiled."""
    return compiled(asking, daemon, made, made.record(name), raw)


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_two_daemons_that_publish_at_once_end_with_one_digest(fleet, asking, made):
    """T26: no lease between them, other bytes each; whoever is first in Redis decides, everywhere."""
    daemons = [fleet("one"), fleet("two")]
    records = [made.record(f"race-{n}") for n in range(12)]
    gate = threading.Barrier(2)

    def publish(side: int) -> list[str]:
        with grpc.insecure_channel(daemons[side].address) as channel:
            cache = cache_pb2_grpc.CacheStub(channel)
            digests = []
            for record in records:
                mine = made.artifact(record, raw=os.urandom(200_000), codec="raw")
                gate.wait()
                digests.append(asking(cache, record).publish(mine).digest)
            return digests

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(publish, range(2)))
    assert said[0] == said[1]  # what the publishers were told is what stands
    for daemon in daemons:
        until(
            lambda d=daemon: (
                [served(asking(d.cache, record).lookup()) for record in records] == said[0]
            ),
            "two digests stayed",
        )
    assert sum(daemon.stats().compiles for daemon in daemons) == 24


def test_a_frozen_redis_costs_one_deadline_then_nothing(fleet, asking, made, redis_server):
    """SIGSTOP: it accepts and never answers."""
    one = fleet("one")
    mine = published(asking, made, one, "there")
    ordinary = [
        timed(lambda n=n: asking(one.cache, made.record(f"miss-{n}")).lookup()) for n in range(20)
    ]
    redis_server.freeze()
    first = timed(lambda: asking(one.cache, made.record("frozen-first")).lookup())
    assert first < 1.2 * REPLY_SECONDS + 2  # the deadline, and room for a busy machine
    lookups = [asking(one.cache, made.record(f"frozen-{n}")) for n in range(20)]
    replies: list[pb.LookupReply] = []
    then = [timed(lambda one=each: replies.append(one.lookup())) for each in lookups]
    assert statistics.median(then) < 5 * statistics.median(ordinary) + 0.05
    assert {reply.lease.reason for reply in replies} == {pb.REASON_BREAKER_OPEN}
    assert served(asking(one.cache, made.record("there")).lookup()) == mine.header.digest
    assert "no answer" in tier_of(one).trouble and one.stats().leases_trouble
    redis_server.thaw()
    until(lambda: not tier_of(one).trouble, "it was not seen that Redis lives")
    reply = asking(one.cache, made.record("thawed")).lookup()
    assert reply.lease.reason == pb.REASON_COLD and not one.stats().leases_trouble


def test_a_daemon_stops_although_its_redis_is_frozen(fleet, asking, made, redis_server):
    one = fleet("one", "--drain-seconds=1")
    for n in range(5):
        assert asking(one.cache, made.record(f"held-{n}")).lookup().HasField("lease")
    redis_server.freeze()
    assert timed(lambda: one.stop(signal.SIGTERM)) < 10
    assert one.process.returncode == 0


def test_damage_in_redis_is_repaired_from_below_and_nobody_compiles(
    fleet, asking, made, redis_server, tmp_path
):
    """T15: Redis cut to 500 bytes, a good copy below."""
    below = (f"disk://{tmp_path}/below",)
    one = fleet("one", below=below)
    mine = published(asking, made, one, "t15", raw=os.urandom(300_000))
    one.stop()
    with redis_server.client() as admin:
        (chunk,) = admin.keys("*:bytes:*")
        admin.set(chunk, admin.get(chunk)[:500])
    two = fleet("two", below=below)
    lookup = asking(two.cache, made.record("t15"))
    reply = lookup.lookup()
    assert served(reply) == mine.header.digest and reply.hit.tier == "disk"
    lookup.finish(Outcome.HIT, Reason.OK, tier=reply.hit.tier)
    until(lambda: tier_of(two).operations.get("backfill.ok"), "Redis was not repaired")
    assert tier_of(two).operations["get.corrupt"] == 1 and two.stats().compiles == 0
    three = fleet("three")
    assert asking(three.cache, made.record("t15")).lookup().hit.tier == "redis"


def test_damage_in_redis_alone_costs_one_compile(fleet, asking, made, redis_server):
    """T14: found by digest; the first reader compiles, the second hits."""
    one, two = fleet("one"), fleet("two")
    published(asking, made, one, "t14", raw=os.urandom(300_000))
    with redis_server.client() as admin:
        (chunk,) = admin.keys("*:bytes:*")
        admin.set(chunk, admin.get(chunk)[:500])
    first = asking(two.cache, made.record("t14"))
    reply = first.lookup()
    assert reply.lease.reason == pb.REASON_CORRUPT
    again = made.artifact(made.record("t14"), raw=os.urandom(300_000), codec="raw")
    assert first.publish(again, reply.lease.lease_id).digest == again.header.digest
    first.finish(Outcome.ERROR, Reason.CORRUPT, compile_seconds=2.0)
    three = fleet("three")
    second = asking(three.cache, made.record("t14")).lookup()
    assert second.hit.tier == "redis" and served(second) == again.header.digest
    assert tier_of(two).operations["get.corrupt"] == 1


def test_evicted_bytes_are_a_miss_in_redis_and_served_from_below(
    fleet, asking, made, redis_server, tmp_path
):
    """T21."""
    below = (f"disk://{tmp_path}/below",)
    one = fleet("one", below=below)
    mine = published(asking, made, one, "t21")
    one.stop()
    with redis_server.client() as admin:
        admin.delete(*admin.keys("*:bytes:*"))
        assert admin.keys("*:index")
    two = fleet("two", below=below)
    reply = asking(two.cache, made.record("t21")).lookup()
    assert served(reply) == mine.header.digest and reply.hit.tier == "disk"
    until(lambda: tier_of(two).operations.get("backfill.ok"), "Redis was not filled again")
    assert tier_of(two).operations["heal.ok"] == 1
    with redis_server.client() as admin:
        assert admin.keys("*:bytes:*")


def test_a_redis_that_forgets_everything_loses_nothing_that_a_disk_has(
    fleet, asking, made, redis_server
):
    """Restarted empty under load: leases are taken anew at the next heartbeat, hits go on."""
    one, two = fleet("one", "--lease-seconds=3", "--heartbeat-seconds=0.3"), fleet("two")
    mine = published(asking, made, one, "kept")
    holder = asking(one.cache, made.record("compiling"))
    lease = holder.lookup().lease.lease_id
    redis_server.stop()
    redis_server.start()
    assert served(asking(one.cache, made.record("kept")).lookup()) == mine.header.digest
    until(lambda: not tier_of(one).trouble, "Redis was not seen")
    one.cache.Renew(pb.RenewRequest(lease_id=lease), timeout=10)
    until(lambda: not tier_of(two).trouble, "Redis was not seen by the other")
    assert asking(two.cache, made.record("compiling")).lookup().WhichOneof("answer") == "wait"
    ours = made.artifact(made.record("compiling"))
    assert not holder.publish(ours, lease).adopted
    assert served(asking(two.cache, made.record("compiling")).lookup()) == ours.header.digest


def test_a_store_url_without_its_package_or_right_says_so(start_daemon, redis_server: RedisServer):
    with pytest.raises(AssertionError, match="leases=redis needs a redis:// store"):
        start_daemon("--leases=redis", folder="a")
    url = f"{redis_server.url}?cs.write=false"
    reader = start_daemon(folder="b", stores=(url,))
    assert reader.stats().leases_kept == "local"  # what may not be written keeps no leases
    local = start_daemon("--leases=local", folder="c", stores=(redis_server.url,))
    assert local.stats().leases_kept == "local"
