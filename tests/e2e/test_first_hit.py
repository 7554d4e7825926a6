"""Real processes on a real daemon: stampede, a leader that dies, a daemon that is gone, killed or silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes import PRELUDE, finish, start

ON_EVERY_STACK = pytest.mark.stacks

COMPUTE = """
def program(x):
    for _ in range(4):
        x = jnp.tanh(x @ x.T) + jnp.sort(x, axis=1)
    return x.sum()
began = time.perf_counter()
value = float(jax.jit(program)(np.arange(64, dtype=np.float32).reshape(8, 8)))
import coldstart
report = coldstart.report()
say(compiles=len(COMPILES), value=value, seconds=time.perf_counter() - began,
    lost=report.lost_seconds if report else 0.0,
    ends=sorted(f"{o}/{r}" for o, r in report.lookups) if report else [])
"""


@ON_EVERY_STACK
def test_a_restart_compiles_nothing_and_computes_the_same(daemon: Any, program: Any) -> None:
    address = {"COLDSTART_ADDRESS": daemon.address}
    uncached = program(COMPUTE).said
    first, second = program(COMPUTE, **address).said, program(COMPUTE, **address).said
    assert [uncached["compiles"], first["compiles"], second["compiles"]] == [1, 1, 0]
    assert uncached["value"] == first["value"] == second["value"]
    assert second["ends"] == ["hit/ok"]


def test_it_says_at_exit_what_it_did(daemon: Any, program: Any) -> None:
    ran = program(COMPUTE, COLDSTART_ADDRESS=daemon.address)
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("coldstart:")]
    assert "0 of 1 programs hit" in line and "cold 1" in line


@ON_EVERY_STACK
def test_without_an_address_nothing_of_ours_is_imported(program: Any) -> None:
    ran = program(
        "jax.jit(lambda x: x + 1)(1.0)\n"
        "say(ours=sorted(m for m in sys.modules if m.startswith('coldstart')), grpc='grpc' in sys.modules)"
    )
    assert ran.said["ours"] == ["coldstart", "coldstart.client", "coldstart.client.jax_plugin"]
    assert ran.said["grpc"] is False


def test_nothing_connects_before_the_first_compile(daemon: Any, program: Any) -> None:
    ran = program(
        "jax.devices()\nsay(grpc='grpc' in sys.modules)", COLDSTART_ADDRESS=daemon.address
    )
    # The hook's own modules may be there; the daemon must not have heard of this process.
    assert ran.code == 0
    assert sum(daemon.stats().lookups[i].count for i in range(len(daemon.stats().lookups))) == 0


STAMPEDE = (
    """
while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
"""
    + COMPUTE
)


def test_sixteen_processes_ask_at_once_and_one_compiles(daemon: Any, tmp_path: Path) -> None:
    """T23."""
    go = tmp_path / "go"
    env = {"COLDSTART_ADDRESS": daemon.address, "GO": str(go), "COLDSTART_STRICT": "1"}
    running = [start(STAMPEDE, **env) for _ in range(16)]
    go.touch()
    said = [finish(process, 110).said for process in running]
    assert sorted(s["compiles"] for s in said) == [0] * 15 + [1]
    assert len({s["value"] for s in said}) == 1
    assert len(daemon.artifacts()) == 1


LEADER = (
    """
_slow = _compiler.backend_compile_and_load
def _stuck(*args, **kwargs):
    open(os.environ["LEADING"], "w").close()
    time.sleep(600)
_compiler.backend_compile_and_load = _stuck
"""
    + COMPUTE
)


@pytest.mark.parametrize("how", ["SIGKILL"])
def test_a_dead_leader_is_replaced_within_the_lease_time(
    tmp_path: Path, daemon: Any, how: str
) -> None:
    """T24."""
    daemon.stop()
    daemon.start("--lease-seconds", "3", "--heartbeat-seconds", "1")
    leading = tmp_path / "leading"
    env = {"COLDSTART_ADDRESS": daemon.address, "LEADING": str(leading)}
    leader = start(LEADER, **env)
    _until(leading.exists)
    waiters = [start(COMPUTE, **env) for _ in range(3)]
    _until(lambda: daemon.stats().open_lookups >= 4)
    leader.send_signal(getattr(signal, how))
    killed = time.monotonic()
    leader.communicate()
    said = [finish(process).said for process in waiters]
    assert sorted(s["compiles"] for s in said) == [0, 0, 1]
    assert time.monotonic() - killed < 3 + 30  # the lease, and what three busy processes need
    assert len({s["value"] for s in said}) == 1


def _until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@ON_EVERY_STACK
def test_an_absent_daemon_costs_nothing_worth_mentioning(program: Any, tmp_path: Path) -> None:
    """T36: one warning, plain JAX behaviour."""
    ran = program(COMPUTE, COLDSTART_ADDRESS=f"unix://{tmp_path}/nobody.sock", COLDSTART_STRICT="0")
    assert ran.said["compiles"] == 1
    assert ran.said["lost"] < 2
    assert ran.stderr.count("no daemon at") == 1


MANY = """
values = []
for n in range(6):
    values.append(float(jax.jit(lambda x, n=n: (x + n).sum())(np.ones(4, np.float32))))
