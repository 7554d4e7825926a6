"""Three daemons, a Redis and a bucket, all of them killed, frozen, restarted and cut off from each other, while
clients ask and publish; then everything that was seen is held against the invariants.

The short run is a minute, the long one ten, once for each store that can keep leases. CHAOS_SEED=7 chooses another seed
for all, CHAOS_LEASES=gcs another board for the short one; `-k` chooses among the long ones. A run is made again by its
seed: the faults and their times are the same, the machine's own timing isn't.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import chaos_checker
import chaos_history
import chaos_log
import gcs_server
import pytest
import redis_server
from chaos_fleet import Daemon, Fleet
from chaos_plan import CI_SEED, Plan, draw
from chaos_programs import record_of

from coldstart.client.client import CacheClient
from coldstart.client.host import cpu_features
from coldstart.errors import ColdstartError
from coldstart.identity.key import key_of
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.wire import outcome_from_pb, reason_from_pb

SETTLE_SECONDS = 60.0  # after the last fault, until every daemon has every key
READ_SECONDS = 60.0  # for a minute's keys
MINUTE = 60.0
LONG = {
    "redis": 11,
    "gcs": 12,
}  # and the seed of each: an odd one has short deadlines, an even one the usual ones


@pytest.fixture
def fleet_folder() -> Iterator[Path]:
    """A short name: a socket's path may have 103 bytes. CHAOS_KEEP=1 keeps the logs, for whoever looks into a run."""
    folder = Path(tempfile.mkdtemp(prefix="cs-chaos-"))
    yield folder
    if os.environ.get("CHAOS_KEEP", "0") == "0":
        shutil.rmtree(folder)


@pytest.mark.timeout(300)
def test_a_minute_of_chaos(fleet_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leases = os.environ.get("CHAOS_LEASES", "redis")
    run(fleet_folder, draw(chosen_seed(CI_SEED), MINUTE, leases), capsys)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("leases", LONG)
def test_ten_minutes_of_chaos(
    leases: str, fleet_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(fleet_folder, draw(chosen_seed(LONG[leases]), 10 * MINUTE, leases), capsys)


def chosen_seed(usual: int) -> int:
    return int(os.environ.get("CHAOS_SEED", usual))


def run(folder: Path, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    gcs_server.need_gcs()
    pytest.importorskip("redis", reason="needs the extra redis")
    assert shutil.which(redis_server.PROGRAM), redis_server.MISSING
    about = f"seed {plan.seed}, {plan.seconds:g} s, leases in {plan.leases}"
    with capsys.disabled():
        print(f"\nchaos, {about}: begins", flush=True)
    fleet = Fleet(folder, plan)
    try:
        fleet.start()
        fleet.run()
        counts(fleet)
        fleet.log("over")
        read_all(fleet, "first")
        settle(fleet)
        read_all(fleet, "last")
    finally:
        fleet.close()
    assert not fleet.trouble, fleet.trouble
    verdict = chaos_checker.check(chaos_history.read(chaos_log.read(fleet.logs)))
    with capsys.disabled():
        print(f"chaos, {about}\n{verdict}")
    assert not verdict.violations, f"{about}:\n" + "\n".join(verdict.violations)


def counts(fleet: Fleet) -> None:
    """Each daemon's numbers, for the process that it is now."""
    time.sleep(1.0)  # what a client sent last is being counted
    for daemon in fleet.daemons:
        client = CacheClient(daemon.address, holder="chaos")
        reply = client.stats()
        client.close()
        by_outcome: dict[str, int] = {}
        given_up = 0
        for count in reply.lookups:
            outcome = outcome_from_pb(count.outcome).value
            by_outcome[outcome] = by_outcome.get(outcome, 0) + count.count
            if reason_from_pb(count.reason).value == "lease-lost":
                given_up += count.count
        fleet.log("stats", daemon=daemon.name, pid=reply.pid, counts=by_outcome, given_up=given_up)


def acknowledged(fleet: Fleet) -> list[str]:
    """The keys that some daemon took."""
    return sorted(chaos_history.read(chaos_log.read(fleet.logs)).acks)


def settle(fleet: Fleet) -> None:
    """Until all daemons, and one that has only the bucket, have every acknowledged key, and agree on its digest."""
    healed = time.monotonic()
    keys = acknowledged(fleet)
    daemons = [*fleet.daemons, fleet.newcomer()]
    while True:
        found = {daemon.name: states(daemon, keys) for daemon in daemons}
        digests = [
            {found[daemon.name].get(key, ("absent", ""))[1] for daemon in daemons} for key in keys
        ]
        settled = all(len(of_key) == 1 and "" not in of_key for of_key in digests)
        if settled or time.monotonic() > healed + SETTLE_SECONDS:
            break
        time.sleep(0.5)
    for name, by_key in found.items():
        for key, (state, digest) in by_key.items():
            if digest:
                fleet.log("settled", daemon=name, key=key, digest=digest)
            else:
                fleet.log("lost", daemon=name, key=key, state=state)
    fleet.log("all-settled", seconds=time.monotonic() - healed, settled=settled)


def states(daemon: Daemon, keys: list[str]) -> dict[str, tuple[str, str]]:
    """State and digest of each key, by that daemon's word."""
    client = CacheClient(daemon.address, holder="chaos")
    request = pb.BatchRequest(keys=keys, host=pb.Host(cpu_features=cpu_features()))
    try:
        reply = client.batch(request, 30.0)
    except ColdstartError as exc:
        return {key: (repr(exc), "") for key in keys}
    finally:
        client.close()
    return {a.key: (pb.KeyState.Name(a.state), a.digest) for a in reply.answers}


def read_all(fleet: Fleet, name: str) -> None:
    """A client of each daemon loads every acknowledged key. What a daemon hands out, it compares with the bucket."""
    acked = set(acknowledged(fleet))
    numbers = [n for n in range(len(fleet.plan.births)) if key_of(record_of(n)) in acked]
    most = time.monotonic() + READ_SECONDS * max(1.0, fleet.plan.seconds / MINUTE / 3)
    readers = {
        f"{name}-{at}": fleet.client(
            f"{name}-{at}", daemon, rank=at, by_path=at % 2 == 0, keys=numbers
        )
        for at, daemon in enumerate(fleet.daemons)
    }
    try:
        for who, process in readers.items():
            code = process.wait(max(0.0, most - time.monotonic()))
            fleet.log("client-gone", client=who, code=code)
    finally:
        for process in readers.values():
            process.kill()
            process.wait()


def test_the_log_of_a_run_can_be_judged_again(fleet_folder: Path) -> None:
    """What the verdict is made of is on disk: nothing is judged that isn't in the log."""
    log = chaos_log.Log(fleet_folder / "a.jsonl", "harness")
    log("begun", seed=0, seconds=0.0)
    log.close()
    (fleet_folder / "b.jsonl").write_text(
        json.dumps([0.0, "1.1", "started", {"daemon": "d"}]) + '\n[1.0, "1.'
    )
    history = chaos_history.read(chaos_log.read(fleet_folder))
    assert history.daemon_of == {"1.1": "d"}
    assert [event.what for event in history.events] == ["started", "begun"]
