"""Daemons that share a Redis: one compile for all, one digest everywhere, and what is left when something dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from coldstart import artifact
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

LEASE_SECONDS = 1.5
SOON = 20.0


@pytest.fixture
def fleet(start_daemon, tmp_path, redis_server):
    """Start daemons with a disk of their own and the one Redis."""

    def start(name: str, *options: str, url: str = "", environ: dict[str, str] | None = None):
        stores = (f"disk://{tmp_path}/{name}/store", url or redis_server.url)
        flags = (f"--lease-seconds={LEASE_SECONDS}", "--heartbeat-seconds=0.3", *options)
        return start_daemon(*flags, folder=name, stores=stores, environ=environ)

    return start


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # another process changes it


def tier_of(daemon, name: str = "redis"):
    return next(tier for tier in daemon.stats().tiers if tier.name == name)


def events_of(daemon) -> list[str]:
    return [event.kind for event in daemon.stats().events]


def served(reply) -> str:
    return artifact.decode_header(reply.hit.header).digest


def test_sixteen_clients_of_two_daemons_compile_once(fleet, asking, new_record, made):
    """T23 over two daemons: a cold key, one compile, one digest, sixteen true counts."""
    daemons = [fleet("one"), fleet("two")]
    assert {daemon.stats().leases_kept for daemon in daemons} == {"redis"}
    gate = threading.Barrier(16)
    leases: list[str] = []

    def participant(rank: int) -> str:
        with grpc.insecure_channel(daemons[rank % 2].address) as channel:
            one = asking(cache_pb2_grpc.CacheStub(channel), new_record)
            gate.wait()
            reply = one.lookup()
            while reply.WhichOneof("answer") == "wait":
                reply = one.wait()
            if reply.WhichOneof("answer") == "lease":
                leases.append(reply.lease.lease_id)
                time.sleep(0.5)  # it compiles
                mine = made.artifact(new_record, raw=f"compiled by {rank}".encode())
                digest = one.publish(mine, reply.lease.lease_id).digest
                one.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0)
                return digest
            assert reply.WhichOneof("answer") == "hit", reply
            reason = Reason.WAITED if reply.hit.waited else Reason.OK
            one.finish(Outcome.HIT, reason, tier=reply.hit.tier)
            return served(reply)

    with ThreadPoolExecutor(16) as pool:
        digests = list(pool.map(participant, range(16)))
    assert len(leases) == 1 and len(set(digests)) == 1
    stats = [daemon.stats() for daemon in daemons]
    counts = Counter()
    for one in stats:
        counts.update({(c.outcome, c.reason): c.count for c in one.lookups})
    assert counts.pop((pb.OUTCOME_MISS, pb.REASON_COLD)) == 1
    assert sum(counts.values()) == 15 and {outcome for outcome, _ in counts} == {pb.OUTCOME_HIT}
    assert sum(one.compiles for one in stats) == 1
    assert not any(one.leases or one.open_lookups for one in stats)
    for daemon in daemons:
        daemon.stop()  # its last counts go to the fleet's
    third = fleet("three")
    until(lambda: third.stats().fleet, "no sums of the fleet")
    sums = third.stats().fleet
    assert (sums["lookups.hit"], sums["lookups.miss"], sums["compiles"]) == (15, 1, 1)


LEADER = """
import sys, grpc
sys.path.insert(0, sys.argv[3])
import conftest
from coldstart.rpc.v1 import cache_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1])
record = conftest.make_record(sys.argv[2])
one = conftest.Asking(cache_pb2_grpc.CacheStub(channel), record)
lease = one.lookup().lease.lease_id
print(lease, flush=True)
sys.stdin.readline()  # it compiles, until it is told that it has
done = one.publish(conftest.make_artifact(record, raw=b"by the leader"), lease)
print(done.digest, done.adopted, flush=True)
"""


def start_leader(daemon, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LEADER, daemon.address, name, os.path.dirname(__file__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("frozen", ["client", "daemon"])
def test_a_leader_that_is_frozen_past_its_lease_adopts_what_was_published(
    fleet, asking, made, frozen
):
    """T26 over two daemons: two compiles are started, and one digest is everywhere."""
    one, two = fleet("one"), fleet("two")
    record = made.record(f"frozen-{frozen}")
    leader = start_leader(one, record.program_name)
    with leader:
        assert leader.stdout is not None and leader.stdin is not None
        assert leader.stdout.readline().strip()
        waiter = asking(two.cache, record)
        assert waiter.lookup().WhichOneof("answer") == "wait"
        pid = leader.pid if frozen == "client" else one.process.pid
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        taken = waiter.wait(30.0)
        assert taken.WhichOneof("answer") == "lease"
        assert time.monotonic() - began < LEASE_SECONDS + 5  # room for a busy machine
        by_waiter = made.artifact(record, raw=b"by the waiter")
        assert waiter.publish(by_waiter, taken.lease.lease_id).adopted is False
        os.kill(pid, signal.SIGCONT)
        leader.stdin.write("\n")
        leader.stdin.flush()
        digest, adopted = leader.stdout.readline().split()
    assert (digest, adopted) == (by_waiter.header.digest, "True")
    for daemon in (one, two):
        assert served(asking(daemon.cache, record).lookup()) == digest
    assert one.stats().compiles + two.stats().compiles == 2
    assert "lease-expired" in events_of(one)


def test_a_killed_leader_of_another_daemon_is_replaced(fleet, asking, made):
    """T24 over two daemons, the leader's daemon with it."""
    one, two = fleet("one"), fleet("two")
    leader = start_leader(one, "killed")
    with leader:
        assert leader.stdout is not None and leader.stdout.readline().strip()
        waiters = [asking(two.cache, made.record("killed")) for _ in range(4)]
        assert {w.lookup().WhichOneof("answer") for w in waiters} == {"wait"}
        leader.kill()
        one.stop(signal.SIGKILL)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(w.wait, 30.0) for w in waiters]
            until(lambda: two.stats().leases == 1, "nobody took over")
            lease = (
                next(
                    reply
                    for reply in (future.result() for future in asked if future.done())
                    if reply.WhichOneof("answer") == "lease"
                )
                if any(f.done() for f in asked)
                else None
            )
            while lease is None:
                time.sleep(0.05)
                lease = next((f.result() for f in asked if f.done()), None)
            holder = waiters[[f.done() for f in asked].index(True)]
            holder.publish(made.artifact(made.record("killed")), lease.lease.lease_id)
            kinds = Counter(f.result().WhichOneof("answer") for f in asked)
    assert kinds == {"lease": 1, "hit": 3}


