"""Daemons that share a Redis: one compile for all, one digest everywhere, and what is left when something dies."""

from __future__ import annotations

import os
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fleet_cases import PARTICIPANTS, FleetCases, events_of, first_done, served, tier_of, until

from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

LEASE_SECONDS = 1.5


@pytest.fixture
def fleet(start_daemon, tmp_path, redis_server):
    """Start daemons with a disk of their own and the one Redis."""

    def start(name: str, *options: str, url: str = "", environ: dict[str, str] | None = None):
        stores = (f"disk://{tmp_path}/{name}/store", url or redis_server.url)
        flags = (f"--lease-seconds={LEASE_SECONDS}", "--heartbeat-seconds=0.3", *options)
        return start_daemon(*flags, folder=name, stores=stores, environ=environ)

    return start


class TestOverRedis(FleetCases):
    tier, lease_seconds = "redis", LEASE_SECONDS

    def also(self, fleet: Any, daemons: list[Any]) -> None:
        for daemon in daemons:
            daemon.stop()  # its last counts go to the fleet's
        third = fleet("three")
        until(lambda: third.stats().fleet, "no sums of the fleet")
        sums = third.stats().fleet
        found = (sums["lookups.hit"], sums["lookups.miss"], sums["compiles"])
        assert found == (PARTICIPANTS - 1, 1, 1)


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
    until(lambda: tier_of(one, "redis").trouble, "it did not say that it is degraded")
    assert "down for" in tier_of(one, "redis").trouble and "tier-down" in events_of(one)
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
    until(lambda: not tier_of(one, "redis").trouble, "it did not see that Redis is there")
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
        at = first_done(waiting_there)
        until(lambda: two.stats().leases == 1, "nobody compiles at the other daemon")
        one.cache.Renew(pb.RenewRequest(lease_id=lease), timeout=10)  # still held here
        mine = made.artifact(new_record, raw=b"one")
        assert not leader.publish(mine, lease).adopted
        assert served(waiting_here.result()) == mine.header.digest
        theirs = made.artifact(new_record, raw=b"two")
        there[at].publish(theirs, waiting_there[at].result().lease.lease_id)
        kinds = Counter(f.result().WhichOneof("answer") for f in waiting_there)
    assert kinds == {"lease": 1, "hit": 2}
    assert all(daemon.stats().leases_trouble for daemon in (one, two))

    redis_server.start()
    for daemon in (one, two):
        until(lambda d=daemon: not tier_of(d, "redis").trouble, "Redis was not seen")

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
    operations = tier_of(one, "redis").operations
    assert operations["oom.full"] >= 5 and operations["put.full"] >= 5 and operations["put.ok"] >= 1
    assert "full" in tier_of(one, "redis").trouble
    assert f"coldstart_redis_oom_total {float(operations['oom.full'])}" in metrics_of(one)
    stats = one.stats()
    assert sum(c.count for c in stats.lookups if c.outcome == pb.OUTCOME_MISS) == 10
    assert {c.outcome for c in stats.lookups} == {pb.OUTCOME_MISS}


def metrics_of(daemon) -> str:
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
    until(lambda: tier_of(env, "redis").operations or not tier_of(env, "redis").trouble, "no state")
    token = tmp_path / "token"
    token.write_text("Xq-old\n")
    file = fleet("file", url=f"{server.url}?cs.password_file={token}")
    until(lambda: tier_of(file, "redis").trouble, "a wrong password was not noticed")
    assert (
        "password" in tier_of(file, "redis").trouble.lower()
        or "auth" in tier_of(file, "redis").trouble.lower()
    )
    token.write_text("Xq-one\n")
    until(lambda: not tier_of(file, "redis").trouble, "the new token was not read")
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
    assert tier_of(file, "redis").operations["put.ok"] == 1 and not tier_of(file, "redis").trouble
    for daemon in (env, file):  # secrets are shown nowhere
        assert "Xq-" not in daemon.log.read_text() + str(daemon.stats())
