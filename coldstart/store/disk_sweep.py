"""The janitor: a walk over a whole store that removes what crashes and strangers left.

Not needed for correctness: readers heal what they meet and eviction takes orphans like anything else. It gives
their room back sooner. Every decision is taken under the lock of the key it is about.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coldstart.errors import InvalidRequest
from coldstart.store.disk_index import DiskIndex, is_object_name
from coldstart.store.disk_layout import Layout
from coldstart.store.disk_tmp import TempFolder
from coldstart.store.names import check_key


@dataclass(frozen=True, slots=True)
class Swept:
    """How many of each were removed."""

    temps: int
    entries: int  # index entries without a sound artifact
    objects: int  # artifacts that no index entry names
    records: int  # key records without artifacts


def sweep(layout: Layout, index: DiskIndex, temps: TempFolder) -> Swept:
    """Blocking; reads every index entry and every object's header once."""
    dead_temps = temps.sweep()
    entries = 0
    for path in _sharded(layout.keys):
        if _is_key(path.name):
            unsound = index.entries(path.name)[1]
            entries += sum(index.heal(path.name, name) is not None for name in unsound)
    objects = sum(
        index.remove_orphan(path) for path in _sharded(layout.objects) if is_object_name(path.name)
    )
    records = sum(
        index.remove_stray_record(path.stem)
        for path in _sharded(layout.records)
        if path.suffix == ".json" and _is_key(path.stem)
    )
    return Swept(dead_temps, entries, objects, records)


def _sharded(folder: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(folder)):
        if len(name) != 2 or not (folder / name).is_dir():
            continue  # a stranger's
        yield from (folder / name / file for file in sorted(os.listdir(folder / name)))


def _is_key(name: str) -> bool:
    try:
        check_key(name)
    except InvalidRequest:
        return False
    return True