import coldstart
say(values=values, compiles=len(COMPILES), lost=coldstart.report().lost_seconds)
"""


def test_a_silent_daemon_costs_at_most_two_seconds(program: Any, daemon: Any) -> None:
    """T36: SIGSTOP. The connection is taken by the kernel and nobody answers."""
    daemon.signal(signal.SIGSTOP)
    try:
        ran = program(MANY, COLDSTART_ADDRESS=daemon.address, COLDSTART_STRICT="0")
    finally:
        daemon.signal(signal.SIGCONT)
    assert ran.said["compiles"] == 6
    assert ran.said["values"] == [4.0 + 4 * n for n in range(6)]
    assert 0 < ran.said["lost"] <= 2
    assert ran.stderr.count("compiling without the cache") == 1


SLOW_READER = (
    """
from coldstart.client import client as _client
_fetch = _client.CacheClient.fetch
def _paused(self, *args, **limits):
    open(os.environ["FETCHING"], "w").close()
    while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
    return _fetch(self, *args, **limits)
_client.CacheClient.fetch = _paused
"""
    + COMPUTE
)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_daemon_lost_while_bytes_are_fetched(
    program: Any, daemon: Any, tmp_path: Path, how: str
) -> None:
    """T36: the bytes come by stream (no shared volume), and the daemon goes between offer and fetch."""
    program(COMPUTE, COLDSTART_ADDRESS=daemon.address)
    assert len(daemon.artifacts()) == 1
    fetching, go = tmp_path / "fetching", tmp_path / "go"
    reader = start(
        SLOW_READER,
        COLDSTART_ADDRESS=daemon.address,
        COLDSTART_VOLUME_ROOT=str(tmp_path),  # not the daemon's: the nonce isn't there
        COLDSTART_STRICT="0",
        FETCHING=str(fetching),
        GO=str(go),
    )
    _until(fetching.exists)
    daemon.signal(getattr(signal, how))
    go.touch()
    try:
        ran = finish(reader)
    finally:
        if how == "SIGSTOP":
            daemon.signal(signal.SIGCONT)
    assert ran.code == 0, ran.stderr
    assert ran.said["compiles"] == 1
    assert ran.said["lost"] <= 2
    assert ran.stderr.count("compiling without the cache") == 1


@ON_EVERY_STACK
def test_bytes_come_by_stream_where_no_volume_is_shared(
    program: Any, daemon: Any, tmp_path: Path
) -> None:
    address = {"COLDSTART_ADDRESS": daemon.address, "COLDSTART_VOLUME_ROOT": str(tmp_path)}
    first, second = program(COMPUTE, **address).said, program(COMPUTE, **address).said
    assert (first["compiles"], second["compiles"]) == (1, 0)
    assert first["value"] == second["value"]


FORK_PAIR = """
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
pid = os.fork()
factor = 3 if pid == 0 else 2
@custom_partitioning
def scaled(x): return x * factor
def partition(mesh, shapes, result):
    return mesh, (lambda x: x * factor), result.sharding, (shapes[0].sharding,)
scaled.def_partition(
    infer_sharding_from_operands=lambda mesh, shapes, result: shapes[0].sharding,
    partition=partition, sharding_rule="i -> i")
sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), P("x"))
out = np.asarray(jax.jit(lambda x: scaled(x))(jax.device_put(np.ones(8, np.float32), sharding)))
assert (out == factor).all(), out
if pid == 0:
    import coldstart
    coldstart.flush()
    os._exit(0 if [str(r) for _, r in coldstart.report().lookups] == ["pointer"] else 9)
