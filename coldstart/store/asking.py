"""Asking: a chain's questions to its tiers. One that fails is counted, named in the log, remembered; never hidden."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from coldstart.artifact import Header
from coldstart.errors import (
    ArtifactCorrupt,
    ArtifactError,
    BreakerOpen,
    TierError,
    TierTimeout,
    TooLarge,
)
from coldstart.store.recorder import Recorder
from coldstart.store.tier import Tier
from coldstart.store.wrap import outcome_of

log = logging.getLogger(__name__)

T = TypeVar("T")
FAILURES = (
    TierError,
    TooLarge,
    ArtifactError,
)  # what a tier may raise; all else is a mistake of ours


class Asking:
    """One chain's. What failed is told under the chain's name: the tier's own wrapper counts the tier's."""

    def __init__(self, chain: str, recorder: Recorder) -> None:
        self._chain = chain
        self._recorder = recorder
        self.failing: set[str] = set()  # names of the tiers that failed when they were asked last

    async def ask(
        self, tier: Tier, op: str, call: Awaitable[T], failures: list[Exception]
    ) -> T | None:
        """Its answer; None, and one more of `failures`, where it has none."""
        try:
            answer = await call
        except FAILURES as exc:
            self.failed(tier, op, exc)
            failures.append(exc)
            if isinstance(exc, TierError):
                self.failing.add(tier.name)
            return None
        self.failing.discard(tier.name)
        return answer

    def failed(self, tier: Tier, op: str, exc: Exception) -> None:
        log.warning("%s: %s of %s failed: %s", self._chain, op, tier.name, exc)
        self._recorder(self._chain, op, outcome_of(exc), 0.0)


async def find_within(seconds: float, tier: Tier, key: str) -> tuple[Header, ...]:
    """`find`, or TierTimeout."""
    try:
        async with asyncio.timeout(seconds):
            return await tier.find(key)
    except TimeoutError as exc:
        raise TierTimeout(f"{tier.name}: find: no answer within {seconds:g} s") from exc


def raise_unknown(op: str, failures: list[Exception], *, partial: bool = False) -> None:
    """Not found, but not everybody answered: not knowing is not a miss."""
    if not failures:
        return
    words = "; ".join(str(failure) for failure in failures)
    unknown = [failure for failure in failures if not isinstance(failure, ArtifactCorrupt)]
    if not unknown and isinstance(
        failures[0], ArtifactCorrupt
    ):  # certain: there was one, and it was bad
        raise ArtifactCorrupt(f"chain: {op}: {words}", reason=failures[0].reason) from failures[0]
    alike = [
        kind for kind in (TierTimeout, BreakerOpen) if all(isinstance(f, kind) for f in failures)
    ]
    error = (alike[0] if alike else TierError)(f"chain: {op}: {words}")
    error.partial = partial
    raise error from failures[0]
