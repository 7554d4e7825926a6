"""Room: keeps a store under its limit. Reserves before anything is written, and evicts to be able to.

One lock of this process and one file lock are held around every decision, so that the limit holds for all processes
on one root together.

What arrives piece by piece (a *spool*) reserves as it grows, and all spools together may hold no more than a half of
the limit: what was only announced, or never finished, can't empty a store that others rely on. One spool alone may
become as large as the limit allows.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from coldstart.errors import TierFull, TierTimeout, TooLarge
from coldstart.store.disk_index import DiskIndex
from coldstart.store.disk_layout import LOCK_SECONDS, Layout, flocked, unlink
from coldstart.store.disk_space import INDEX_BYTES, Space, Usage
from coldstart.store.disk_tmp import SPOOL_SUFFIX, TempFolder
from coldstart.store.pins import Pins
from coldstart.store.recorder import Recorder

EVICTED_KEYS = 4096  # remembered so that a later miss can say why
# A process that held the limit's lock for all of LOCK_SECONDS is given less time, for a while.
DOUBTFUL_SECONDS, DOUBT_LASTS_SECONDS = 0.5, 60.0
SPOOLS_SHARE = 2  # all spools together: limit / this


class Room:
    """One store's room, as one process sees it. Blocking; thread-safe."""

    def __init__(
        self,
        layout: Layout,
        temps: TempFolder,
        index: DiskIndex,
        pins: Pins,
        limit_bytes: int,
        recorder: Recorder,
        tier: str,
    ) -> None:
        self._layout = layout
        self._temps = temps
        self._index = index
        self._pins = pins
        self._limit_bytes = limit_bytes
        self._recorder = recorder
        self._tier = tier
        self._lock = threading.Lock()  # around _space; before the limit flock, before a key's
        self._space = Space(layout, temps, limit_bytes)
        self._doubtful_until = 0.0  # somebody who doesn't go on has the limit's lock
        self._evicted: OrderedDict[str, None] = OrderedDict()

    def usage(self) -> Usage:
        with self._lock:
            return self._space.usage()

    def latest_use_ns(self) -> int:
        with self._lock:
            return self._space.latest_use_ns()

    def trim_quarantine(self, limit_bytes: int) -> None:
        with self._lock:
            self._space.trim_quarantine(limit_bytes)

    def evicted(self, key: str) -> bool:
        """True if this process evicted an artifact of `key` and still remembers."""
        return key in self._evicted

    def stored(self, key: str) -> None:
        self._evicted.pop(key, None)

    def make(self, need_bytes: int) -> None:
        """Raises TierFull where it can't be made."""
        with self._decided():
            self._make(need_bytes)

    def reserve(self, total_bytes: int, beside_bytes: int) -> Path:
        """A temporary file of `total_bytes`, with room made for it and for `beside_bytes` more.

        Raises TooLarge, TierFull.
        """
        self._check_fits(total_bytes, beside_bytes)
        with self._decided():
            self._make(total_bytes + beside_bytes + INDEX_BYTES)
            return self._new_file(self._temps.new_path(), total_bytes)

    def open_spool(self, total_bytes: int) -> Path:
        """An empty spool for what will have `total_bytes`. Raises TooLarge, TierFull."""
        self._check_fits(total_bytes, 0)
        with self._decided():
            self._make(INDEX_BYTES)
            return self._new_file(self._temps.new_path(SPOOL_SUFFIX), 0)

    def grow_spool(self, path: Path, to_bytes: int) -> None:
        """Let a spool hold `to_bytes`. Raises TierFull: no room, or too much is arriving at once."""
        with self._decided():
            held = os.stat(path).st_size
            if to_bytes <= held:
                return
            others = sum(self._temps.sizes(SPOOL_SUFFIX)) - held
            most = self._limit_bytes // SPOOLS_SHARE
            if others and others + to_bytes > most:
                raise TierFull(
                    f"disk: what is being published at once would take more than {most} bytes, a half of the "
                    f"limit of {self._layout.root}; retry, or raise cs.limit"
                )
            self._make(to_bytes - held)
            os.truncate(path, to_bytes)  # this size is what other processes count

    @contextmanager
    def _decided(self) -> Iterator[None]:
        """Both locks. Raises TierTimeout where another process doesn't let go of its: soon, if it didn't before, or
        all that is published here would stand in line behind it for ten seconds each."""
        with self._lock:
            seconds = LOCK_SECONDS if time.monotonic() > self._doubtful_until else DOUBTFUL_SECONDS
            with ExitStack() as held:
                try:
                    held.enter_context(flocked(self._layout.limit_lock, seconds))
                except TierTimeout:
                    self._doubtful_until = time.monotonic() + DOUBT_LASTS_SECONDS
                    raise
                self._doubtful_until = 0.0
                yield

    def _check_fits(self, total_bytes: int, beside_bytes: int) -> None:
        if total_bytes + beside_bytes + INDEX_BYTES > self._limit_bytes:
            raise TooLarge(
                f"disk: an artifact of {total_bytes} bytes never fits; the limit of {self._layout.root} is "
                f"{self._limit_bytes} (cs.limit)"
            )

    def _new_file(self, path: Path, size_bytes: int) -> Path:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size_bytes)  # this size is what other processes count
        except OSError:
            unlink(path)
            raise
        finally:
            os.close(fd)
        return path

    def _make(self, need_bytes: int) -> None:
        if self._space.make_room(need_bytes, self._evict):
            return
        if self._temps.sweep() and self._space.make_room(need_bytes, self._evict):
            return
        raise TierFull(
            f"disk: no room for {need_bytes} bytes in {self._layout.root}: what is there is pinned or being "
            "written; retry, or raise cs.limit"
        )

    def _evict(self, path: Path) -> bool:
        evicted = self._index.remove_object(path, self._pins)
        if evicted is None:
            return False
        if evicted:
            self._evicted[evicted] = None
            while len(self._evicted) > EVICTED_KEYS:
                self._evicted.popitem(last=False)
        self._recorder(self._tier, "evict", "ok", 0.0)
        return True
