"""A real daemon process on a temporary socket and disk, and JAX programs run as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="the client's tests need JAX")

import coldstart
from coldstart.client.client import CacheClient
from coldstart.rpc.v1 import admin_pb2

# Runs before a program: counts the compiler's own calls, beneath everything of ours.
PRELUDE = """
import json, os, sys, time
import jax
from jax._src import compiler as _compiler
COMPILES = []
_beneath = _compiler.backend_compile_and_load
def _counted(*args, **kwargs):
    COMPILES.append(str(args[1].operation.attributes["sym_name"]))
    return _beneath(*args, **kwargs)
_compiler.backend_compile_and_load = _counted
import jax.numpy as jnp, numpy as np
def say(**facts): print("SAID " + json.dumps(facts), flush=True)
"""


@dataclass
class Ran:
    """How a program ended."""

    code: int
    stdout: str
    stderr: str
    said: dict[str, Any] = field(default_factory=dict)


class Daemon:
    """One daemon process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/d.sock"
        self.store = folder / "store"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "coldstart.cli.main", "daemon"]
        command += ["--listen", self.address, "--store", f"disk://{self.store}"]
        command += ["--ready-file", str(ready), *flags]
        log = (self.folder / "daemon.log").open("ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 30
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "daemon.log").read_text())
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def client(self) -> CacheClient:
        return CacheClient(self.address, holder="test")

    def stats(self) -> admin_pb2.StatsReply:
        client = self.client()
        try:
            return client.stats()
        finally:
            client.close()

    def artifacts(self) -> list[Path]:
        return sorted(self.store.rglob("*.csa"))


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that answers, stopped at the end."""
    found = Daemon(tmp_path_factory.mktemp("d"))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def hook(daemon: Daemon) -> Iterator[Any]:
    """The hook in this process, on `daemon`; taken out at the end."""
    import jax

    from coldstart.client import jax_hook

    jax.clear_caches()
    assert coldstart.install(daemon.address, strict=True)
    yield jax_hook.installed()
    coldstart.uninstall()
    jax.clear_caches()


@pytest.fixture
def compiles() -> Iterator[list[str]]:
    """Names of the modules that the compiler itself was given in this process, beneath everything of ours."""
    from jax._src import compiler

    names: list[str] = []
    beneath = compiler.backend_compile_and_load

    def counted(*args: Any, **kwargs: Any) -> Any:
        names.append(str(args[1].operation.attributes["sym_name"]).strip('"'))
        return beneath(*args, **kwargs)

    compiler.backend_compile_and_load = counted
    yield names
    compiler.backend_compile_and_load = beneath


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Ran]:
    """Run source text as a process of its own, with PRELUDE before it."""

    def run(
        source: str, *, prelude: str = PRELUDE, check: bool = True, seconds: float = 90, **env: str
    ) -> Ran:
        ran = finish(start(source, prelude=prelude, **env), seconds)
        if check:
            assert ran.code == 0, ran.stderr
        return ran

    return run


def start(source: str, *, prelude: str = PRELUDE, **env: str) -> subprocess.Popen[str]:
    """Start a program; `finish` waits for it."""
    environ = {**os.environ, **env}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", prelude + source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in environ.items() if value != ""},
    )


def finish(process: subprocess.Popen[str], seconds: float = 90) -> Ran:
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"still running after {seconds} s\n{stdout}\n{stderr}") from None
    ran = Ran(process.returncode, stdout, stderr)
    for line in stdout.splitlines():
        if line.startswith("SAID "):
            ran.said.update(json.loads(line[5:]))
    return ran
