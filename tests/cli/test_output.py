"""Where output can't go, and Ctrl-C: one line, the right exit code, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FULL = Path("/dev/full")


def run(*args: str, stdout: object, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coldstart.cli.main", *args],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )


def start_daemon(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "coldstart.cli.main", "daemon", f"--listen=unix://{folder}/s"]
    command += [f"--store=disk://{folder}/store", f"--ready-file={folder}/ready"]
    daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (folder / "ready").exists():
        assert daemon.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return daemon


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [("--version",), ("--help",), ("explain", "--rules", "--json")])
def test_a_full_disk_behind_stdout_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    with FULL.open("w") as full:
        done = run(*command, stdout=full, home=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "coldstart: can't write the output: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_stats_into_a_full_disk(tmp_path: Path, more: tuple[str, ...]) -> None:
    daemon = start_daemon(tmp_path)
    try:
        with FULL.open("w") as full:
            done = run("stats", f"--address=unix://{tmp_path}/s", *more, stdout=full, home=tmp_path)
    finally:
        daemon.terminate()
        daemon.wait(20)
    assert done.returncode == 1
    assert done.stderr == "coldstart: can't write the output: No space left on device\n"


def test_a_reader_that_has_enough_sees_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run("--help", stdout=writing, home=tmp_path)
    finally:
        os.close(writing)
    assert done.stderr == ""


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    """While it waits for a daemon that takes the connection and never answers."""
    import socket

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        command = subprocess.Popen(
            [sys.executable, "-m", "coldstart.cli.main", "stats", f"--address=unix://{tmp_path}/s"],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        connection, _ = silent.accept()  # it is under way
        other, _ = silent.accept()  # and has left its probe behind: gRPC's own connection
        command.send_signal(signal.SIGINT)
        _, words = command.communicate(timeout=30)
        connection.close()
        other.close()
    assert command.returncode == 130, words
    assert words.strip() == "coldstart: interrupted"


def test_a_daemon_that_is_told_to_stop_has_not_failed(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path)
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(20) == 0
