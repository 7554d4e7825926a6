"""Publisher: takes an artifact in under a lease, or after a fallback; whatever happens, waiters get to know.

An artifact that can't be stored is an answer, not an error: the publisher has what it needs, and those who wait
compile at once, all of them. Errors are for publishes that contradict themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from coldstart.artifact import Header
from coldstart.config import DaemonConfig
from coldstart.errors import (
    ArtifactCorrupt,
    BreakerOpen,
    ColdstartError,
    InvalidRequest,
    LeaseLost,
    TierError,
    TierFull,
    TierTimeout,
    TooLarge,
)
from coldstart.identity.key import KeyRecord
from coldstart.outcomes import Reason
from coldstart.server.checks import check_against_record
from coldstart.server.holdings import Holdings
from coldstart.server.key_memory import KeyMemory
from coldstart.server.lease_book import LeaseBook
from coldstart.server.negatives import NegativeEntries
from coldstart.server.open_lookups import OpenLookup, OpenLookups
from coldstart.server.spool import Spool
from coldstart.server.tally import Tally

log = logging.getLogger("coldstart.server")


@dataclass(frozen=True, slots=True)
class Publication:
    """The start of a publish: everything but the bytes."""

    lookup_id: str
    lease_id: str  # "": after a fallback
    header: Header
    record: KeyRecord
    planned: bool


@dataclass(frozen=True, slots=True)
class Published:
    """How a publish ended."""

    digest: str
    adopted: bool = False
    kept_local: Reason | None = None  # nothing was stored, and why


class Publisher:
    """One daemon's way in for artifacts."""

    idle_seconds = 30.0  # between two pieces of one publish

    def __init__(
        self,
        config: DaemonConfig,
        holdings: Holdings,
        lookups: OpenLookups,
        leases: LeaseBook,
        negatives: NegativeEntries,
        memory: KeyMemory,
        tally: Tally,
        now: Callable[[], float],
    ) -> None:
        self._config = config
        self._holdings = holdings
        self._lookups = lookups
        self._leases = leases
        self._negatives = negatives
        self._memory = memory
        self._tally = tally
        self._now = now
        self.count = (
            0  # artifacts stored or adopted: lets a lookup see that one came while it was asking
        )

    async def publish(self, publication: Publication, chunks: AsyncIterator[bytes]) -> Published:
        """Take in an artifact; the reply names the authoritative digest, or says why nothing was stored.

        Raises:
            InvalidRequest: it contradicts itself, its record or its lease. ArtifactCorrupt: the bytes don't fit.
        """
        header, record = publication.header, publication.record
        check_against_record(header, record)
        lookup = self._holder_of(publication)
        unwanted = self._unwanted(publication)
        if unwanted is not None:
            return await self._not_stored(lookup, header, *unwanted)
        try:
            stored = await self._store(header, record, self._alive(lookup, chunks))
        except ArtifactCorrupt:
            if lookup is not None:
                await self._leases.release(lookup.lease_id)
            raise
        except (TierError, TooLarge) as exc:
            log.warning("publish of %s not stored: %s", header.key[:16], exc)
            self._tally.event(reason_of(exc).value, str(exc))
            return await self._not_stored(lookup, header, reason_of(exc), str(exc))
        self.count += 1
        self._tally.published += 1
        adopted = stored.digest != header.digest
        if adopted:
            self._tally.adopted += 1
        self._memory.see(stored)
        self._negatives.forget(header.key)
        if lookup is not None:
            await self._leases.release(lookup.lease_id)
        return Published(stored.digest, adopted=adopted)

    def _holder_of(self, publication: Publication) -> OpenLookup | None:
        """The lookup that holds the lease which this is published under; None: a fallback, or it was lost."""
        lookup = self._leases.holder(publication.lease_id)
        if lookup is not None and lookup.key != publication.header.key:
            raise InvalidRequest(
                f"the lease is for {lookup.key[:16]}, not for {publication.header.key[:16]}"
            )
        asked = self._lookups.get(publication.lookup_id)
        if asked is not None:
            self._lookups.touch(asked)
        return lookup

    def _unwanted(self, publication: Publication) -> tuple[Reason, str] | None:
        """Why it is not even looked at."""
        header, config = publication.header, self._config
        if header.payload_bytes > config.max_artifact:
            return (
                Reason.TOO_LARGE,
                f"payload is {header.payload_bytes} bytes, max_artifact is {config.max_artifact}",
            )
        if header.compile_seconds < config.min_compile_seconds and not publication.planned:
            return (
                Reason.TOO_SMALL,
                f"compiled in {header.compile_seconds:.3g} s, min_compile_seconds is "
                f"{config.min_compile_seconds:g}",
            )
        return None

    async def _not_stored(
        self, lookup: OpenLookup | None, header: Header, reason: Reason, message: str
    ) -> Published:
        self._tally.kept_local += 1
        if lookup is not None:
            await self._leases.let_loose(lookup, reason, message)
        return Published(header.digest, kept_local=reason)

    async def _store(
        self, header: Header, record: KeyRecord, chunks: AsyncIterator[bytes]
    ) -> Header:
        place = await self._holdings.open_spool(header)
        async with Spool(header, place) as spool:
            return await self._holdings.put(await spool.take(chunks), record)

    async def _alive(
        self, lookup: OpenLookup | None, chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """The chunks; while they come, the lease they come under is renewed."""
        renew_at = self._now() + self._config.heartbeat_seconds
        async for chunk in self._unless_silent(chunks):
            if self._now() >= renew_at:
                await self._renew(lookup)
                renew_at = self._now() + self._config.heartbeat_seconds
            yield chunk
        await self._renew(lookup)  # storing takes a moment too

    async def _unless_silent(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks; a publisher that stops half-way must not hold what it sent for ever."""
        while True:
            try:
                chunk = await asyncio.wait_for(anext(chunks, None), self.idle_seconds)
            except TimeoutError as exc:
                raise InvalidRequest(f"publish was silent for {self.idle_seconds:g} s") from exc
            if chunk is None:
                return
            yield chunk

    async def _renew(self, lookup: OpenLookup | None) -> None:
        if lookup is None or not lookup.lease_id:
            return
        with contextlib.suppress(LeaseLost):
            await self._leases.renew(lookup.lease_id)
        self._lookups.touch(lookup)


def reason_of(error: ColdstartError) -> Reason:
    """The word for a tier's trouble."""
    if isinstance(error, TooLarge):
        return Reason.TOO_LARGE
    if isinstance(error, TierFull):
        return Reason.QUOTA
    if isinstance(error, BreakerOpen):
        return Reason.BREAKER_OPEN
    return Reason.DEADLINE if isinstance(error, TierTimeout) else Reason.TIER_DOWN