say(child=os.waitpid(pid, 0)[1], ends=[str(r) for _, r in __import__("coldstart").report().lookups])
"""


@ON_EVERY_STACK
def test_forked_workers_with_different_partition_functions_never_share(
    program: Any, daemon: Any
) -> None:
    """H7: their modules can be byte-identical, pointer included."""
    ran = program(FORK_PAIR, COLDSTART_ADDRESS=daemon.address)
    assert ran.said["child"] == 0
    assert ran.said["ends"] == ["pointer"]
    assert daemon.artifacts() == []


def test_threads_of_one_process_share_one_compile(program: Any, daemon: Any) -> None:
    ran = program(
        """
import threading
def one():
    jax.jit(lambda x: jnp.sort(jnp.tanh(x @ x.T)).sum())(np.ones((16, 16), np.float32))
threads = [threading.Thread(target=one) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
import coldstart
say(ends={f"{o}/{r}": n for (o, r), n in coldstart.report().lookups.items()}, compiles=len(COMPILES))
""",
        COLDSTART_ADDRESS=daemon.address,
    )
    assert ran.said["compiles"] == 1
    assert ran.said["ends"].pop("miss/cold") == 1


def test_the_daemon_runs_without_jax(daemon: Any) -> None:
    source = (
        "import sys\nimport coldstart.server.app\n"
        "sys.exit(any(m == 'jax' or m.startswith(('jax.', 'jaxlib')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", source], env=os.environ).returncode == 0


def test_two_daemons_in_turn_keep_what_was_published(daemon: Any, program: Any) -> None:
    program(COMPUTE, COLDSTART_ADDRESS=daemon.address)
    daemon.kill()
    daemon.start()
    assert program(COMPUTE, COLDSTART_ADDRESS=daemon.address).said["compiles"] == 0


def test_a_daemon_that_comes_back_is_used_again(daemon: Any, program: Any) -> None:
    """After a failure the foreground doesn't ask; a background thread notices the return."""
    daemon.stop()
    source = """
import coldstart
from coldstart.client import jax_hook
jax.jit(lambda x: x + 1)(np.ones(3, np.float32))
print("GONE", flush=True)
sys.stdin.readline()
deadline = time.monotonic() + 60
while jax_hook.installed().session().link._client is None and time.monotonic() < deadline:
    time.sleep(0.05)
jax.jit(lambda x: x + 2)(np.ones(3, np.float32))
say(ends=sorted(f"{o}/{r}" for o, r in coldstart.report().lookups))
"""

    env = {**os.environ, "COLDSTART_ADDRESS": daemon.address, "COLDSTART_STRICT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    assert process.stdout is not None
    watchdog = threading.Timer(100, process.kill)
    watchdog.start()
    try:
        assert process.stdout.readline() == "GONE\n"
        daemon.start()
        out, _ = process.communicate("\n")
    finally:
        watchdog.cancel()
    assert "miss/cold" in out, out


GIVES_UP = (
    """
_slow = _compiler.backend_compile_and_load
def _waits(*args, **kwargs):
    open(os.environ["LEADING"], "w").close()
    while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
    return _slow(*args, **kwargs)
if os.environ["ROLE"] == "leader": _compiler.backend_compile_and_load = _waits
"""
    + COMPUTE
)


def test_a_wait_that_is_not_worth_it_ends_in_a_compile_that_is_published(
    daemon: Any, tmp_path: Path
) -> None:
    """The leader lives and takes its time; whoever gives up publishes, and the leader adopts that."""
    daemon.stop()
    daemon.start("--wait-seconds", "1")
    leading, go = tmp_path / "leading", tmp_path / "go"
    env = {"COLDSTART_ADDRESS": daemon.address, "LEADING": str(leading), "GO": str(go)}
    leader = start(GIVES_UP, ROLE="leader", **env)
    _until(leading.exists)
    waiter = finish(start(GIVES_UP, ROLE="waiter", **env)).said
    assert waiter["ends"] == ["timeout/deadline"]
    assert waiter["compiles"] == 1
    third = finish(start(GIVES_UP, ROLE="waiter", **env)).said
    assert (third["compiles"], third["ends"]) == (0, ["hit/ok"])
    go.touch()
    led = finish(leader).said
    assert led["ends"] == ["miss/cold"]
    assert led["value"] == waiter["value"] == third["value"]
    assert len(daemon.artifacts()) == 1
