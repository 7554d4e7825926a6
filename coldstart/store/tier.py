"""Tier: one place that holds artifacts. The contract that every tier, wrapper and the chain keep.

- An artifact is found by its key and *variant* (the CPU features it needs; "" for platforms that have none)
  and fetched by digest. In one tier a (key, variant) has one authoritative digest at a time: the first `put`
  wins, later ones adopt.
- None or an empty tuple is a certain miss. Not knowing is an exception (`TierError`, `TierTimeout`).
- `put` is whole or invisible, and durable when it returns (for tiers that are durable at all).
- A tier that copies bytes in hashes them on the way and raises `ArtifactCorrupt` when they don't fit the
  header's digest. Whoever *loads* checks again; a tier does not promise that bytes stayed good at rest.
- Nobody but `server/app.py` and the CLI's in-process daemon knows the concrete classes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from coldstart.artifact import Artifact, Header
from coldstart.identity.key import KeyRecord
from coldstart.store.kept import Kept


class Tier(Protocol):
    """One place that holds artifacts. No defaults: a wrapper can't forget a method."""

    @property
    def name(self) -> str:
        """Short, stable, used as a metric label: memory, disk, redis, gcs, chain."""
        ...

    @property
    def writable(self) -> bool:
        """False: `put` and `delete` raise TierError. A fact about this tier, never about a chain."""
        ...

    async def find(self, key: str) -> tuple[Header, ...]:
        """Headers stored under `key`, one per variant; empty is a certain miss.

        Does not read payloads and does not count as a use.
        """
        ...

    async def get(self, key: str, digest: str) -> Artifact | None:
        """The artifact with that digest, counted as a use; None if this tier does not have it.

        Raises:
            ArtifactCorrupt: it had one, and what can be seen without reading the payload is wrong. It was put
                aside: the next `put` of its variant wins.
        """
        ...

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        """Store `artifact` (its header names key and variant) and its key record beside it.

        Returns the authoritative header: its own, or the one that was there before (adopt it).

        Raises:
            ArtifactCorrupt: the payload doesn't have the header's size or digest; nothing was stored.
            TierFull: no room now. TooLarge: never fits. TierError: anything else.
        """
        ...

    async def record(self, key: str) -> KeyRecord | None:
        """The key record stored beside the artifacts of `key`."""
        ...

    async def delete(self, key: str, digest: str) -> bool:
        """Remove one artifact; True if it was there. The next `put` of its variant then wins.

        Nobody finds it from then on; who was promised its file may have it for as long as was promised.
        """
        ...

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        """As `delete`, but keep the bad bytes aside where the tier can (bounded), for a post-mortem."""
        ...

    def scan(self) -> AsyncIterator[Kept]:
        """All that is stored here, one artifact at a time, in no order. For upkeep: it may take minutes.

        What comes or goes meanwhile may be told or not. Reads no payloads and doesn't count as a use.

        Raises:
            TierError: on the way; what was told before it holds.
        """
        ...

    async def close(self) -> None:
        """Finish what was promised and let go of resources. Idempotent."""
        ...
