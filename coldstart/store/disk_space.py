"""Space: how much a store holds, and what to evict when there is no more room.

Built from the file system's own words (names, sizes, modification times), and kept fresh by them: a shard folder
is read again when its modification time moved. So several processes on one root see each other's files, a restart
needs no journal, and nothing here can disagree with the disk for long. An object's modification time is its last
use.

What counts against the limit: objects, key records, quarantine and unpublished files by their size, and a flat
INDEX_BYTES for the index entry of each object.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coldstart.store.disk_index import is_object_name
from coldstart.store.disk_layout import Layout, remove
from coldstart.store.disk_tmp import TempFolder

INDEX_BYTES = 4096
# File systems stamp with the kernel's tick: a folder that changed this recently may change again unseen.
SETTLE_NS = 50_000_000
QUARANTINE_FILES = 16


@dataclass(frozen=True, slots=True)
class Usage:
    """What a store holds."""

    bytes: int  # everything that counts against the limit
    count: int  # artifacts
    limit_bytes: int


@dataclass(slots=True)
class _Shard:
    changed_ns: int = -1  # the folder's modification time before it was read; -1: read it again
    files: dict[str, int] = field(default_factory=dict)  # name -> size
    newest_ns: int = 0  # the latest of their modification times


class Space:
    """Accounting of one store in one process. Not thread-safe: DiskTier holds its space lock around every call."""

    def __init__(self, layout: Layout, temps: TempFolder, limit_bytes: int) -> None:
        self._layout = layout
        self._temps = temps
        self.limit_bytes = limit_bytes
        self._objects: dict[str, _Shard] = {}
        self._records: dict[str, _Shard] = {}
        self._oldest: deque[tuple[int, Path]] = deque()  # last use, object; refilled when empty

    def usage(self) -> Usage:
        """As of now. A few hundred stat calls once everything has been read."""
        # Unpublished files first: one that is renamed meanwhile is then counted twice, never not at all.
        pending = self._temps.sizes()
        kept_aside = sum(size for _, size in self._quarantined())
        _refresh(self._layout.objects, self._objects, is_object_name)
        _refresh(self._layout.records, self._records, lambda name: name.endswith(".json"))
        count = sum(len(shard.files) for shard in self._objects.values())
        used = sum(pending) + kept_aside + INDEX_BYTES * (count + len(pending))
        for shards in (self._objects, self._records):
            used += sum(sum(shard.files.values()) for shard in shards.values())
        return Usage(used, count, self.limit_bytes)

    def latest_use_ns(self) -> int:
        """Of all objects, as of the last look."""
        return max((shard.newest_ns for shard in self._objects.values()), default=0)

    def make_room(self, need_bytes: int, evict: Callable[[Path], bool]) -> bool:
        """Evict until `need_bytes` more fit; False if they can't. `evict` says False for what must stay."""
        fillings = 0
        while (over := self.usage().bytes + need_bytes - self.limit_bytes) > 0:
            if self._drop_quarantined(1):
                continue
            if not self._oldest:
                if fillings == 2:  # twice: all that was in the first may have been used since
                    return False
                self._refill()
                fillings += 1
            while over > 0 and self._oldest:
                last_use_ns, path = self._oldest.popleft()
                try:
                    facts = os.stat(path)
                except FileNotFoundError:
                    continue
                if facts.st_mtime_ns > last_use_ns:
                    continue  # used since the queue was filled; comes again with the next filling
                if evict(path):
                    over -= facts.st_size + INDEX_BYTES
                    fillings = 0
        return True

    def trim_quarantine(self, limit_bytes: int) -> None:
        """Keep the newest bad copies, a few and not too large."""
        kept = self._quarantined()
        while len(kept) > QUARANTINE_FILES or sum(size for _, size in kept) > limit_bytes:
            remove(kept.pop(0)[0])

    def _refill(self) -> None:
        # Asked afresh: a use moves the object's time and not its folder's, so what was read may be stale.
        found = []
        for name, shard in self._objects.items():
            for file in shard.files:
                path = self._layout.objects / name / file
                try:
                    found.append((os.stat(path).st_mtime_ns, path))
                except FileNotFoundError:
                    continue
        self._oldest = deque(sorted(found))

    def _quarantined(self) -> list[tuple[Path, int]]:
        """Oldest first: names begin with the time."""
        found = []
        for name in sorted(os.listdir(self._layout.quarantine)):
            path = self._layout.quarantine / name
            try:
                found.append((path, os.stat(path).st_size))
            except FileNotFoundError:
                continue
        return found

    def _drop_quarantined(self, count: int) -> int:
        return sum(remove(path) for path, _ in self._quarantined()[:count])


def _refresh(folder: Path, shards: dict[str, _Shard], wanted: Callable[[str], bool]) -> None:
    seen = set()
    for name in os.listdir(folder):
        if len(name) != 2:
            continue  # a stranger's
        path = folder / name
        try:
            changed_ns = os.stat(path).st_mtime_ns
            shard = shards.setdefault(name, _Shard())
            seen.add(name)
            if shard.changed_ns == changed_ns:
                continue
            settled = time.time_ns() - changed_ns > SETTLE_NS
            shard.files, shard.newest_ns = _listing(path, wanted)
            shard.changed_ns = changed_ns if settled else -1
        except (FileNotFoundError, NotADirectoryError):
            shards.pop(name, None)
    for name in shards.keys() - seen:
        del shards[name]


def _listing(folder: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, int], int]:
    """Sizes by name, and the latest modification time."""
    found: dict[str, int] = {}
    newest_ns = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if not wanted(entry.name):
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            found[entry.name] = facts.st_size
            newest_ns = max(newest_ns, facts.st_mtime_ns)
    return found, newest_ns
