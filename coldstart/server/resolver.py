"""Resolver: hit, lease, wait or refused, for a lookup that has its key.

find a variant that the host can load  -> hit, pinned until Finish
a fresh negative entry                 -> refused
nobody at it                           -> lease
somebody at it                         -> wait
a tier can't be asked                  -> the same among this daemon's clients, where another tier can be written:
                                          one compile a host, published here; the reason says that it is no miss
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from coldstart.artifact import Header
from coldstart.config import DaemonConfig
from coldstart.errors import ArtifactError, LeaseLost, TierError, TooLarge
from coldstart.identity.key import KeyRecord
from coldstart.lease.board import Busy
from coldstart.outcomes import Reason
from coldstart.server.answers import Answer, Hit, Leased, Refused, Waiting, least
from coldstart.server.holdings import Holdings
from coldstart.server.key_memory import KeyMemory
from coldstart.server.lease_book import LeaseBook
from coldstart.server.negatives import NegativeEntries
from coldstart.server.notary import Notary
from coldstart.server.open_lookups import OpenLookup
from coldstart.server.publisher import Publisher, reason_of
from coldstart.server.tally import Tally
from coldstart.wire import Mode

log = logging.getLogger("coldstart.server")

WAIT_FACTOR = 1.5  # of the compile seconds that are on record
LEAST_WAIT_SECONDS = 30.0


class Resolver:
    """One daemon's decisions. On one event loop: what was true before an `await` is looked at again after it."""

    def __init__(
        self,
        config: DaemonConfig,
        holdings: Holdings,
        leases: LeaseBook,
        negatives: NegativeEntries,
        memory: KeyMemory,
        publisher: Publisher,
        tally: Tally,
        notary: Notary,
    ) -> None:
        self._config = config
        self._notary = notary
        self._mode = Mode(config.mode)
        self._holdings = holdings
        self._leases = leases
        self._negatives = negatives
        self._memory = memory
        self._publisher = publisher
        self._tally = tally

    async def resolve(self, lookup: OpenLookup) -> Answer:
        """What there is to say now about the lookup's key. Never raises for a tier's trouble."""
        try:
            return await self._decide(lookup)
        except (TierError, TooLarge) as exc:
            # Not knowing is neither a miss nor a reason to make clients think the daemon is gone.
            return Refused(reason_of(exc), str(exc), lookup.key)

    async def recall(self, lookup: OpenLookup, key: str, record: KeyRecord) -> Hit | None:
        """The artifact of what this raw program came to before, if it can be handed out at once. Takes no lease."""
        asker = lookup.asker
        if lookup.key not in ("", key) or asker.namespace != self._config.namespace:
            return None
        if Mode.OBSERVE in (asker.mode, self._mode):
            return None
        try:
            header = choose(await self._holdings.find(key), asker.cpu_features, lookup.excluded)
            if header is None or lookup.key not in ("", key):
                return None
            lookup.key, lookup.by_alias = key, True
            hit = await self._hit(lookup, header)
        except (TierError, TooLarge):
            hit = None
        if hit is None:  # the asker comes again, with its record
            lookup.key, lookup.by_alias = "", False
            return None
        return replace(hit, record=record)

    async def _decide(self, lookup: OpenLookup) -> Answer:
        key, asker = lookup.key, lookup.asker
        looked_again = False
        while True:
            publishes = lookup.looked_at = self._publisher.count
            trouble = None
            try:
                header = choose(await self._holdings.find(key), asker.cpu_features, lookup.excluded)
                observed = self._observe(lookup, header)
                if observed is not None:
                    return observed
                hit = None if header is None else await self._hit(lookup, header)
                if hit is not None:
                    return hit
            except TierError as exc:
                if not exc.partial or Mode.OBSERVE in (asker.mode, self._mode):
                    raise
                trouble = reason_of(exc)
            negative = self._negatives.get(key)
            if negative is not None and not (asker.planned and negative.reason is Reason.TOO_SMALL):
                return Refused(negative.reason, negative.message, key)
            why = asker.only_reads or self._notary.only_reads
            if why:
                return await self._without_lease(key, why)
            if lookup.lease_id:  # asked again, say after a lost reply: it is the same lease
                try:
                    await self._leases.renew(lookup.lease_id)
                    return self._leased(lookup, trouble)
                except LeaseLost:
                    pass
            busy = await self._leases.acquire(lookup)
            if busy is not None:
                if looked_again or publishes == self._publisher.count:
                    return self._waiting(key, busy)
                looked_again = True  # it may be readable here by now, and only others still wait
                continue
            header = None if looked_again else await self._came_elsewhere(lookup)
            if publishes == self._publisher.count and header is None:
                return self._leased(lookup, trouble)
            # Something was published between looking and leasing; it may have been this.
            looked_again = True
            await self._leases.release(lookup.lease_id)
            hit = None if header is None else await self._hit(lookup, header)
            if hit is not None:
                return hit

    async def _without_lease(self, key: str, why: str) -> Answer:
        """For one that can't publish: a lease would let others wait for nothing. It may wait for somebody else."""
        busy = await self._leases.current(key)
        return Refused(Reason.ROLE, why, key) if busy is None else self._waiting(key, busy)

    async def _came_elsewhere(self, lookup: OpenLookup) -> Header | None:
        """What another daemon published between our look and our lease, before it gave its lease back.

        Where a tier was silent our look took long, and this is the more likely: the others are asked once more.
        """
        if not self._leases.shared:
            return None
        try:
            headers = await self._holdings.find_at_once(lookup.key)
        except (TierError, TooLarge):
            return None
        return choose(headers, lookup.asker.cpu_features, lookup.excluded)

    def _observe(self, lookup: OpenLookup, header: Header | None) -> Answer | None:
        """Observe mode takes nothing. A client that observes of itself is told what it would have hit."""
        if least(self._mode, lookup.asker.mode) is not Mode.OBSERVE:
            return None
        if self._mode is not Mode.OBSERVE and header is not None:
            return Hit(lookup.key, header, tier="")
        would = "would be a hit" if header is not None else "would be a miss"
        return Refused(Reason.MODE_OBSERVE, f"observe mode: {would}", lookup.key)

    async def _hit(self, lookup: OpenLookup, header: Header) -> Hit | None:
        self.unpin(lookup, header.digest)
        lookup.pins[header.digest] = self._holdings.pin(header.digest, self._config.pin_seconds)
        try:
            planned = lookup.asker.planned
            found = await self._holdings.get(lookup.key, header.digest, planned=planned)
        except ArtifactError as exc:  # put aside by now; the next look finds another copy or none
            log.warning("%s", exc)
            self._notary.audit.bad(lookup.key, header.digest, str(exc), "the store")
            lookup.damage = Reason(exc.reason)
            found = None
        if found is None:  # or it went between finding and getting
            self.unpin(lookup, header.digest)
            return None
        self._memory.see(header)
        sees_volume = lookup.asker.sees_volume
        path = self._holdings.path_of(found.artifact) if sees_volume else ""
        # The copy's own: what was found first may have been a row about it.
        header = found.artifact.header
        hit = Hit(lookup.key, header, found.tier, path, waited=lookup.waited)
        lookup.served.pop(header.digest, None)
        lookup.served[header.digest] = hit
        return hit

    def _why_missing(self, lookup: OpenLookup) -> Reason:
        if lookup.damage is not None:
            return lookup.damage
        if self._holdings.damaged(lookup.key):
            self._notary.audit.damaged(lookup.key)
            return Reason.CORRUPT
        if self._holdings.distrusted(lookup.key):
            return Reason.SIGNATURE
        seen = self._memory.get(lookup.key) is not None and not lookup.rejected
        return Reason.EVICTED if seen else Reason.COLD

    def _leased(self, lookup: OpenLookup, trouble: Reason | None) -> Leased:
        return Leased(
            lookup.key,
            lookup.lease_id,
            self._config.lease_seconds,
            reason=trouble or self._why_missing(lookup),
        )

    def _waiting(self, key: str, busy: Busy) -> Waiting:
        known = self._memory.get(key)
        if known is not None and known.compile_seconds > 0:
            estimate = known.compile_seconds
            most = max(LEAST_WAIT_SECONDS, WAIT_FACTOR * estimate)
        else:  # a guess is no record: wait for as long as heartbeats come
            estimate, most = busy.estimate_seconds, self._config.wait_seconds
        return Waiting(key, busy.holder, estimate, most)

    def unpin(self, lookup: OpenLookup, digest: str) -> None:
        """The lookup is done with this copy."""
        if digest in lookup.pins:
            self._holdings.unpin(lookup.pins.pop(digest))


def choose(
    headers: Iterable[Header],
    cpu_features: frozenset[str],
    excluded: Iterable[str] = (),
) -> Header | None:
    """The variant to hand out: of those that the host can load, the one that uses most of it."""
    loadable = [
        header
        for header in headers
        if cpu_features.issuperset(header.cpu_features) and header.digest not in set(excluded)
    ]
    return max(loadable, key=lambda h: (len(h.cpu_features), h.digest), default=None)