def test_a_slow_leader_with_heartbeats_is_not_robbed_by_another_daemon(
    fleet, asking, new_record, made
):
    """T25 over two daemons."""
    one, two = fleet("one"), fleet("two")
    holder, waiter = asking(one.cache, new_record), asking(two.cache, new_record)
    lease = holder.lookup().lease.lease_id
    assert waiter.lookup().WhichOneof("answer") == "wait"
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(waiter.wait, 60.0)
        end = time.monotonic() + 3 * LEASE_SECONDS
        while time.monotonic() < end:
            one.cache.Renew(pb.RenewRequest(lease_id=lease), timeout=10)
            time.sleep(0.3)
        holder.publish(made.artifact(new_record), lease)
        reply = waited.result()
    assert reply.WhichOneof("answer") == "hit" and reply.hit.waited and reply.hit.tier == "redis"


def test_a_failed_compile_is_told_to_waiters_of_other_daemons(fleet, asking, new_record, made):
    one, two = fleet("one"), fleet("two")
    holder, waiter = asking(one.cache, new_record), asking(two.cache, new_record)
    lease = holder.lookup().lease.lease_id
    waiter.lookup()
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(waiter.wait, 30.0)
        time.sleep(0.3)
        failed = pb.FailRequest(lease_id=lease, kind=pb.REASON_NEGATIVE_OOM, message="exceeds HBM")
        one.cache.Fail(failed, timeout=10)
        reply = waited.result()
    assert reply.refused.reason == pb.REASON_NEGATIVE_OOM and "HBM" in reply.refused.message
    late = asking(two.cache, new_record).lookup()
    assert late.refused.reason == pb.REASON_NEGATIVE_OOM  # it is remembered here too


def test_a_redis_that_comes_later_is_used_without_a_restart(
    fleet,
    asking,
    made,
    redis_servers,
):
    """T17: nothing listens at the start; the daemon is up, says so, serves, and then uses it."""
    server = redis_servers()
    server.stop()
    one = fleet("one", url=server.url)
    until(lambda: tier_of(one).trouble, "it did not say that it is degraded")
    assert "down for" in tier_of(one).trouble and "tier-down" in events_of(one)
    first = made.record("before")
    lookup = asking(one.cache, first)
    reply = lookup.lookup()
    assert reply.WhichOneof("answer") == "lease"
    assert reply.lease.reason in (pb.REASON_TIER_DOWN, pb.REASON_BREAKER_OPEN)
    assert asking(one.cache, first).lookup().WhichOneof("answer") == "wait"  # one compile a host
    lookup.publish(made.artifact(first), reply.lease.lease_id)
    assert asking(one.cache, first).lookup().WhichOneof("answer") == "hit"
    assert one.stats().leases_trouble and "leases-alone" in events_of(one)

    server.start()
    until(lambda: not tier_of(one).trouble, "it did not see that Redis is there")
    assert "tier-up" in events_of(one)
    second = made.record("after")
    lookup = asking(one.cache, second)
    reply = lookup.lookup()
    assert reply.lease.reason == pb.REASON_COLD
    assert not one.stats().leases_trouble and "leases-shared" in events_of(one)
    lookup.publish(made.artifact(second), reply.lease.lease_id)
    two = fleet("two", url=server.url)
    assert asking(two.cache, second).lookup().hit.tier == "redis"
    # What was published meanwhile is written back.
    until(
        lambda: asking(two.cache, first).lookup().WhichOneof("answer") == "hit",
        "what was published during the outage never came",
    )


