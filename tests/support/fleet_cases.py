"""FleetCases: what holds for daemons that share a store, whatever store that is; and what such tests ask daemons for.

A file of a shared store has a fixture `fleet(name, *options)`, which starts a daemon with a disk of its own over the
one store, and a class `TestOver...(FleetCases)` that says which tier it is. pytest runs the cases below for each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

from coldstart import artifact
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.rpc.v1 import cache_pb2_grpc

SOON = 30.0
BUSY_SECONDS = 10.0  # what a busy machine may take beside what is waited for
PARTICIPANTS = 16
SERVER_TESTS = Path(__file__).resolve().parents[1] / "server"  # their conftest speaks to daemons

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


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # another process changes it


def tier_of(daemon: Any, name: str) -> Any:
    return next(tier for tier in daemon.stats().tiers if tier.name == name)


def operations(daemon: Any, name: str) -> dict[str, int]:
    return dict(tier_of(daemon, name).operations)


def events_of(daemon: Any) -> list[str]:
    return [event.kind for event in daemon.stats().events]


def served(reply: pb.LookupReply) -> str:
    return artifact.decode_header(reply.hit.header).digest


def compiled(asking: Any, daemon: Any, made: Any, record: Any, raw: bytes = b"executable") -> Any:
    """A miss that a client of that daemon compiled and published; its artifact."""
    one = asking(daemon.cache, record)
    reply = one.lookup()
    assert reply.WhichOneof("answer") == "lease", reply
    mine = made.artifact(record, raw=raw, codec="raw")
    assert one.publish(mine, reply.lease.lease_id).digest == mine.header.digest
    one.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0)
    return mine


@contextmanager
def leader_at(daemon: Any, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease of that record; a line on its stdin lets it publish."""
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, daemon.address, name, str(SERVER_TESTS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as leader:
        assert leader.stdout is not None and leader.stdout.readline().strip()
        yield leader


def first_done(futures: list[Future[Any]]) -> int:
    """The place of the first that is done."""
    until(lambda: any(future.done() for future in futures), "nobody was answered")
    return [future.done() for future in futures].index(True)


class FleetCases:
    """The cases; `fleet`, `asking`, `made` and `new_record` are fixtures."""

    tier: ClassVar[str]  # of the shared store
    lease_seconds: ClassVar[float]

    def also(self, fleet: Any, daemons: list[Any]) -> None:
        """What else is to be seen after PARTICIPANTS clients of two daemons."""

    def test_sixteen_clients_of_two_daemons_compile_once(
        self, fleet: Any, asking: Any, new_record: Any, made: Any
    ) -> None:
        """T23 over two daemons: a cold key, one compile, one digest, sixteen true counts."""
        daemons = [fleet("one"), fleet("two")]
        assert {daemon.stats().leases_kept for daemon in daemons} == {self.tier}
        gate = threading.Barrier(PARTICIPANTS)
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
                    return str(digest)
                assert reply.WhichOneof("answer") == "hit", reply
                reason = Reason.WAITED if reply.hit.waited else Reason.OK
                one.finish(Outcome.HIT, reason, tier=reply.hit.tier)
                return served(reply)

        with ThreadPoolExecutor(PARTICIPANTS) as pool:
            digests = list(pool.map(participant, range(PARTICIPANTS)))
        assert len(leases) == 1 and len(set(digests)) == 1
        stats = [daemon.stats() for daemon in daemons]
        counts: Counter[tuple[int, int]] = Counter()
        for one in stats:
            counts.update({(c.outcome, c.reason): c.count for c in one.lookups})
        assert counts.pop((pb.OUTCOME_MISS, pb.REASON_COLD)) == 1
        assert sum(counts.values()) == PARTICIPANTS - 1
        assert {outcome for outcome, _ in counts} == {pb.OUTCOME_HIT}
        assert sum(one.compiles for one in stats) == 1
        assert not any(one.leases or one.open_lookups or one.leases_trouble for one in stats)
        self.also(fleet, daemons)

    @pytest.mark.parametrize("frozen", ["client", "daemon"])
    def test_a_leader_that_is_frozen_past_its_lease_adopts_what_was_published(
        self, fleet: Any, asking: Any, made: Any, frozen: str
    ) -> None:
        """T26 over two daemons: two compiles are started, and one digest is everywhere."""
        one, two = fleet("one"), fleet("two")
        record = made.record(f"frozen-{frozen}")
        with leader_at(one, record.program_name) as leader:
            waiter = asking(two.cache, record)
            assert waiter.lookup().WhichOneof("answer") == "wait"
            pid = leader.pid if frozen == "client" else one.process.pid
            os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
            taken = waiter.wait(30.0)
            assert taken.WhichOneof("answer") == "lease"
            assert time.monotonic() - began < self.lease_seconds + BUSY_SECONDS
            by_waiter = made.artifact(record, raw=b"by the waiter")
            assert waiter.publish(by_waiter, taken.lease.lease_id).adopted is False
            os.kill(pid, signal.SIGCONT)
            assert leader.stdin is not None and leader.stdout is not None
            leader.stdin.write("\n")
            leader.stdin.flush()
            digest, adopted = leader.stdout.readline().split()
        assert (digest, adopted) == (by_waiter.header.digest, "True")
        for daemon in (one, two):
            assert served(asking(daemon.cache, record).lookup()) == digest
        assert one.stats().compiles + two.stats().compiles == 2
        until(lambda: "lease-expired" in events_of(one), "nobody noted that the lease was lost")

    def test_a_killed_leader_of_another_daemon_is_replaced(
        self, fleet: Any, asking: Any, made: Any
    ) -> None:
        """T24 over two daemons, the leader's daemon with it."""
        one, two = fleet("one"), fleet("two")
        with leader_at(one, "killed") as leader:
            waiters = [asking(two.cache, made.record("killed")) for _ in range(4)]
            assert {w.lookup().WhichOneof("answer") for w in waiters} == {"wait"}
            leader.kill()
            one.stop(signal.SIGKILL)
            with ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(w.wait, 30.0) for w in waiters]
                at = first_done(asked)
                taken = asked[at].result()
                assert taken.WhichOneof("answer") == "lease" and two.stats().leases == 1
                mine = made.artifact(made.record("killed"))
                waiters[at].publish(mine, taken.lease.lease_id)
                kinds = Counter(f.result().WhichOneof("answer") for f in asked)
        assert kinds == {"lease": 1, "hit": 3}

    def test_a_slow_leader_with_heartbeats_is_not_robbed_by_another_daemon(
        self, fleet: Any, asking: Any, new_record: Any, made: Any
    ) -> None:
        """T25 over two daemons."""
        one, two = fleet("one"), fleet("two")
        holder, waiter = asking(one.cache, new_record), asking(two.cache, new_record)
        lease = holder.lookup().lease.lease_id
        assert waiter.lookup().WhichOneof("answer") == "wait"
        with ThreadPoolExecutor(1) as pool:
            waited = pool.submit(waiter.wait, 60.0)
            end = time.monotonic() + 3 * self.lease_seconds
            while time.monotonic() < end:
                one.cache.Renew(pb.RenewRequest(lease_id=lease), timeout=10)
                time.sleep(0.3)
            holder.publish(made.artifact(new_record), lease)
            reply = waited.result()
        assert reply.WhichOneof("answer") == "hit" and reply.hit.waited
        assert reply.hit.tier == self.tier

    def test_a_failed_compile_is_told_to_waiters_of_other_daemons(
        self, fleet: Any, asking: Any, new_record: Any
    ) -> None:
        one, two = fleet("one"), fleet("two")
        holder, waiter = asking(one.cache, new_record), asking(two.cache, new_record)
        lease = holder.lookup().lease.lease_id
        assert waiter.lookup().WhichOneof("answer") == "wait"
        oom = pb.REASON_NEGATIVE_OOM
        with ThreadPoolExecutor(1) as pool:
            waited = pool.submit(waiter.wait, 30.0)
            time.sleep(0.3)
            failed = pb.FailRequest(lease_id=lease, kind=oom, message="exceeds HBM")
            one.cache.Fail(failed, timeout=10)
            reply = waited.result()
        assert reply.refused.reason == oom and "HBM" in reply.refused.message
        late = asking(two.cache, new_record).lookup()
        assert late.refused.reason == oom  # it is remembered there too
