"""A daemon process, and `coldstart warm` as a process of its own on plans of `warm_programs`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coldstart.client.client import CacheClient

COLDSTART = [sys.executable, "-m", "coldstart.cli.main"]
HERE = Path(__file__).parent


@dataclass
class Daemon:
    address: str
    store: Path

    def artifacts(self) -> int:
        return len(list(self.store.rglob("*.csa")))

    def stats(self) -> Any:
        client = CacheClient(self.address, holder="test")
        try:
            return client.stats()
        finally:
            client.close()


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose leases are short, so that a dead holder is soon replaced."""
    folder = tmp_path_factory.mktemp("d")
    found, ready = Daemon(f"unix://{folder}/d.sock", folder / "store"), folder / "ready.json"
    command = [*COLDSTART, "daemon", "--listen", found.address, "--store", f"disk://{found.store}"]
    command += ["--ready-file", str(ready), "--lease-seconds", "3"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.02)
    yield found
    process.terminate()
    process.wait(20)


class Warm:
    """Starts `coldstart warm`."""

    def __init__(self, folder: Path, daemon: Daemon | None) -> None:
        self.folder = folder
        self.daemon = daemon

    def plan(self, function: str, **arguments: Any) -> Path:
        """A plan file for one function of `warm_programs`."""
        path = self.folder / f"{function}.toml"
        pairs = ", ".join(f"{name} = {value}" for name, value in arguments.items())
        path.write_text(f'programs = "warm_programs:{function}"\narguments = {{ {pairs} }}\n')
        return path

    def start(
        self, plan: Path | str, *flags: str, target: str = "cpu:16", jobs: int = 1, **env: str
    ) -> subprocess.Popen[str]:
        command = [*COLDSTART, "warm", str(plan), "--target", target, "--jobs", str(jobs), *flags]
        if self.daemon is not None:
            command += ["--address", self.daemon.address]
        search = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": search, **env},
            start_new_session=True,
        )

    def __call__(self, plan: Path | str, *flags: str, **settings: Any) -> Ran:
        return finish(self.start(plan, *flags, **settings))


@dataclass
class Ran:
    code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        """The last line of stdout, whose counts must add up."""
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        counts = ("compiled", "reused", "failed", "refused", "unshareable")
        assert sum(found[name] for name in counts) + found.get("missing", 0) == found["distinct"]
        return found


def finish(process: subprocess.Popen[str], seconds: float = 100) -> Ran:
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ran(process.returncode, stdout, stderr)


@pytest.fixture
def warm(tmp_path: Path, daemon: Daemon) -> Warm:
    return Warm(tmp_path, daemon)


@pytest.fixture
def warm_alone(tmp_path: Path) -> Warm:
    """Without a daemon."""
    return Warm(tmp_path, None)
