"""ServerProcess: a real server on a free port, for tests that start, stop, freeze, kill and starve it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

START_SECONDS = 20.0


def free_port() -> int:
    """Below what a Redis cluster's nodes can use: they talk to each other 10 000 above their port."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_000:
            return port


class ServerProcess:
    """One server, ended by pid. It starts again after `stop`, on the same port."""

    name: ClassVar[str]  # of its log, and for people

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def run(self, command: Sequence[str]) -> Self:
        """Until it answers."""
        written = self.folder / f"{self.name}.log"
        with written.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self._process.poll() is None, written.read_text()
            assert time.monotonic() < deadline, f"{self.name} did not answer"
            time.sleep(0.01)  # it tells nobody when it is ready
        return self

    def answers(self) -> bool:
        raise NotImplementedError

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        self._process.wait(20)
        self._process = None

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
