"""Real daemons that share a Redis or a bucket: small programs stay on their hosts, those of a plan go to all."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from gcs_server import Cloud

pytest.importorskip("redis", reason="needs the extra redis")

from coldstart.rpc.v1 import cache_pb2 as pb

LEASE_SECONDS = 20.0  # longer than anything here is waited for
SOON = 30.0


@pytest.fixture(params=["redis", "gcs"])
def fleet(request, start_daemon, tmp_path):
    """The name of what they share, and start daemons with a disk of their own."""
    environ = {}
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
    else:
        cloud: Cloud = request.getfixturevalue("cloud")
        url, environ = f"gs://{cloud.bucket}/small", {"STORAGE_EMULATOR_HOST": cloud.proxy.url}

    def start(name: str):
        return start_daemon(
            f"--lease-seconds={LEASE_SECONDS}",
            folder=name,
            stores=(f"disk://{tmp_path}/{name}/store", url),
            environ=environ,
        )

    return request.param, start


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # another process changes it


def counted(daemon, tier: str, what: str) -> int:
    found = next(one for one in daemon.stats().tiers if one.name == tier)
    return dict(found.operations).get(what, 0)


def answer(reply) -> str:
    return reply.WhichOneof("answer")


def test_small_programs_stay_and_a_plans_go_to_all(fleet, asking, new_record, made):
    shared, start = fleet
    one, two = start("one"), start("two")
    small = made.artifact(new_record, compile_seconds=0.2)
    leader, waiter = asking(one.cache, new_record), asking(two.cache, new_record)
    beside = asking(two.cache, new_record)
    lease = leader.lookup().lease.lease_id
    assert answer(waiter.lookup()) == "wait" and answer(beside.lookup()) == "wait"
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(asked.wait, SOON) for asked in (waiter, beside)]
        began = time.monotonic()
        done = leader.publish(small, lease)
        assert done.digest == small.header.digest and not done.kept_local
        until(lambda: any(one.done() for one in waiting), "nobody was told")
        first = next(n for n in (0, 1) if waiting[n].done())
        taken = waiting[first].result()
        assert answer(taken) == "lease" and time.monotonic() - began < LEASE_SECONDS
        by_two = made.artifact(new_record, raw=b"by two", compile_seconds=0.2)
        mine = (waiter, beside)[first].publish(by_two, taken.lease.lease_id)
        assert mine.digest == by_two.header.digest and not mine.adopted
        assert waiting[1 - first].result().hit.tier == "disk"
    for daemon in (one, two):
        assert counted(daemon, shared, "put.too-small") == 1
        assert counted(daemon, shared, "put.ok") == 0

    named = asking(
        one.cache, new_record, planned=True
    )  # a plan names it: it is here, and is shared
    assert named.lookup().hit.tier == "disk"
    until(lambda: counted(one, shared, "write-back.ok") == 1, "it was not shared")
    three = start("three")
    asked = asking(three.cache, new_record).lookup()
    assert asked.hit.tier == shared
    assert asking(three.cache, new_record).fetch(small.header.digest)

    other = made.record(f"{new_record.program_name}-planned")
    planned = made.artifact(other, compile_seconds=0.2)
    leader, waiter = (asking(d.cache, other, planned=True) for d in (one, two))
    lease = leader.lookup().lease.lease_id
    assert answer(waiter.lookup()) == "wait"
    assert not leader.publish(planned, lease, planned=True).kept_local
    assert waiter.wait(SOON).hit.tier == shared

    batch = made.record(f"{new_record.program_name}-batch")
    leader = asking(one.cache, batch)
    leader.publish(made.artifact(batch, compile_seconds=0.2), leader.lookup().lease.lease_id)
    two_asks = pb.BatchRequest(keys=[leader.key], host=pb.Host(planned=True))
    assert two.cache.Batch(two_asks).answers[0].state == pb.KEY_STATE_ABSENT
    assert one.cache.Batch(two_asks).answers[0].state == pb.KEY_STATE_PRESENT
    until(lambda: two.cache.Batch(two_asks).answers[0].state == pb.KEY_STATE_PRESENT, "not shared")


def test_a_daemon_with_nothing_of_its_own_keeps_nothing_small(
    start_daemon, redis_server, asking, new_record, made
):
    daemon = start_daemon(stores=(redis_server.url,))
    leader, waiter = asking(daemon.cache, new_record), asking(daemon.cache, new_record)
    lease = leader.lookup().lease.lease_id
    assert answer(waiter.lookup()) == "wait"
    small = made.artifact(new_record, compile_seconds=0.2)
    assert leader.publish(small, lease).kept_local == pb.REASON_TOO_SMALL
    told = waiter.wait(SOON)
    assert answer(told) == "refused" and told.refused.reason == pb.REASON_TOO_SMALL
    named = asking(daemon.cache, new_record, planned=True)
    lease = named.lookup().lease.lease_id
    assert not named.publish(small, lease, planned=True).kept_local
    assert asking(daemon.cache, new_record).lookup().hit.tier == "redis"