def test_redis_dies_while_everybody_waits(fleet, asking, new_record, made, redis_server):
    """A daemon's own clients then agree among themselves, and with the fleet again when it is back."""
    one, two = fleet("one"), fleet("two")
    leader = asking(one.cache, new_record)
    lease = leader.lookup().lease.lease_id
    here, there = asking(one.cache, new_record), [asking(two.cache, new_record) for _ in range(3)]
    assert {a.lookup().WhichOneof("answer") for a in (here, *there)} == {"wait"}
    with ThreadPoolExecutor(4) as pool:
        waiting_here = pool.submit(here.wait, 60.0)
        waiting_there = [pool.submit(a.wait, 60.0) for a in there]
        redis_server.stop()
        until(lambda: any(f.done() for f in waiting_there), "nobody went on")
        until(lambda: two.stats().leases == 1, "nobody compiles at the other daemon")
        one.cache.Renew(pb.RenewRequest(lease_id=lease), timeout=10)  # still held here
        mine = made.artifact(new_record, raw=b"one")
        assert not leader.publish(mine, lease).adopted
        assert served(waiting_here.result()) == mine.header.digest
        holder = there[[f.done() for f in waiting_there].index(True)]
        taken = next(f.result() for f in waiting_there if f.done())
        theirs = made.artifact(new_record, raw=b"two")
        holder.publish(theirs, taken.lease.lease_id)
        kinds = Counter(f.result().WhichOneof("answer") for f in waiting_there)
    assert kinds == {"lease": 1, "hit": 2}
    assert all(daemon.stats().leases_trouble for daemon in (one, two))

    redis_server.start()
    for daemon in (one, two):
        until(lambda d=daemon: not tier_of(d).trouble, "Redis was not seen")

    def digests() -> set[str]:
        replies = [asking(daemon.cache, new_record).lookup() for daemon in (one, two)]
        return {served(r) if r.WhichOneof("answer") == "hit" else "?" for r in replies}

    # Both were provisional; the first that is written back decides.
    until(lambda: len(digests()) == 1 and "?" not in digests(), "two digests stayed")


def test_a_full_redis_is_an_answer_and_counted(fleet, asking, made, redis_servers):
    """T20: noeviction, 20 MB, ten times 4 MB."""
    server = redis_servers(maxmemory="20mb", maxmemory_policy="noeviction")
    one = fleet("one", "--health=127.0.0.1:0", url=server.url)
    for n in range(10):
        record = made.record(f"full-{n}")
        lookup = asking(one.cache, record)
        reply = lookup.lookup()
        made_one = made.artifact(record, raw=os.urandom(4 << 20), codec="raw")
        done = lookup.publish(made_one, reply.lease.lease_id)
        assert done.digest == made_one.header.digest and not done.kept_local
        lookup.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0)
        assert asking(one.cache, record).lookup().WhichOneof("answer") == "hit"
    operations = tier_of(one).operations
    assert operations["oom.full"] >= 5 and operations["put.full"] >= 5 and operations["put.ok"] >= 1
    assert "full" in tier_of(one).trouble
    assert f"coldstart_redis_oom_total {float(operations['oom.full'])}" in metrics_of(one)
    stats = one.stats()
    assert sum(c.count for c in stats.lookups if c.outcome == pb.OUTCOME_MISS) == 10
    assert {c.outcome for c in stats.lookups} == {pb.OUTCOME_MISS}


def metrics_of(daemon) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://{daemon.ready['health']}/metrics", timeout=10) as reply:
        return reply.read().decode()


def test_password_from_the_environment_and_from_a_file_that_changes(
    fleet,
    asking,
    made,
    redis_servers,
    tmp_path,
):
    server = redis_servers(requirepass="Xq-one")
    env = fleet("env", url=server.url, environ={"COLDSTART_REDIS_PASSWORD": "Xq-one"})
    until(lambda: tier_of(env).operations or not tier_of(env).trouble, "no state")
    token = tmp_path / "token"
    token.write_text("Xq-old\n")
    file = fleet("file", url=f"{server.url}?cs.password_file={token}")
    until(lambda: tier_of(file).trouble, "a wrong password was not noticed")
    assert "password" in tier_of(file).trouble.lower() or "auth" in tier_of(file).trouble.lower()
    token.write_text("Xq-one\n")
    until(lambda: not tier_of(file).trouble, "the new token was not read")
    record = made.record("secret")
    lookup = asking(env.cache, record)
    lookup.publish(made.artifact(record), lookup.lookup().lease.lease_id)
    assert asking(file.cache, record).lookup().hit.tier == "redis"

    with server.client() as admin:  # the token is replaced while connections are open
        admin.config_set("requirepass", "Xq-two")
        token.write_text("Xq-two\n")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    other = made.record("secret two")
    lookup = asking(file.cache, other)
    lookup.publish(made.artifact(other), lookup.lookup().lease.lease_id)
    assert tier_of(file).operations["put.ok"] == 1 and not tier_of(file).trouble
    for daemon in (env, file):  # secrets are shown nowhere
        assert "Xq-" not in daemon.log.read_text() + str(daemon.stats())
