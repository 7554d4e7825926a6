"""Inventory: all artifacts of all tiers as one list, for people who search and sort. A copy that is some seconds old.

Going through a store takes time and every reader wants the same list, so one walk serves all who ask meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coldstart.artifact import Header
from coldstart.server.upkeep import Upkeep
from coldstart.store.selection import Selection

FRESH_SECONDS = 10.0
WAIT_SECONDS = 5.0  # for the first list; later ones are shown as they are
MAX_ARTIFACTS = 200_000
SORTS: dict[str, Callable[[Listed], object]] = {
    "name": lambda one: one.header.program_name,
    "seconds": lambda one: -one.header.compile_seconds,
    "bytes": lambda one: -one.header.payload_bytes,
    "created": lambda one: -one.header.created_unix,
    "used": lambda one: -one.used_unix,
    "key": lambda one: one.header.key,
}


@dataclass(slots=True)
class Listed:
    """One artifact and where it lies."""

    header: Header
    tiers: list[str]
    used_unix: float = 0.0  # 0: no tier knows


@dataclass(frozen=True, slots=True)
class Listing:
    """The list as of a moment."""

    artifacts: tuple[Listed, ...] = ()
    as_of_unix: float = 0.0  # 0: the first walk isn't through yet
    troubles: tuple[str, ...] = ()  # tiers that couldn't be gone through, in words
    cut: bool = False  # there are more

    def found(self, text: str, sort: str) -> Sequence[Listed]:
        """Those whose name, key, producer or target holds `text`, in that order.

        Raises KeyError: no such order.
        """
        order = SORTS[sort]
        wanted = text.casefold()
        return sorted((one for one in self.artifacts if wanted in _text_of(one.header)), key=order)  # type: ignore[arg-type]


def _text_of(header: Header) -> str:
    return "\n".join(
        (header.program_name, header.key, header.digest, header.producer, header.target)
    ).casefold()


class Inventory:
    """On one event loop."""

    def __init__(self, upkeep: Upkeep, unix_now: Callable[[], float] = time.time) -> None:
        self._upkeep = upkeep
        self._unix_now = unix_now
        self._latest = Listing()
        self._walk: asyncio.Task[None] | None = None

    async def listing(self) -> Listing:
        """No older than FRESH_SECONDS, unless the walk takes longer than anybody wants to wait."""
        age = self._unix_now() - self._latest.as_of_unix
        if age > FRESH_SECONDS and (self._walk is None or self._walk.done()):
            self._walk = asyncio.create_task(self._look())
        if self._walk is not None and not self._walk.done():
            seconds = WAIT_SECONDS if not self._latest.as_of_unix else 0.5
            await asyncio.wait({self._walk}, timeout=seconds)
        return self._latest

    async def close(self) -> None:
        if self._walk is not None:
            self._walk.cancel()
            await asyncio.gather(self._walk, return_exceptions=True)

    async def _look(self) -> None:
        began = self._unix_now()
        found: dict[tuple[str, str], Listed] = {}
        troubles, cut = [], False
        async for row in self._upkeep.stored(Selection()):
            if row.kept is None:
                troubles.append(f"{row.tier}: {row.detail}")
                continue
            place = (row.kept.header.key, row.kept.header.digest)
            if place not in found and len(found) >= MAX_ARTIFACTS:
                cut = True
                continue
            one = found.setdefault(place, Listed(row.kept.header, []))
            one.tiers.append(row.tier)
            one.used_unix = max(one.used_unix, row.kept.used_unix)
        self._latest = Listing(tuple(found.values()), began, tuple(troubles), cut)
