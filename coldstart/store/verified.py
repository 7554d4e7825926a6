"""Verified: a tier whose artifacts are only those that may be believed. The gate says which; here nobody knows why.

- `find` and `get` leave out what the gate refuses: to whoever asks, it isn't there. Nothing is taken away for that: a
  daemon that has the wrong keys must not empty a store that others read.
- `put` takes only what the gate lets pass, and puts a refused copy aside that lies in its place: so the next publish
  repairs what somebody has planted, or what was signed with a key that is revoked since.
- The tier's *signature* travels with the header (`Header.signature`).

Inside the metered wrapper, outside of everything else. `refused_recently` tells why a key was not found.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from coldstart.artifact import Artifact, Header
from coldstart.errors import ArtifactMismatch, TierError
from coldstart.identity.key import KeyRecord, key_of
from coldstart.store.kept import Kept
from coldstart.store.pointers import Pointing, pointing_of
from coldstart.store.tier import Tier

log = logging.getLogger(__name__)

# A tier's name and a header with its signature -> why it must not be believed; "": it may.
Gate = Callable[[str, Header], str]

REFUSED_KEYS = 4096  # remembered so that a later miss can say why
TRIES = 3  # of a put that somebody gets in the way of with more of what is refused


class Verified:
    """The artifacts of a tier that the gate lets pass."""

    def __init__(self, inner: Tier, gate: Gate) -> None:
        self.inner = inner
        self._gate = gate
        self._refused: OrderedDict[str, None] = OrderedDict()  # keys, until something sound is put

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def writable(self) -> bool:
        return self.inner.writable

    async def find(self, key: str) -> tuple[Header, ...]:
        return tuple(header for header in await self.inner.find(key) if self._passes(header))

    async def get(self, key: str, digest: str) -> Artifact | None:
        found = await self.inner.get(key, digest)
        return found if found is not None and self._passes(found.header) else None

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        """Raises, besides, ArtifactMismatch (reason `signature`): it may not be stored."""
        mine = artifact.header
        why = self._gate(self.name, mine)
        if why:
            raise ArtifactMismatch(
                f"{self.name}: put of {mine.key[:16]} refused: {why}", reason="signature"
            )
        for _ in range(TRIES):
            if self.writable:
                await self._make_way(mine)
            stored = await self.inner.put(artifact, record)
            if stored is mine or self._passes(stored):
                self._refused.pop(mine.key, None)
                return stored
        raise TierError(
            f"{self.name}: what lies at {mine.key[:16]} is not to be believed, and stays"
        )

    async def record(self, key: str) -> KeyRecord | None:
        """Only one that the key is made of: nothing else vouches for it."""
        record = await self.inner.record(key)
        return record if record is not None and key_of(record) == key else None

    async def delete(self, key: str, digest: str) -> bool:
        return await self.inner.delete(key, digest)

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        return await self.inner.quarantine(key, digest, reason)

    def scan(self) -> AsyncIterator[Kept]:
        """Refused ones too: upkeep is how they go."""
        return self.inner.scan()

    async def close(self) -> None:
        await self.inner.close()

    def refused_recently(self, key: str) -> bool:
        """True if something of `key` was refused here, and nothing sound was put since."""
        return key in self._refused

    async def _make_way(self, mine: Header) -> None:
        """Put aside what lies in its place and is not to be believed."""
        for header in await self.inner.find(mine.key):
            if header.variant == mine.variant and not self._passes(header):
                log.warning("%s: an artifact that is refused gives way to a publish", self.name)
                await self.inner.quarantine(header.key, header.digest, "signature")

    def _passes(self, header: Header) -> bool:
        if not self._gate(self.name, header):
            return True
        self._refused[header.key] = None
        if len(self._refused) > REFUSED_KEYS:
            self._refused.popitem(last=False)
        return False


class VerifiedPointing(Verified):
    """As `Verified`, around a tier with rows about what lies in others (pointers.py)."""

    def __init__(self, inner: Tier, gate: Gate, pointing: Pointing) -> None:
        super().__init__(inner, gate)
        self._pointing = pointing

    async def point(self, header: Header, below: str) -> None:
        if not self._passes(header):
            return
        for row, _ in await self._pointing.pointed(header.key):
            if row.variant == header.variant and not self._passes(row):
                with suppress(TierError):
                    await self._pointing.unpoint(header.key, row.digest)
        await self._pointing.point(header, below)

    async def pointed(self, key: str) -> tuple[tuple[Header, str], ...]:
        rows = await self._pointing.pointed(key)
        return tuple((header, below) for header, below in rows if self._passes(header))

    async def unpoint(self, key: str, digest: str) -> None:
        await self._pointing.unpoint(key, digest)


def verified(inner: Tier, gate: Gate) -> Tier:
    """`inner`, with the wrapper that fits it."""
    pointing = pointing_of(inner)
    return Verified(inner, gate) if pointing is None else VerifiedPointing(inner, gate, pointing)
