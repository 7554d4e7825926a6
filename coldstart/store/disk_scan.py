"""What a disk store holds, read from its index a shard at a time, so that no walk over a large store holds a lock."""

from __future__ import annotations

import os

from coldstart.errors import InvalidRequest
from coldstart.store.disk_index import DiskIndex
from coldstart.store.disk_layout import Layout
from coldstart.store.kept import Kept
from coldstart.store.names import check_key


def shards(layout: Layout) -> list[str]:
    """Blocking."""
    return sorted(name for name in os.listdir(layout.keys) if len(name) == 2)


def in_shard(layout: Layout, index: DiskIndex, shard: str) -> list[Kept]:
    """The sound entries of one shard. Blocking; reads each index entry, and no object."""
    try:
        names = os.listdir(layout.keys / shard)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for key in sorted(names):
        try:
            check_key(key)
        except InvalidRequest:
            continue  # a stranger's
        for entry in index.entries(key)[0]:
            try:
                facts = os.stat(entry.object)
            except FileNotFoundError:
                continue  # evicted a moment ago
            found.append(Kept(entry.header, facts.st_size, facts.st_mtime))
    return found
