"""Holdings: what the daemon asks of its store. A chain of tiers, and the disk among them where there is one.

The chain says what is there; the disk adds what only it can do: hand a file over by path, keep it from eviction
for a while, and take a publish in without a second copy.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coldstart.artifact import Artifact, FilePayload, Header
from coldstart.errors import TierError, TierFull, TooLarge
from coldstart.identity.key import KeyRecord
from coldstart.server.spool import DiskPlace
from coldstart.store.breaker import CIRCUITS, Breaker
from coldstart.store.chain import ChainTier
from coldstart.store.disk import DiskTier
from coldstart.store.disk_space import Usage
from coldstart.store.sharing import Sharing
from coldstart.store.tier import Tier
from coldstart.store.within import innermost, within
from coldstart.store.wrap import outcome_of

log = logging.getLogger("coldstart.server")

LOOK_SECONDS = 0.5  # that whoever asks how a store stands waits for its disk


@dataclass(frozen=True, slots=True)
class Found:
    """An artifact, and the tier that had it."""

    artifact: Artifact
    tier: str


@dataclass(frozen=True, slots=True)
class Place:
    """One configured tier."""

    name: str
    url: str  # without secrets


@dataclass(frozen=True, slots=True)
class TierStanding:
    """One tier's numbers; -1: not known."""

    name: str
    url: str
    artifacts: int
    bytes: int
    limit_bytes: int
    operations: dict[str, int]
    trouble: str = ""  # what is wrong with it now, for people


@dataclass(slots=True)
class OperationCounts:
    """The store's recorder: counts what tiers did, in the words of store/recorder.py."""

    operations: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def __call__(self, tier: str, op: str, outcome: str, seconds: float) -> None:
        self.operations[tier, op, outcome] += 1
        self.seconds[tier, op] = self.seconds.get((tier, op), 0.0) + seconds


