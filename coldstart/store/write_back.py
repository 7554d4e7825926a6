"""WriteBack: puts that a tier could not take when they were made, made again until it can. Bounded; on one event loop.

Nobody waits for them. No bytes are held: the artifact is read from another tier when its turn comes, and is forgotten
where none has it any more. What is still to be done when the daemon ends is marked on disk where there is one
(late_marks.py), and lost and counted where there isn't. Whether a tier has what lies above it is looked at in the same
queue, without marks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from coldstart.artifact import Artifact, Header
from coldstart.errors import ArtifactError, InvalidRequest, TierError, TooLarge
from coldstart.identity.key import KeyRecord
from coldstart.store.late_marks import LateMarks
from coldstart.store.recorder import Recorder
from coldstart.store.tier import Tier
from coldstart.store.wrap import outcome_of

log = logging.getLogger(__name__)

MOST_WAITING = 1024  # artifacts, for each tier
FIRST_SECONDS, MOST_SECONDS = 1.0, 60.0
Source = Callable[[Tier, Header], Awaitable[tuple[Artifact, KeyRecord | None] | None]]


class WriteBack:
    """The late puts of one chain."""

    def __init__(
        self,
        recorder: Recorder,
        source: Source,
        adopt: Callable[[Tier, Header, Header], Awaitable[None]],
        *,
        wanted: Callable[[Tier, Header], bool] = lambda tier, header: True,
        settled: Callable[[Tier, Header, bool], None] = lambda tier, header, there: None,
        marks: LateMarks | None = None,
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        """`source` has the artifact, from another tier; `adopt` hears that the tier had another digest by then.

        `wanted` says whether a tier that was only looked at is to be given what it lacks. `settled` hears what a tier
        has now, what it was to be given or what was adopted, or that it has nothing and is to be given nothing (False).
        """
        self._recorder = recorder
        self._source = source
        self._adopt = adopt
        self._wanted = wanted
        self._settled = settled
        self._marks = marks or LateMarks(None)
        self._first_seconds = first_seconds
        self._waiting: dict[Tier, OrderedDict[tuple[str, str], Header]] = {}
        self._owed: set[tuple[str, str, str]] = (
            set()
        )  # tier, key, variant: puts; the rest is looked at only
        self._tasks: dict[Tier, asyncio.Task[None]] = {}
        self._at: dict[Tier, tuple[str, str]] = {}  # key, digest: which put is under way

    def __len__(self) -> int:
        """Puts that are still to be made."""
        return len(self._owed)

    async def add(self, tier: Tier, header: Header) -> bool:
        """`tier` shall have it as soon as it can. False: too much waits; then the next process does it, by its mark."""
        await asyncio.to_thread(self._marks.add, tier.name, header)
        return self._owe(tier, header)

    def compare(self, tier: Tier, header: Header) -> None:
        """Whether `tier` has that very digest; what it lacks is put, if it wants it, and another is adopted.

        Dropped if much waits.
        """
        waiting = self._waiting.get(tier, ())
        if (header.key, header.variant) not in waiting:
            self._queue(tier, header)

    async def resume(self, tiers: Sequence[Tier]) -> None:
        """What another process was still to do."""
        for tier in tiers:
            if not tier.writable:  # another daemon on this disk may write it: the marks are its own
                continue
            for header in await asyncio.to_thread(self._marks.all, tier.name):
                self._owe(tier, header)

    def _owe(self, tier: Tier, header: Header) -> bool:
        if self._queue(tier, header):
            self._owed.add((tier.name, header.key, header.variant))
            return True
        self._recorder(tier.name, "write-back", "dropped", 0.0)
        return False

    def _queue(self, tier: Tier, header: Header) -> bool:
        waiting = self._waiting.setdefault(tier, OrderedDict())
        if len(waiting) >= MOST_WAITING:
            return False
        waiting[header.key, header.variant] = header
        if tier not in self._tasks:
            self._tasks[tier] = asyncio.create_task(self._catch_up(tier, waiting))
        return True

    async def forget(self, key: str, digest: str, until: float) -> None:
        """It is not to be put any more. One that is under way is waited for, until then by the monotonic clock."""
        for tier, waiting in tuple(self._waiting.items()):
            for place, header in tuple(waiting.items()):
                if (header.key, header.digest) != (key, digest):
                    continue
                del waiting[place]
                if (tier.name, *place) in self._owed:
                    self._owed.discard((tier.name, *place))
                    await asyncio.to_thread(self._marks.drop, tier.name, header)
        while (key, digest) in self._at.values() and time.monotonic() < until:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for name, _, _ in () if self._marks.kept else self._owed:
            self._recorder(name, "write-back", "dropped", 0.0)
        self._waiting.clear()
        self._owed.clear()

    async def _catch_up(self, tier: Tier, waiting: OrderedDict[tuple[str, str], Header]) -> None:
        pause = self._first_seconds
        while waiting:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            while waiting:
                place, header = next(iter(waiting.items()))
                self._at[tier] = (header.key, header.digest)
                try:
                    await self._put(tier, header)
                except TierError as exc:
                    log.info("%s: still can't take %s: %s", tier.name, header.key[:16], exc)
                    self._recorder(tier.name, "write-back", outcome_of(exc), 0.0)
                    pause = min(2 * pause, MOST_SECONDS)
                    if (
                        place in waiting
                    ):  # the others first: it may be this one alone that finds no room
                        waiting.move_to_end(place)
                    break
                finally:
                    self._at.pop(tier, None)
                if (tier.name, *place) in self._owed:
                    await asyncio.to_thread(self._marks.drop, tier.name, header)
                if waiting.get(place) is header:
                    del waiting[place]
                    self._owed.discard((tier.name, *place))
                pause = self._first_seconds
        del self._tasks[tier]  # nothing awaits between the last look and this

    async def _put(self, tier: Tier, header: Header) -> None:
        """Done with it, one way or another. Raises TierError: the tier can't, still."""
        start = time.monotonic()
        owed = (tier.name, header.key, header.variant) in self._owed
        outcome, stored, left = "dropped", header, False
        try:
            there = [one for one in await tier.find(header.key) if one.variant == header.variant]
            if there:
                stored = there[0]
            elif not owed and tier.writable and not self._wanted(tier, header):
                left = True
            elif tier.writable:
                found = await self._source(tier, header)
                if found is None:
                    self._recorder(tier.name, "write-back", outcome, time.monotonic() - start)
                    return
                stored = await tier.put(*found)
                outcome = "ok"
            if stored.digest != header.digest:
                outcome = "adopted"
                await self._adopt(tier, header, stored)
            elif there or left:
                outcome = "ok" if owed else ""
        except (ArtifactError, TooLarge, InvalidRequest) as exc:
            log.warning("%s: late put of %s given up: %s", tier.name, header.key[:16], exc)
        except TierError as exc:
            if not exc.lasting:
                raise
            log.warning("%s: late put of %s given up: %s", tier.name, header.key[:16], exc)
        except Exception:  # a mistake of ours: nobody waits for this task to hear of it
            log.exception("%s: late put of %s", tier.name, header.key[:16])
        self._settled(tier, stored, not left)
        if outcome:
            self._recorder(tier.name, "write-back", outcome, time.monotonic() - start)
