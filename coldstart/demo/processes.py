"""Processes that a demo starts and is sure to end: a daemon, and participants all at once.

Each runs in a session of its own, so that Ctrl-C reaches only the command, which then ends them one by one, by pid. If
the command itself is killed, each of them ends by itself (see `tied`).
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from coldstart.demo.interruption import Interruption
from coldstart.errors import ColdstartError

START_SECONDS = 30.0
STOP_SECONDS = 15.0
TIED = "coldstart.demo.tied"


def end(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> None:
    """Ask a process to end, insist after `seconds`, and reap it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def start(
    module: str, arguments: Sequence[str], environ: Mapping[str, str], folder: Path, name: str
) -> subprocess.Popen[bytes]:
    """`python -m module arguments`, its output in folder/name.out and .err; it ends with this process."""
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", TIED, module, *arguments],
            env=dict(environ),
            stdin=subprocess.PIPE,
            bufsize=0,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


def plain_environment() -> dict[str, str]:
    """This environment without settings of ours and without what would change a participant's devices or caches."""
    unwanted = ("COLDSTART_", "JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "JAX_ENABLE_COMP")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(unwanted)}
    # Each process has one CPU device, its first.
    flags = environ.pop("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if "xla_force_host_platform_device_count" not in flag]
    if kept:
        environ["XLA_FLAGS"] = " ".join(kept)
    environ["JAX_PLATFORMS"] = "cpu"
    return environ


@contextmanager
def daemon(
    folder: Path,
    store: Path,
    *options: str,
    limit: str = "",
    interruption: Interruption | None = None,
) -> Iterator[Daemon]:
    """A daemon on a socket in `folder` over a disk store; its log is folder/daemon.err."""
    url = f"disk://{store}" + (f"?cs.limit={limit}" if limit else "")
    with daemon_on(folder, [url], *options, interruption=interruption) as found:
        yield found


@contextmanager
def daemon_on(
    folder: Path,
    stores: Sequence[str],
    *options: str,
    environ: Mapping[str, str] | None = None,
    interruption: Interruption | None = None,
) -> Iterator[Daemon]:
    """A daemon on a socket in `folder` over any stores, in their order; `environ` is added to the plain one.

    Raises:
        ColdstartError: it does not start, or not in time.
    """
    ready = folder / "ready.json"
    address = f"unix://{folder}/coldstart.sock"
    arguments = ["daemon", f"--listen={address}", f"--ready-file={ready}"]
    arguments += [*(f"--store={url}" for url in stores), *options]
    whole = plain_environment() | dict(environ or {})
    process = start("coldstart.cli.main", arguments, whole, folder, "daemon")
    wait = time.sleep if interruption is None else interruption.wait
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if process.poll() is not None:
                raise ColdstartError(f"the daemon did not start: {last_words(folder, 'daemon')}")
            if time.monotonic() > deadline:
                raise ColdstartError(f"the daemon was not ready within {START_SECONDS:g} s")
            wait(0.02)  # a file has no event to wait for
        yield Daemon(process, json.loads(ready.read_text()))
    finally:
        end(process)


class Daemon:
    """A running daemon and what its ready file says."""

    def __init__(self, process: subprocess.Popen[bytes], ready: Mapping[str, Any]) -> None:
        self.process = process
        self.pid = process.pid
        self.addresses: tuple[str, ...] = tuple(ready["addresses"])
        self.http = str(ready["http"])

    @property
    def address(self) -> str:
        return self.addresses[0]

    def wait(self, interruption: Interruption) -> None:
        """Until it ends by itself. Raises KeyboardInterrupt."""
        handle = os.pidfd_open(self.pid)
        try:
            readable, _, _ = select.select([handle, interruption.fd], [], [])
        finally:
            os.close(handle)
        if interruption.fd in readable:
            raise KeyboardInterrupt


def run_all(
    module: str,
    arguments: Sequence[Sequence[str]],
    environ: Mapping[str, str],
    folder: Path,
    *,
    at_once: int,
    seconds: float,
    interruption: Interruption | None = None,
) -> list[dict[str, Any]]:
    """Run one process per item of `arguments`, at most `at_once` together; their last lines as JSON, in order.

    Raises:
        ColdstartError: one failed, or all together took longer than `seconds`; the others are ended first.
        KeyboardInterrupt: by `interruption`; all are ended first.
    """
    deadline = time.monotonic() + seconds
    waiting = list(enumerate(arguments))
    left = 0
    with ExitStack() as running, selectors.DefaultSelector() as events:
        if interruption is not None:
            events.register(interruption.fd, selectors.EVENT_READ)
        while waiting or left:
            while waiting and left < at_once:
                index, line = waiting.pop(0)
                process = start(module, line, environ, folder, str(index))
                running.callback(end, process)
                handle = os.pidfd_open(process.pid)
                running.callback(os.close, handle)
                events.register(handle, selectors.EVENT_READ, (index, process))
                left += 1
            for key, _ in events.select(max(0.0, deadline - time.monotonic())):
                if key.data is None:
                    raise KeyboardInterrupt
                events.unregister(key.fd)
                left -= 1
                index, process = key.data
                _check(index, process, folder)
            if time.monotonic() > deadline and left:
                raise ColdstartError(
                    f"{left} of {len(arguments)} processes took longer than {seconds:g} s"
                )
    return [_result(folder / f"{index}.out") for index in range(len(arguments))]


def _check(index: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.wait() == 0:
        return
    how = f"exit {process.returncode}"
    if process.returncode < 0:
        how = signal.Signals(-process.returncode).name
    raise ColdstartError(f"process {index} failed ({how}): {last_words(folder, str(index))}")


def _result(path: Path) -> dict[str, Any]:
    lines = path.read_text().splitlines()
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def last_words(folder: Path, name: str) -> str:
    """The last line that a process wrote to stderr."""
    lines = (folder / f"{name}.err").read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it said nothing"
