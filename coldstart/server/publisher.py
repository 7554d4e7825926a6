"""Publisher: takes an artifact in under a lease, or after a fallback; whatever happens, waiters get to know.

An artifact that can't be stored is an answer, not an error: the publisher has what it needs, and those who wait
compile at once, all of them. Errors are for publishes that contradict themselves.

Who waits on this host goes on as soon as the first tier has it; who waits elsewhere when it can be found there, or is
told that it stays here, as it is small (store/sharing.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from coldstart.artifact import Header
from coldstart.config import DaemonConfig
from coldstart.errors import (
    ArtifactCorrupt,
    BreakerOpen,
    ColdstartError,
    InvalidRequest,
    LeaseLost,
    NotAllowed,
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
from coldstart.server.notary import Notary
from coldstart.server.open_lookups import OpenLookup, OpenLookups
from coldstart.server.spool import Spool, SpoolMemory
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
    producer: str = ""  # who sends it, as far as this daemon could make sure


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
        notary: Notary,
    ) -> None:
        self._config = config
        self._holdings = holdings
        self._lookups = lookups
        self._leases = leases
        self._negatives = negatives
        self._memory = memory
        self._tally = tally
        self._now = now
        self._spool_memory = SpoolMemory(config.spool_memory)
        self._notary = notary
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
            header = await self._notary.sign(header, publication.producer)
        except NotAllowed as exc:
            self._notary.audit.denied(publication.producer, "publish", str(exc))
            return await self._not_stored(lookup, header, Reason.ROLE, str(exc))
        except TierError as exc:  # a key that lives elsewhere can't be asked now
            self._tally.event(reason_of(exc).value, str(exc))
            return await self._not_stored(lookup, header, reason_of(exc), str(exc))
        publication = replace(publication, header=header)
        try:
            stored = await self._store(publication, lookup, self._unless_silent(chunks))
        except ArtifactCorrupt:
            if lookup is not None:
                await self._leases.release(lookup.lease_id)
            raise
        except (TierError, TooLarge) as exc:
            log.warning("publish of %s not stored: %s", header.key[:16], exc)
            self._tally.event(reason_of(exc).value, str(exc))
            return await self._not_stored(lookup, header, reason_of(exc), str(exc))
        self._came(stored)
        self._tally.published += 1
        self._tally.published_bytes += header.payload_bytes
        adopted = stored.digest != header.digest
        self._notary.audit.published(header, publication.producer, adopted=adopted)
        if adopted:
            self._tally.adopted += 1
        if lookup is not None:
            await self._end(lookup, stored, publication.planned)
        return Published(stored.digest, adopted=adopted)

    def _came(self, header: Header) -> None:
        """It can be read here."""
        self.count += 1
        self._memory.see(header)
        self._negatives.forget(header.key)

    async def _end(self, lookup: OpenLookup, stored: Header, planned: bool) -> None:
        if self._holdings.stays(stored, planned=planned):
            words = f"compiled in {stored.compile_seconds:.3g} s: it stays on the host that did"
            await self._leases.stays_here(lookup.lease_id, lookup.key, words)
        else:
            await self._leases.release(lookup.lease_id)

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
        if self._holdings.nowhere(header, planned=publication.planned):
            return (
                Reason.TOO_SMALL,
                f"compiled in {header.compile_seconds:.3g} s, which is below cs.min_compile_seconds of every store",
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
        self, publication: Publication, lookup: OpenLookup | None, chunks: AsyncIterator[bytes]
    ) -> Header:
        header, planned = publication.header, publication.planned

        async def readable(stored: Header) -> None:
            self._came(stored)
            if lookup is not None:
                await self._leases.done_here(lookup.lease_id)

        place = await self._holdings.open_spool(header)
        async with Spool(header, place, self._spool_memory) as spool:
            artifact = await spool.take(chunks)
            async with self._renewing(lookup):
                return await self._holdings.put(
                    artifact, publication.record, planned=planned, readable=readable
                )

    @contextlib.asynccontextmanager
    async def _renewing(self, lookup: OpenLookup | None) -> AsyncIterator[None]:
        """Meanwhile the lease lives: its client may have ended, and a slow tier must not cost others a compile."""

        # Each by itself: one that waits for a silent board of the fleet must not keep the next from this daemon's own.
        renewals: set[asyncio.Task[None]] = set()

        async def renew() -> None:
            while True:
                renewals.add(asyncio.create_task(self._renew(lookup)))
                await asyncio.sleep(self._config.heartbeat_seconds)

        if lookup is None:
            yield
            return
        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            for task in (renewing, *renewals):
                task.cancel()
            await asyncio.gather(renewing, *renewals, return_exceptions=True)

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
