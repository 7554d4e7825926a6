"""Outbox: what can wait until after the program runs again. Publishing and counting happen here.

One thread per process, a bounded queue. At exit it is emptied for as long as the daemon shows that it is alive;
nothing is worth more than that.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from coldstart.client.link import Link
from coldstart.errors import ColdstartError, DaemonError

log = logging.getLogger("coldstart")

MAX_WAITING = 1024  # further ones are dropped and counted
MAX_WAITING_BYTES = 1 << 30  # that jobs hold; one alone may hold more
FLUSH_SECONDS = 60.0


class Outbox:
    """Runs jobs one after the other, in the background. A job may raise any ColdstartError."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._pid = os.getpid()
        self._jobs: queue.Queue[tuple[str, Callable[[], None], int]] = queue.Queue(MAX_WAITING)
        self._held_bytes = 0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self.dropped = 0
        self.failed = 0

    def put(self, what: str, job: Callable[[], None], holds_bytes: int = 0) -> bool:
        """Queue a job; `what` names it in a log line if it fails. False: too much waits, and it was dropped.

        Args:
            holds_bytes: of memory, until it is done.
        """
        with self._lock:
            if self._held_bytes and self._held_bytes + holds_bytes > MAX_WAITING_BYTES:
                self.dropped += 1
                return False
            if self._thread is None and not self._begin():
                self.dropped += 1
                return False
            self._held_bytes += holds_bytes
        try:
            self._jobs.put_nowait((what, job, holds_bytes))
        except queue.Full:
            self.dropped += 1
            self._let_go(holds_bytes)
            return False
        return True

    def _begin(self) -> bool:
        """Start the thread. False: none can be started now, so nothing may wait for it either."""
        thread = threading.Thread(target=self._run, name="coldstart-outbox", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            log.info("nothing can be sent: %s", exc)
            return False
        self._thread = thread
        atexit.register(self.flush)
        return True

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until everything is sent, at most `seconds`, and only while the daemon answers."""
        if os.getpid() != self._pid:
            return True  # in a forked child: the parent sends, nothing here would
        deadline = time.monotonic() + seconds
        asked = time.monotonic()
        while self._jobs.unfinished_tasks:
            if time.monotonic() > deadline:
                return False
            if time.monotonic() - asked > 1.0:
                try:
                    self._link.client().hello(self._link.patience)
                except ColdstartError:
                    return False
                asked = time.monotonic()
            time.sleep(0.005)
        return True

    def _run(self) -> None:
        while True:
            what, job, holds_bytes = self._jobs.get()
            try:
                job()
            except DaemonError as exc:
                self.failed += 1
                self._link.mark_down(exc, 0.0)
                log.info("%s: not sent: %s", what, exc)
            except ColdstartError as exc:
                self.failed += 1
                log.warning("%s: %s", what, exc)
            except Exception:
                self.failed += 1
                log.exception("%s", what)
            finally:
                self._let_go(holds_bytes)
                self._jobs.task_done()

    def _let_go(self, holds_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= holds_bytes
