"""BackFill: copies hits into the faster tiers above, in the background. Bounded: too much is dropped, and counted.

Nobody waits for a copy: whoever hit has the bytes in hand. A copy that is lost costs the next reader the slower tier.
On one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from coldstart.artifact import Artifact, BytesPayload, Header
from coldstart.errors import ArtifactCorrupt, ArtifactError, TierError, TooLarge
from coldstart.store.recorder import Recorder
from coldstart.store.tier import Tier
from coldstart.store.wrap import outcome_of

log = logging.getLogger(__name__)

MOST_COPIES = 16  # under way
CLOSE_SECONDS = 10.0
MOST_BYTES = 1 << 30  # of payloads that are held in memory for them; one alone may be larger


class BackFill:
    """The copies of one chain."""

    def __init__(
        self,
        recorder: Recorder,
        corrupt: Callable[[Tier, Artifact, Exception], Awaitable[None]],
        too_small: Callable[[Tier, Header, Tier], Awaitable[None]],
    ) -> None:
        """`corrupt` is told where copying showed that the source's bytes are bad, `too_small` which tier never takes
        what the source has."""
        self._recorder = recorder
        self._too_small = too_small
        self._corrupt = corrupt
        self._running: dict[tuple[str, str], tuple[asyncio.Task[None], int]] = {}

    def start(self, artifact: Artifact, source: Tier, missed: Sequence[Tier]) -> None:
        """Copy `artifact`, which `source` had, into the tiers that missed it."""
        what = (artifact.header.key, artifact.header.digest)
        if what in self._running:
            return
        held = artifact.payload.size_bytes if isinstance(artifact.payload, BytesPayload) else 0
        waiting = sum(size for _, size in self._running.values())
        full = len(self._running) >= MOST_COPIES or (waiting and waiting + held > MOST_BYTES)
        if full:
            for tier in missed:
                self._recorder(tier.name, "backfill", "dropped", 0.0)
            return
        task = asyncio.create_task(self._copy(artifact, source, missed))
        self._running[what] = (task, held)
        task.add_done_callback(lambda _: self._running.pop(what, None))

    async def settle(self, seconds: float | None = None) -> None:
        """Until the copies that are under way are made, or so long."""
        tasks = [task for task, _ in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        """Wait for them, but not for ever: a copy is worth little, and a tier may be silent."""
        tasks = [task for task, _ in self._running.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _copy(self, artifact: Artifact, source: Tier, missed: Sequence[Tier]) -> None:
        try:
            record = await source.record(artifact.header.key)
        except (TierError, ArtifactError):
            record = None
        for tier in missed:
            start = time.monotonic()
            outcome = "ok"
            try:
                await tier.put(artifact, record)
            except ArtifactCorrupt as exc:
                await self._corrupt(source, artifact, exc)
                return
            except (TierError, TooLarge, ArtifactError) as exc:
                log.warning("chain: back-fill into %s: %s", tier.name, exc)
                outcome = outcome_of(exc)
                if isinstance(exc, TooLarge):
                    await self._too_small(tier, artifact.header, source)
            except Exception:  # a mistake of ours: nobody waits for this task to hear of it
                log.exception("chain: back-fill into %s", tier.name)
                outcome = "error"
            self._recorder(tier.name, "backfill", outcome, time.monotonic() - start)
