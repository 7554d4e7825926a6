"""Starvation: when the machine itself kept a process waiting. Nobody's fault, and told apart from ours.

Linux counts for each thread how long it could have run and didn't (`schedstat`). A daemon one of whose threads waits
for most of a second is as good as frozen to clients whose patience is a second, and so is a client. The harness runs
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


def waited_seconds(pid: int) -> dict[int, float]:
    """Of each thread: how long it could have run and didn't, so far. Empty: gone, or a kernel that doesn't count."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError, IndexError, ValueError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


class Window:
    """The last second of one process."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float, dict[int, float]]] = []  # process, when, waited by then

    def look(self, pid: int, now: float, waited: dict[int, float]) -> float | None:
        """Since when one of its threads has waited for SHARE of the time; None: none has."""
        self._seen = [seen for seen in self._seen if seen[0] == pid][-LOOKS:]
        self._seen.append((pid, now, waited))
        _, since, before = self._seen[0]
        most = max(
            (so_far - before.get(thread, 0.0) for thread, so_far in waited.items()), default=0.0
        )
        return since if most > SHARE * LOOK_SECONDS * LOOKS else None


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
                if process is None:
                    continue
                waited = waited_seconds(process.pid)
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