class Holdings:
    """The store, as lookups need it."""

    def __init__(
        self,
        chain: Tier,
        disk: DiskTier | None,
        counts: OperationCounts,
        places: Sequence[Place] = (),
    ) -> None:
        self._chain = chain
        self._disk = disk
        self.counts = counts
        self._places = tuple(places)
        self._usage: Usage | None = None  # as of the last look
        self._looking: asyncio.Task[None] | None = None
        self._nonce = b""  # that was told
        self._no_nonce = False  # it could not be written, which was said
        tiers = chain.tiers if isinstance(chain, ChainTier) else (chain,)
        self._sharing = Sharing(tiers)
        own = [tier for tier in tiers if disk is not None and disk in within(tier)]
        self._disk_takes = any(tier.writable for tier in own)
        self._others_take = any(tier.writable for tier in tiers if tier not in own)
        # Whoever remembers what it had to take away.
        self._damaged: list[Callable[[str], bool]] = [
            tier.damaged_recently for tier in within(chain) if hasattr(tier, "damaged_recently")
        ]
        self._distrusted: list[Callable[[str], bool]] = [
            tier.refused_recently for tier in within(chain) if hasattr(tier, "refused_recently")
        ]
        self.tier_names = tuple(place.name for place in places)

    async def find(self, key: str) -> tuple[Header, ...]:
        return await self._chain.find(key)

    async def find_at_once(self, key: str) -> tuple[Header, ...]:
        """As `find`, without the tiers that failed when they were asked last: none found is no certain miss."""
        if isinstance(self._chain, ChainTier):
            return await self._chain.find_at_once(key)
        return await self._chain.find(key)

    async def get(self, key: str, digest: str, *, planned: bool = False) -> Found | None:
        """As a tier's. `planned`: a plan names it, so tiers that weren't given it for its size get it now."""
        if isinstance(self._chain, ChainTier):
            got = await self._chain.get_with_source(key, digest, planned=planned)
            return None if got is None else Found(*got)
        artifact = await self._chain.get(key, digest)
        return None if artifact is None else Found(artifact, self._chain.name)

    async def put(
        self,
        artifact: Artifact,
        record: KeyRecord,
        *,
        planned: bool = False,
        readable: Callable[[Header], Awaitable[None]] | None = None,
    ) -> Header:
        """As a chain's: `readable` is told when it can be read here, before all tiers have it."""
        if isinstance(self._chain, ChainTier):
            return await self._chain.put(artifact, record, planned=planned, readable=readable)
        return await self._chain.put(artifact, record)

    async def share(self, header: Header) -> None:
        """A plan names what is stored: tiers that weren't given it for its size get it, in the background."""
        if isinstance(self._chain, ChainTier):
            await self._chain.share(header)

    def stays(self, header: Header, *, planned: bool) -> bool:
        """Whether no tier that hosts share is given it, so that other hosts will never find it."""
        return self._sharing.stays(header, planned=planned)

    def nowhere(self, header: Header, *, planned: bool) -> bool:
        """Whether it is too small for every tier that there is."""
        return self._sharing.nowhere(header, planned=planned)

    def tell_replaced(self, tell: Callable[[Header], None]) -> None:
        """`tell` hears of each digest that replaced another of its key here, as the lowest tier decided."""
        if isinstance(self._chain, ChainTier):
            self._chain.on_replaced.append(tell)

    async def record(self, key: str) -> KeyRecord | None:
        return await self._chain.record(key)

    async def quarantine(
        self, key: str, digest: str, reason: str, *, everywhere: bool = False
    ) -> bool:
        """The copy that is found first; or, `everywhere`, all of them."""
        if everywhere and isinstance(self._chain, ChainTier):
            return await self._chain.quarantine_everywhere(key, digest, reason)
        return await self._chain.quarantine(key, digest, reason)

    async def close(self) -> None:
        await self._chain.close()

    # --- what only a disk can do ---------------------------------------------------------------

    @property
    def volume_root(self) -> Path | None:
        """Where files can be handed over by path; None: nowhere."""
        return None if self._disk is None else self._disk.root

    async def nonce_path(self) -> str:
        """A file relative to `volume_root` whose content proves that a client sees the volume; "" if none now."""
        if self._disk is None:
            return ""
        try:
            path, self._nonce = await self._disk.nonce()
        except TierError as exc:  # full, silent, or not ours to write: bytes go by stream then
            if not self._no_nonce:
                log.warning("no handing over by path: %s", exc)
            self._no_nonce = True
            return ""
        self._no_nonce = False
        return path

    def proves(self, proof: bytes) -> bool:
        """Only what was told here proves anything: a proof from before a restart must not touch the disk."""
        return bool(proof and self._nonce) and hmac.compare_digest(proof, self._nonce)

    def pin(self, digest: str, seconds: float) -> str:
        """Keep it from eviction; pin first, then get."""
        return "" if self._disk is None else self._disk.pin(digest, seconds)

    def unpin(self, token: str) -> None:
        if self._disk is not None and token:
            self._disk.unpin(token)

    def path_of(self, artifact: Artifact) -> str:
        """Relative to `volume_root`, of what `get` returned; "" where that isn't a file of the disk's."""
        payload = artifact.payload
        if self._disk is None or not isinstance(payload, FilePayload):
            return ""
        root = f"{self._disk.root}{os.sep}"
        path = str(payload.path)
        return path.removeprefix(root) if path.startswith(root) else ""

    def distrusted(self, key: str) -> bool:
        """True where a tier has a copy of `key` that must not be believed."""
        return any(refused(key) for refused in self._distrusted)

    def damaged(self, key: str) -> bool:
        """True where a tier had a bad copy of `key`, took it away, and no other came since."""
        return any(damaged(key) for damaged in self._damaged)

    async def open_spool(self, header: Header) -> DiskPlace | None:
        """An empty file for the whole artifact; the disk takes it over on `put`. None: no disk that could."""
        disk = self._disk
        if disk is None or (self._others_take and not self._disk_takes):
            return None
        try:
            path = await disk.open_spool(len(header.prefix()) + header.payload_bytes)
        except (TierError, TooLarge) as exc:
            if self._others_take and not isinstance(exc, TierFull):
                log.warning("not spooled on the disk: %s", exc)
                return None
            self._refused(exc)
            raise
        return DiskPlace(path, disk.grow_spool, disk.write_spool, self._refused)

    def _refused(self, exc: TierError | TooLarge) -> None:
        """A publish ends before it comes to a put: the disk's count says why all the same."""
        if self._disk is not None:
            self.counts(self._disk.name, "put", outcome_of(exc), 0.0)

    async def tidy(self) -> int:
        """Remove what crashes and strangers left on the disk; how many files that were."""
        if self._disk is None:
            return 0
        swept = await self._disk.sweep()
        return swept.temps + swept.entries + swept.objects + swept.records

    async def standing(self) -> tuple[TierStanding, ...]:
        """How each tier stands. Takes a moment at most: where the disk is busy, its numbers are the last ones."""
        return tuple([await self._standing(place) for place in self._places])

    @property
    def late_puts(self) -> int:
        """Puts that a tier has still to be given."""
        return self._chain.late_puts if isinstance(self._chain, ChainTier) else 0

    def circuits(self) -> Iterator[tuple[str, str, bool]]:
        """Of every tier that has a breaker: its name, reads or writes, and whether it is open."""
        for tier in within(self._chain):
            if isinstance(tier, Breaker):
                for circuit in CIRCUITS:
                    yield tier.name, circuit, circuit in tier.open
            elif hasattr(tier, "link"):  # a Redis that is down is asked for nothing
                for circuit in CIRCUITS:
                    yield tier.name, circuit, not tier.link.up

    @property
    def troubles(self) -> tuple[str, ...]:
        """Names of the tiers that are in trouble now, as far as is known without asking them."""
        return tuple(place.name for place in self._places if self._trouble(place.name))

    async def _standing(self, place: Place) -> TierStanding:
        artifacts = size = -1
        limit = 0
        if self._disk is not None and place.name == self._disk.name:
            await self._look(self._disk)
            if self._usage is not None:
                artifacts, size = self._usage.count, self._usage.bytes
            limit = self._disk.limit_bytes
        operations = {
            f"{op}.{outcome}": count
            for (tier, op, outcome), count in sorted(self.counts.operations.items())
            if tier == place.name
        }
        return TierStanding(
            place.name, place.url, artifacts, size, limit, operations, self._trouble(place.name)
        )

    async def _look(self, disk: DiskTier) -> None:
        """Read the disk's numbers. One look at a time: it may stand in line behind large publishes, or a lock."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._read_usage(disk))
        await asyncio.wait({self._looking}, timeout=LOOK_SECONDS)

    async def _read_usage(self, disk: DiskTier) -> None:
        try:
            self._usage = await disk.usage()
        except TierError as exc:
            log.warning("%s: %s", disk.name, exc)
            self._usage = None

    def _trouble(self, name: str) -> str:
        for tier in getattr(self._chain, "tiers", (self._chain,)):
            troubled = innermost(tier, lambda inner: hasattr(inner, "trouble"))
            if tier.name == name and troubled is not None:
                return str(getattr(troubled, "trouble", ""))
        return ""
