"""The demo as a user runs it: real participants under both caches, a daemon that stays, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coldstart.client.client import CacheClient
from coldstart.demo.processes import plain_environment
from coldstart.errors import DaemonAbsent

GOLDEN = json.loads((Path(__file__).parent / "golden" / "demo.json").read_text())

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short temporary folder for the command: a socket's path may have 103 bytes."""
    with tempfile.TemporaryDirectory(prefix="cs-demo-") as folder:
        yield Path(folder)


@pytest.fixture
def start(scratch: Path) -> Iterator[Start]:
    """Start `coldstart demo`; whatever is still there at the end is ended."""
    started: list[subprocess.Popen[str]] = []

    def demo(*options: str) -> subprocess.Popen[str]:
        environ = plain_environment() | {"TMPDIR": str(scratch), "HOME": str(scratch)}
        command = [sys.executable, "-m", "coldstart.cli.main", "demo", *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield demo
    for process in started:
        process.terminate()  # not killed: then its daemon would stay
        process.communicate(timeout=30)


def shape_of(value: Any, golden: Any) -> Any:
    if isinstance(value, dict):
        if "*" in golden:
            assert {type(v).__name__ for v in value.values()} <= {golden["*"]}
            return golden
        return {name: shape_of(v, golden.get(name)) for name, v in value.items()}
    if isinstance(value, list):
        shapes = [shape_of(v, golden[0] if golden else None) for v in value]
        assert all(shape == shapes[0] for shape in shapes)
        return shapes[:1]
    return type(value).__name__


def read_json(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The object that the command prints while it goes on."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            break
    else:
        pytest.fail(process.communicate()[1])
    data: dict[str, Any] = json.loads("".join(lines))
    return data


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_participants_under_both_caches_then_a_daemon_that_stays(
    start: Start, scratch: Path
) -> None:
    process = start("--participants=2", "--programs=1", "--json")
    data = read_json(process)
    assert shape_of(data, GOLDEN) == GOLDEN
    arms = {arm["name"]: arm for arm in data["arms"]}
    assert list(arms) == ["stock-cold", "coldstart-cold", "stock-warm", "coldstart-warm"]
    for arm in arms.values():
        assert arm["compiled"] + arm["reused"] == 4, arm
        assert arm["warnings"] == []
    # Two that start at once may both find JAX's cache empty, or one after the other.
    assert arms["stock-cold"]["compiled"] >= 3
    decode, attention = arms["coldstart-cold"]["programs"]
    assert not decode["own_fragment"]
    assert decode["compiled"] == 1, arms["coldstart-cold"]["lookups"]
    assert attention["own_fragment"]
    assert attention["compiled"] == 1  # nobody reads the fragments that the two differ in
    assert arms["stock-warm"]["compiled"] == arms["coldstart-warm"]["compiled"] == 0
    assert arms["coldstart-warm"]["lookups"] == {"hit ok": 4}
    assert data["wrong"] == 0

    client = CacheClient(data["daemon"]["addresses"][0], holder="test")
    assert client.stats().compiles == arms["coldstart-cold"]["compiled"]
    with urllib.request.urlopen(data["daemon"]["http"], timeout=10) as page:
        assert page.status == 200
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "stays up until Ctrl-C" in said
    assert gone(data["daemon"]["pid"])
    with pytest.raises(DaemonAbsent):
        client.connect()
    client.close()
    assert list(scratch.iterdir()) == []


def test_interrupted_in_the_middle_nothing_is_left(start: Start, scratch: Path) -> None:
    process = start("--participants=2", "--programs=1", "--exit")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("stock-cold:")
    deadline = time.monotonic() + 30
    while len(children := children_of(process.pid)) < 3:  # a daemon and two participants
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said.strip() == "coldstart: interrupted"
    assert all(gone(child) for child in children)
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_the_table_and_what_is_kept(start: Start, scratch: Path) -> None:
    kept = scratch / "kept"
    process = start(
        "--participants=2", "--programs=1", "--branch=dense", "--exit", f"--keep={kept}"
    )
    said, progress = process.communicate(timeout=110)
    assert process.returncode == 0, progress
    assert "measured here (CPU" in said
    assert "Wrong results: 0" in said
    assert sorted(path.name for path in scratch.iterdir()) == ["kept"]
    assert list((kept / "jax-cache").iterdir())
    process = start("--exit", f"--keep={kept}")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "is not empty" in said
    (scratch / "file").touch()
    process = start("--exit", f"--keep={scratch / 'file' / 'kept'}")
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said.count("\n")) == (2, 1)
    assert "can't be made" in said
