"""Recent: what was read of the index a moment ago, believed while nothing about its files has changed.

A hit costs a few stats here instead of reads, and where the file system answers at once (disk_locality.py) not even a
thread's turn. Believed is an entry whose key folder has the inode and modification time that it had when it was listed,
and whose object has the inode, size and modification time that it had when it was last used. Index files are immutable,
so the folder's time tells of each that comes or goes; an object's time is a stamp of its last use, so any other process
that uses or writes it makes this memory look again. A folder that had changed within the last moment before it was
listed isn't remembered: its clock is too coarse to tell what came after.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coldstart.artifact import Artifact, FilePayload, Header
from coldstart.store.disk_index import Entry

MAX_KEYS = 10_000
# A folder's clock may tick as coarsely as 10 ms; network file systems' more so.
SETTLED_NS = 100_000_000

_Facts = tuple[int, ...]


@dataclass(slots=True)
class _Known:
    path: str  # of the key's folder
    folder: _Facts
    entries: tuple[Entry, ...]
    objects: dict[Path, _Facts] = field(default_factory=dict)  # that were opened and found right


class Recent:
    """One process's memory of one store's index. Thread-safe; what it does on the disk is stat and utime."""

    def __init__(
        self, folder_of: Callable[[str], Path], clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._folder_of = folder_of
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def before(self, key: str) -> _Facts | None:
        """To be taken before the index is read, and handed to `remember`. None: not worth remembering."""
        try:
            facts = os.stat(self._folder_of(key))
        except OSError:
            return None
        if self._clock() - facts.st_mtime_ns < SETTLED_NS:
            return None
        return (facts.st_dev, facts.st_ino, facts.st_mtime_ns)

    def remember(self, key: str, before: _Facts | None, entries: list[Entry]) -> None:
        """What the index holds of `key`, all of it sound."""
        with self._lock:
            self._known.pop(key, None)
            if before is None or not entries:
                return
            self._known[key] = _Known(str(self._folder_of(key)), before, tuple(entries))
            while len(self._known) > MAX_KEYS:
                self._known.popitem(last=False)

    def opened(self, key: str, path: Path) -> None:
        """The object was opened, its header is the index's, and its use has been stamped."""
        with self._lock:
            known = self._known.get(key)
        facts = _facts_of(path)
        if known is not None and facts is not None:
            known.objects[path] = facts

    def forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)

    def entries(self, key: str) -> tuple[Entry, ...] | None:
        """What is still true; None: look."""
        known = self._true(key)
        return None if known is None else known.entries

    def headers(self, key: str) -> tuple[Header, ...] | None:
        entries = self.entries(key)
        return None if entries is None else tuple(entry.header for entry in entries)

    def artifact(self, key: str, digest: str, stamp: Callable[[], int]) -> Artifact | None:
        """The artifact, its use stamped; None: look."""
        known = self._true(key)
        if known is None:
            return None
        for entry in known.entries:
            if entry.header.digest != digest:
                continue
            size = entry.header.payload_bytes
            device, inode, total, _ = known.objects[entry.object]
            used = stamp()
            try:
                os.utime(entry.object, ns=(used, used))
            except OSError:
                return None
            known.objects[entry.object] = (device, inode, total, used)
            return Artifact(entry.header, FilePayload(entry.object, total - size, size))
        return None

    def _true(self, key: str) -> _Known | None:
        """What is known of a key, where nothing of it has changed. Whoever goes on with it takes no second look:
        another thread may have put something else in its place by then."""
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is None:
            return None
        try:
            facts = os.stat(known.path)
        except OSError:
            return None
        if (facts.st_dev, facts.st_ino, facts.st_mtime_ns) != known.folder:
            return None
        # An object may be lost without its entry; only what was opened and is there is offered.
        for entry in known.entries:
            opened = known.objects.get(entry.object)
            if opened is None or opened != _facts_of(entry.object):
                return None
        return known


def _facts_of(path: Path) -> _Facts | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
