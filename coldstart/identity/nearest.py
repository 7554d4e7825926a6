"""Which key did this one just miss? The records that differ from it in the fewest components."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from coldstart.identity.key import COMPONENTS, KeyRecord, diff


def distance(left: KeyRecord, right: KeyRecord) -> tuple[int, bool, int]:
    """Smaller is nearer: components that differ, another program's name, how early in hashing order they differ."""
    different = [d.name for d in diff(left, right)]
    first = COMPONENTS.index(different[0]) if different else len(COMPONENTS)
    # One that differs in its program only is nearer than one that differs in its target only: it is
    # another build of the same thing, and what differs there can be shown node by node.
    return len(different), left.program_name != right.program_name, first


def nearest(
    record: KeyRecord, others: Iterable[tuple[str, KeyRecord]], count: int = 1
) -> list[tuple[str, KeyRecord]]:
    """The `count` nearest of (key, record) pairs, nearest first; of equally near ones the earlier."""
    return heapq.nsmallest(count, others, key=lambda other: distance(record, other[1]))
