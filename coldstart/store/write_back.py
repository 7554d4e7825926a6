"""WriteBack: puts that a tier could not take when they were made, made again until it can. Bounded; on one event loop.

Nobody waits for them. No bytes are held: the artifact is read from a tier above when its turn comes, and is forgotten
where none has it any more. What is still to be done when the daemon ends is lost, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from coldstart.artifact import Artifact, Header
from coldstart.errors import ArtifactError, InvalidRequest, TierError, TooLarge
from coldstart.identity.key import KeyRecord
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
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        """`source` has the artifact, above that tier; `adopt` hears that the tier had another digest by then."""
        self._recorder = recorder
        self._source = source
        self._adopt = adopt
        self._first_seconds = first_seconds
        self._waiting: dict[Tier, OrderedDict[tuple[str, str], Header]] = {}
        self._tasks: dict[Tier, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def add(self, tier: Tier, header: Header) -> None:
        """`tier` shall have it as soon as it can."""
        waiting = self._waiting.setdefault(tier, OrderedDict())
        if len(waiting) >= MOST_WAITING:
            self._recorder(tier.name, "write-back", "dropped", 0.0)
            return
        waiting[header.key, header.variant] = header
        if tier not in self._tasks:
            self._tasks[tier] = asyncio.create_task(self._catch_up(tier, waiting))

    async def close(self) -> None:
        for task in tuple(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for tier, waiting in self._waiting.items():
            for _ in range(len(waiting)):
                self._recorder(tier.name, "write-back", "dropped", 0.0)
        self._waiting.clear()

    async def _catch_up(self, tier: Tier, waiting: OrderedDict[tuple[str, str], Header]) -> None:
        pause = self._first_seconds
        while waiting:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            while waiting:
                place, header = next(iter(waiting.items()))
                try:
                    await self._put(tier, header)
                except TierError as exc:
                    log.info("%s: still can't take %s: %s", tier.name, header.key[:16], exc)
                    self._recorder(tier.name, "write-back", outcome_of(exc), 0.0)
                    pause = min(2 * pause, MOST_SECONDS)
                    break
                if waiting.get(place) is header:
                    del waiting[place]
                pause = self._first_seconds
        del self._tasks[tier]  # nothing awaits between the last look and this

    async def _put(self, tier: Tier, header: Header) -> None:
        """Done with it, one way or another. Raises TierError: the tier can't, still."""
        start = time.monotonic()
        outcome = "dropped"
        try:
            found = await self._source(tier, header)
            if found is not None:
                stored = await tier.put(*found)
                outcome = "ok" if stored.digest == header.digest else "adopted"
                if outcome == "adopted":
                    await self._adopt(tier, header, stored)
        except (ArtifactError, TooLarge, InvalidRequest) as exc:
            log.warning("%s: late put of %s given up: %s", tier.name, header.key[:16], exc)
        except TierError as exc:
            if not exc.lasting:
                raise
            log.warning("%s: late put of %s given up: %s", tier.name, header.key[:16], exc)
        except Exception:  # a mistake of ours: nobody waits for this task to hear of it
            log.exception("%s: late put of %s", tier.name, header.key[:16])
        self._recorder(tier.name, "write-back", outcome, time.monotonic() - start)
