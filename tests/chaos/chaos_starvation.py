"""Starvation: when the machine itself kept a process waiting. Nobody's fault, and told apart from ours.

Linux counts for each thread how long it could have run and didn't (`schedstat`). A daemon's main thread is its event
loop: one that waits for most of a second is as good as frozen to clients whose patience is a second. The harness runs
the proxies; while it doesn't run, no daemon has its stores.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from chaos_log import Log

LOOK_SECONDS = 0.25
LOOKS = 4  # together a second
SHARE = 0.4  # of it, spent waiting for a core


class Watched(Protocol):
    """A daemon, whose process changes."""

    name: str
    process: Any


def waited_seconds(pid: int) -> float | None:
    """That its main thread could have run and didn't, so far; None: gone, or a kernel that doesn't count it."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class Window:
    """The last second of one process."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float, float]] = []  # process, when, waited by then

    def look(self, pid: int, now: float, waited: float) -> float | None:
        """Since when it has waited for SHARE of the time; None: it hasn't."""
        self._seen = [seen for seen in self._seen if seen[0] == pid][-LOOKS:]
        self._seen.append((pid, now, waited))
        _, since, before = self._seen[0]
        return since if waited - before > SHARE * LOOK_SECONDS * LOOKS else None


@contextlib.contextmanager
def starvation_noted(log: Log, daemons: Sequence[Watched]) -> Iterator[None]:
    """Inside, the log says which daemon was starved since when, and the harness itself."""
    over = threading.Event()
    windows = {daemon.name: Window() for daemon in daemons}

    def watch() -> None:
        before = time.monotonic()
        while not over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - before > LOOK_SECONDS + SHARE:
                for store in ("redis", "gcs"):
                    log("starved", target=store, since=before)
            before = now
            for daemon in daemons:
                process = daemon.process
                waited = None if process is None else waited_seconds(process.pid)
                if waited is not None:
                    since = windows[daemon.name].look(process.pid, now, waited)
                    if since is not None:
                        log("starved", target=daemon.name, since=since)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
