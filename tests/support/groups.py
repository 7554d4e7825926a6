"""Members of a `jax.distributed` job on CPUs, as processes of their own under one daemon each or all under one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import PRELUDE, Daemon, Ran, finish, start

from coldstart.client import session
from coldstart.client.client import SMALL_CALL_SECONDS
from coldstart.config import DaemonConfig

PROGRAMS = Path(__file__).parent.parent / "e2e"

# What a fault may cost by the wait table: a daemon that is gone or silent, an artifact that is known to exist and
# whose bytes don't come, a lease whose holder is gone.
WAIT_SECONDS = (
    2 * SMALL_CALL_SECONDS + session.LEAST_FETCH_SECONDS + DaemonConfig((), ()).lease_seconds
)
# Imports, the job's meeting, two compiles each, on a busy machine.
WORK_SECONDS = 90.0

# Each member says what it compiled and loaded, by the digest of the module that the compiler was given, or that the
# artifact was made of.
MEMBER_PRELUDE = (
    PRELUDE
    + """
import hashlib
import coldstart
import group_programs as programs
from coldstart.client import gates as _gates, identify as _identify, jax_internals as _internals
from coldstart.client.normal_form import normal_form as _normal_form
from coldstart.identity import rules as _rules
RAN = []
_off = {rule.name for rule in _rules.RULES} - _identify.NOISE
_seen = _compiler.backend_compile_and_load
def _digested(backend, module, *args, **kwargs):
    normal = _normal_form(_internals.clone(module), one_device=False, rules_off=_off)[0]
    RAN.append(hashlib.sha256(normal).hexdigest())
    return _seen(backend, module, *args, **kwargs)
_compiler.backend_compile_and_load = _digested
_check, _load, _last = _gates.check, _internals.load, []
def _checked(header, *args):
    _check(header, *args)
    _last[:] = [header.module_digest]
def _loaded(*args):
    executable = _load(*args)
    RAN.extend(_last)
    return executable
_gates.check, _internals.load = _checked, _loaded
RANK = int(os.environ["RANK"])
def at(moment):
    # Lets the test act between two steps of one member.
    if os.environ.get("PAUSE") == moment:
        open(os.environ["PAUSED"], "w").close()
        while not os.path.exists(os.environ["GO"]): time.sleep(0.01)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    os.environ["COORDINATOR"], int(os.environ["COUNT"]), RANK, initialization_timeout=60)
DEVICES = jax.devices()
def ends(): return sorted(f"{o}/{r}" for o, r in coldstart.report().lookups)
"""
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# A member's work. Where it is told to, it stops at a moment until the test lets it go on.
RUN = """
from coldstart.client import client as _client
_fetch = _client.CacheClient.fetch
def _paused(*args, **limits):
    at("fetch")
    return _fetch(*args, **limits)
_client.CacheClient.fetch = _paused
at("lookup")
executable = programs.lower(DEVICES).compile()
if os.environ.get("PAUSE") == "published": coldstart.flush()
at("published")
wrong = programs.wrong(DEVICES, executable)
say(wrong=wrong, compiles=COMPILES, ran=RAN, ends=ends(), lost=coldstart.report().lost_seconds)
from coldstart.client import jax_hook
jax_hook.installed().session().group.close()
say(differs=coldstart.report().group_mismatches)
"""


class Job:
    """One run of a job."""

    def __init__(self, source: str, count: int, devices: int) -> None:
        """`devices` on each of `count` members, which run MEMBER_PRELUDE and then `source`."""
        self.source, self.count = source, count
        self._env = {
            "COORDINATOR": f"127.0.0.1:{free_port()}",
            "COUNT": str(count),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
            ),
        }
        self._running: list[subprocess.Popen[str]] = []
        self.ran: list[Ran] = []

    def start(self, address: str, **env: str) -> None:
        """The next member, under the daemon at `address`."""
        rank = str(len(self._running))
        env = {**self._env, "RANK": rank, "COLDSTART_ADDRESS": address, **env}
        self._running.append(start(self.source, prelude=MEMBER_PRELUDE, **env))

    def finish(self, seconds: float = WORK_SECONDS + WAIT_SECONDS) -> list[Ran]:
        """How the members ended; one that still runs then fails the test."""
        assert len(self._running) == self.count
        self.ran = [finish(process, seconds) for process in self._running]
        for one in self.ran:
            assert one.code == 0, one.stderr
        return self.ran

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(source: str, addresses: list[str], devices: int, **env: str) -> list[Ran]:
    """A job under the daemons at `addresses`, one for each member; strict."""
    with Job(source, len(addresses), devices) as job:
        for address in addresses:
            job.start(address, COLDSTART_STRICT="1", **env)
        return job.finish()


def one_program(ran: list[Ran]) -> None:
    """Every member computed what is right, with an executable of one and the same module."""
    assert [one.said["wrong"] for one in ran] == [[]] * len(ran)
    assert [len(one.said["ran"]) for one in ran] == [1] * len(ran)
    assert len({one.said["ran"][0] for one in ran}) == 1
    assert [one.said["differs"] for one in ran] == [0] * len(ran)


def compiles(ran: list[Ran]) -> list[int]:
    """How many compiles each member had."""
    return [len(one.said["compiles"]) for one in ran]


@pytest.fixture
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons, on a store of their own, on a copy of another's or on the very folder of one."""
    made: list[Daemon] = []

    def start(*, store: Path | None = None, copy: Path | None = None) -> Daemon:
        daemon = Daemon(tmp_path_factory.mktemp("d"))
        made.append(daemon)
        daemon.store = store or daemon.store
        if copy is not None:
            shutil.copytree(copy, daemon.store)
        daemon.start()
        return daemon

    yield start
    for daemon in made:
        daemon.stop()
