"""JAX processes on two daemons that share a Redis: one compiles for all; a frozen leader, a dead and a full Redis."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Daemon, Ran, finish, start
from redis_server import RedisServer

from coldstart.artifact import open_file

PROGRAM = """
while "GO" in os.environ and not os.path.exists(os.environ["GO"]): time.sleep(0.01)
if "LEADING" in os.environ:
    def _noticed(*args, **kwargs):
        open(os.environ["LEADING"], "w").close()
        while not os.path.exists(os.environ["FINISH"]): time.sleep(0.01)
        return _counted(*args, **kwargs)
    _compiler.backend_compile_and_load = _noticed
def program(x):
    for _ in range(4):
        x = jnp.tanh(x @ x.T) + jnp.sort(x, axis=1)
    return x.sum()
value = float(jax.jit(program)(np.arange(64, dtype=np.float32).reshape(8, 8)))
say(value=value, compiles=len(COMPILES))
"""
LEASE = ("--lease-seconds", "3", "--heartbeat-seconds", "1")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., list[Daemon]]]:
    """Two daemons on the Redis at that URL."""
    started: list[Daemon] = []

    def begin(url: str) -> list[Daemon]:
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            started.append(Daemon(folder))
            started[-1].start("--store", f"{url}?cs.min_compile_seconds=0", *LEASE)
        return started

    yield begin
    for daemon in started:
        daemon.stop()


@pytest.fixture
def run() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process on a daemon; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def begin(daemon: Daemon, **env: object) -> subprocess.Popen[str]:
        more = {name: str(value) for name, value in env.items()}
        address = daemon.address
        started.append(start(PROGRAM, COLDSTART_ADDRESS=address, COLDSTART_STRICT="1", **more))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def digests(daemons: list[Daemon]) -> set[str]:
    """In the daemons' own stores."""
    return {open_file(path).header.digest for daemon in daemons for path in daemon.artifacts()}


def compiled(ran: list[Ran]) -> list[int]:
    return sorted(one.said["compiles"] for one in ran)


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)  # another process changes it


def test_processes_on_two_daemons_compile_once(
    fleet: Any, run: Any, redis_server: RedisServer, tmp_path: Path
) -> None:
    """T23 over two daemons, with real compiles."""
    daemons, go = fleet(redis_server.url), tmp_path / "go"
    running = [run(daemons[n % 2], GO=go) for n in range(16)]
    go.touch()
    ran = [finish(process, 110) for process in running]
    assert compiled(ran) == [0] * 15 + [1]
    assert len({one.said["value"] for one in ran}) == 1
    until(lambda: all(digests([daemon]) for daemon in daemons), "a disk was not filled")
    assert len(digests(daemons)) == 1


def test_a_frozen_leader_wakes_to_find_another_artifact_and_uses_its_own(
    fleet: Any, run: Any, redis_server: RedisServer, tmp_path: Path
) -> None:
    """T26: two compiles are started, one digest is everywhere."""
    daemons, leading = fleet(redis_server.url), tmp_path / "leading"
    leader = run(daemons[0], LEADING=leading, FINISH=tmp_path / "finish")
    until(leading.exists, "nobody leads")
    until(lambda: daemons[0].stats().leases, "no lease")
    os.kill(leader.pid, signal.SIGSTOP)
    other = finish(run(daemons[1]))
    assert other.said["compiles"] == 1
    (tmp_path / "finish").touch()
    os.kill(leader.pid, signal.SIGCONT)
    ran = finish(leader)
    assert ran.said["compiles"] == 1 and ran.said["value"] == other.said["value"]
    late = [finish(run(daemon)) for daemon in daemons]
    assert compiled(late) == [0, 0] and len(digests(daemons)) == 1


def test_a_redis_that_dies_meanwhile_fails_nobody(
    fleet: Any, run: Any, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Strict clients: any exception of ours would end them. One compile for each daemon at most."""
    daemons, leading = fleet(redis_server.url), tmp_path / "leading"
    leader = run(daemons[0], LEADING=leading, FINISH=tmp_path / "finish")
    until(leading.exists, "nobody leads")
    waiters = [run(daemons[n % 2]) for n in range(3)]
    until(lambda: sum(d.stats().open_lookups for d in daemons) >= 2, "nobody waits")
    redis_server.stop()
    (tmp_path / "finish").touch()
    ran = [finish(process) for process in (leader, *waiters)]
    assert sum(compiled(ran)) <= 2 and len({one.said["value"] for one in ran}) == 1
    redis_server.start()
    assert finish(run(daemons[1])).said["compiles"] == 0


def test_a_full_redis_fails_nobody(fleet: Any, run: Any, redis_servers: Any) -> None:
    """T20 as a client sees it: nothing."""
    server = redis_servers(maxmemory="1", maxmemory_policy="noeviction")
    daemons = fleet(server.url)
    first, second = finish(run(daemons[0])), finish(run(daemons[0]))
    assert (first.said["compiles"], second.said["compiles"]) == (1, 0)
    tiers = {tier.name: tier for tier in daemons[0].stats().tiers}
    assert tiers["redis"].operations["oom.full"] >= 1
