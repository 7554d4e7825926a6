"""One compile per key, whoever dies meanwhile (T23, T24, T25)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from coldstart import artifact
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

LEASE_SECONDS = 1.5


@pytest.fixture
def daemon(start_daemon):
    return start_daemon(f"--lease-seconds={LEASE_SECONDS}", "--heartbeat-seconds=0.3")


def test_sixteen_at_once_compile_once(daemon, asking, new_record, made):
    """T23: one lease, one digest, sixteen true counts."""
    gate = threading.Barrier(16)
    leases: list[str] = []

    def participant(rank: int) -> str:
        with grpc.insecure_channel(daemon.address) as channel:
            one = asking(cache_pb2_grpc.CacheStub(channel), new_record)
            gate.wait()
            reply = one.lookup()
            if reply.WhichOneof("answer") == "lease":
                leases.append(reply.lease.lease_id)
                mine = made.artifact(new_record, raw=f"compiled by {rank}".encode())
                digest = one.publish(mine, reply.lease.lease_id).digest
                one.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0)
                return digest
            if reply.WhichOneof("answer") == "wait":
                reply = one.wait()
            assert reply.WhichOneof("answer") == "hit", reply
            reason = Reason.WAITED if reply.hit.waited else Reason.OK
            one.finish(Outcome.HIT, reason, tier=reply.hit.tier)
            return artifact.decode_header(reply.hit.header).digest

    with ThreadPoolExecutor(16) as pool:
        digests = list(pool.map(participant, range(16)))
    assert len(leases) == 1 and len(set(digests)) == 1
    stats = daemon.stats()
    counts = {(c.outcome, c.reason): c.count for c in stats.lookups}
    assert counts.pop((pb.OUTCOME_MISS, pb.REASON_COLD)) == 1
    assert sum(counts.values()) == 15
    assert {outcome for outcome, _ in counts} == {pb.OUTCOME_HIT}
    assert stats.compiles == 1 and stats.compile_seconds == 2.0
    assert stats.compile_seconds_saved == 30.0  # fifteen times what the header says
    assert stats.open_lookups == 0 and stats.leases == 0


HOLDER = """
import sys, time, grpc
sys.path.insert(0, sys.argv[3])
import conftest
from coldstart.rpc.v1 import cache_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1])
one = conftest.Asking(cache_pb2_grpc.CacheStub(channel), conftest.make_record(sys.argv[2]))
print(one.lookup().lease.lease_id, flush=True)
time.sleep(600)
"""


def test_a_killed_holder_is_replaced_within_its_lease(daemon, asking, made):
    """T24: kill -9 of the compiling client; a waiter takes over within the lease time."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, daemon.address, "t24", os.path.dirname(__file__)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline().strip()
        record = made.record("t24")
        waiter, other = asking(daemon.cache, record), asking(daemon.cache, record)
        assert waiter.lookup().WhichOneof("answer") == "wait"
        began = time.monotonic()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with ThreadPoolExecutor(2) as pool:
            replies = list(pool.map(lambda one: one.wait(20.0), (waiter,)))
        took = time.monotonic() - began
    assert replies[0].WhichOneof("answer") == "lease"
    assert took < LEASE_SECONDS + 5  # the lease, and room for a busy machine
    assert other.lookup().WhichOneof("answer") == "wait"  # it went to one
    stats = daemon.stats()
    assert "lease-expired" in [event.kind for event in stats.events]
    assert stats.leases == 1


def test_a_slow_holder_that_lives_is_not_robbed(daemon, asking, new_record, made):
    """T25: far longer than a lease, with heartbeats."""
    holder, waiter = (asking(daemon.cache, new_record) for _ in range(2))
    lease = holder.lookup().lease.lease_id
    waiter.lookup()
    compiled = threading.Event()

    def beat() -> None:
        until = time.monotonic() + 3 * LEASE_SECONDS
        while time.monotonic() < until:
            daemon.cache.Renew(pb.RenewRequest(lease_id=lease), timeout=10)
            compiled.wait(0.3)
        holder.publish(made.artifact(new_record), lease)

    with ThreadPoolExecutor(1) as pool:
        beating = pool.submit(beat)
        reply = waiter.wait(60.0)
        beating.result()
    assert reply.WhichOneof("answer") == "hit" and reply.hit.waited
    assert "lease-expired" not in [event.kind for event in daemon.stats().events]


def test_a_holder_that_lost_its_lease_still_publishes_and_adopts(daemon, asking, new_record, made):
    slow, quick = (asking(daemon.cache, new_record) for _ in range(2))
    lost = slow.lookup().lease.lease_id
    quick.lookup()
    taken = quick.wait(20.0).lease.lease_id
    assert taken != lost
    mine, theirs = (made.artifact(new_record, raw=raw) for raw in (b"quick", b"slow"))
    assert not quick.publish(mine, taken).adopted
    reply = slow.publish(theirs, lost)
    assert reply.adopted and reply.digest == mine.header.digest
    with pytest.raises(grpc.RpcError) as over:
        daemon.cache.Renew(pb.RenewRequest(lease_id=lost), timeout=10)
    assert over.value.code() is grpc.StatusCode.ABORTED


def test_a_lookup_that_goes_silent_is_counted_once(start_daemon, asking, new_record):
    daemon = start_daemon(
        "--lookup-seconds=0.3", "--lease-seconds=0.3", "--heartbeat-seconds=0.1", folder="s"
    )
    one = asking(daemon.cache, new_record)
    one.lookup()
    deadline = time.monotonic() + 20
    while not daemon.stats().lookups:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    one.finish(Outcome.MISS, Reason.COLD)  # too late: it has been counted
    (count,) = daemon.stats().lookups
    assert (count.outcome, count.reason, count.count) == (
        pb.OUTCOME_ERROR,
        pb.REASON_LEASE_LOST,
        1,
    )
