"""History: what was counted minute by minute, in a small SQLite file that survives a restart.

A row is what came in since the row before, so that rows of several daemons, and of one that was restarted, add up.
The file is a convenience: where it can't be written, the page shows what this process remembers, and nothing else
suffers. Blocking; the daemon calls it in a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("coldstart.server")

MAX_ROWS = 50_000  # 34 days of minutes of one daemon, some 15 MB
STEP_SECONDS = 60
BUSY_SECONDS = 2.0

_TABLE = """
CREATE TABLE IF NOT EXISTS minutes (unix INTEGER NOT NULL, counts TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_time ON minutes (unix);
"""


@dataclass(frozen=True, slots=True)
class Point:
    """Sums over one step."""

    unix_seconds: int  # when the step began
    counts: dict[str, float]


class History:
    """One file, or memory where there is none. Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        self._lost = self._failed = ""  # why there is no file; what the last call ran into
        self._lock = threading.Lock()
        self._before: Counter[str] = Counter()
        try:
            self._database = _opened(path)
        except (sqlite3.Error, OSError) as exc:
            self._lost = f"history at {path} can't be kept: {exc}; it is lost at a restart"
            log.warning("%s", self._lost)
            self._database = _opened(None)

    @property
    def trouble(self) -> str:
        """What is wrong with it, for people; "" where nothing is."""
        return self._lost or self._failed

    def add(self, unix_seconds: float, totals: Mapping[str, float]) -> None:
        """Write down what came since the last call. `totals` only grow while this process lives."""
        step = int(unix_seconds) // STEP_SECONDS * STEP_SECONDS
        with self._lock:
            now = Counter(dict(totals))
            came = {
                name: n - self._before[name] for name, n in now.items() if n > self._before[name]
            }
            if not came:
                return
            try:
                with self._database:
                    self._database.execute(
                        "INSERT INTO minutes VALUES (?, ?)", (step, json.dumps(came))
                    )
                    self._database.execute(
                        "DELETE FROM minutes WHERE rowid <= (SELECT max(rowid) FROM minutes) - ?",
                        (MAX_ROWS,),
                    )
            except sqlite3.Error as exc:
                self._failed = f"history can't be written: {exc}"
                log.warning("%s", self._failed)
                return  # the next row has it
            self._failed = ""
            self._before = now

    def points(self, since_unix: float, step_seconds: int) -> list[Point]:
        """Sums from then on, in steps of so many seconds; steps in which nothing was counted are left out."""
        step_seconds = max(STEP_SECONDS, step_seconds)
        sums: dict[int, Counter[str]] = {}
        with self._lock:
            try:
                rows = self._database.execute(
                    "SELECT unix, counts FROM minutes WHERE unix >= ? ORDER BY unix",
                    (int(since_unix),),
                ).fetchall()
            except sqlite3.Error as exc:
                self._failed = f"history can't be read: {exc}"
                log.warning("%s", self._failed)
                return []
        for unix, text in rows:
            at = unix // step_seconds * step_seconds
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # a stranger's row
                counts = {str(name): float(n) for name, n in json.loads(text).items()}
                sums.setdefault(at, Counter()).update(counts)
        return [Point(at, dict(counts)) for at, counts in sorted(sums.items())]

    def close(self) -> None:
        with self._lock:
            self._database.close()


def _opened(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path or ":memory:", timeout=BUSY_SECONDS, check_same_thread=False)
    try:
        database.executescript(_TABLE)
    except BaseException:
        database.close()
        raise
    return database
