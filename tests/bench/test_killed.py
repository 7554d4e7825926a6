"""A bench that is killed outright: nothing that it started goes on."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from coldstart.demo import processes

ENDS_SECONDS = 60.0  # of which a daemon may drain for ten


def below(pid: int) -> list[int]:
    """Every process that was started by that one, or by one of those."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = list(children.get(pid, ()))
    for child in found:
        found += children.get(child, ())
    return found


def commands(pids: list[int]) -> str:
    return " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)


def test_daemon_and_client_of_a_killed_bench_end(tmp_path: Path) -> None:
    environ = processes.plain_environment() | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "coldstart.cli.main", "bench", "load", "--seconds=600"]
    with ExitStack() as stack, (tmp_path / "err").open("wb") as err:
        bench = subprocess.Popen(command, env=environ, stderr=err)
        stack.callback(bench.wait)
        stack.callback(bench.kill)
        deadline = time.monotonic() + ENDS_SECONDS
        while "coldstart.bench.load_client" not in commands(started := below(bench.pid)):
            assert bench.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)  # it tells nobody that it has started one
        assert "coldstart.cli.main" in commands(started)
        handles = {pid: os.pidfd_open(pid) for pid in started}
        for handle in handles.values():
            stack.callback(os.close, handle)
        bench.kill()
        left = ended(handles, ENDS_SECONDS)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left


def ended(handles: dict[int, int], seconds: float) -> list[int]:
    """Waits; the processes that are still there."""
    deadline = time.monotonic() + seconds
    left = dict(handles)
    while left and time.monotonic() < deadline:
        readable, _, _ = select.select(list(left.values()), [], [], 1.0)
        left = {pid: handle for pid, handle in left.items() if handle not in readable}
    return list(left)


@pytest.mark.parametrize("ends", ["kindly", pytest.param("by force", marks=pytest.mark.long)])
def test_a_tied_process_is_told_and_then_made_to_end(tmp_path: Path, ends: str) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import signal, sys, time\n"
        "if sys.argv[1] == 'by force': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "assert sys.stdin.read() == ''\n"
        "print('here', flush=True)\n"
        "time.sleep(600)\n"
    )
    environ = processes.plain_environment() | {"PYTHONPATH": str(tmp_path)}
    process = processes.start("stubborn", [ends], environ, tmp_path, "one")
    try:
        deadline = time.monotonic() + ENDS_SECONDS
        while "here" not in (tmp_path / "one.out").read_text():
            assert process.poll() is None, (tmp_path / "one.err").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert process.stdin is not None
        process.stdin.close()  # as the kernel does it for who is killed
        process.wait(ENDS_SECONDS)
        wanted = signal.SIGTERM if ends == "kindly" else signal.SIGKILL
        assert process.returncode == -wanted
    finally:
        process.kill()
        process.wait()
