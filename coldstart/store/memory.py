"""MemoryTier: the reference tier, and the double in everybody's tests.

Says in the fewest lines what the contract in tier.py asks. Bounded: the least recently used artifact goes first.
Not durable. One event loop; no locks, as nothing here awaits between a check and what follows from it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

from coldstart.artifact import Artifact, BytesPayload, Header, verify
from coldstart.errors import TierError, TooLarge
from coldstart.identity.key import KeyRecord
from coldstart.store.kept import Kept
from coldstart.store.names import check_digest, check_key, check_new
from coldstart.store.recorder import Recorder, ignore

DEFAULT_LIMIT_BYTES = 1 << 30


class MemoryTier:
    """Artifacts in a dictionary."""

    def __init__(
        self,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        recorder: Recorder = ignore,
        name: str = "memory",
    ) -> None:
        self._name = name
        self._limit_bytes = limit_bytes
        self._recorder = recorder
        # (key, variant) -> artifact; the least recently used first
        self._artifacts: OrderedDict[tuple[str, str], Artifact] = OrderedDict()
        self._records: dict[str, KeyRecord] = {}
        self._used_bytes = 0
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def writable(self) -> bool:
        return True

    @property
    def used_bytes(self) -> int:
        """Encoded payloads held now."""
        return self._used_bytes

    async def find(self, key: str) -> tuple[Header, ...]:
        self._check_open()
        check_key(key)
        return tuple(
            artifact.header for (held, _), artifact in self._artifacts.items() if held == key
        )

    async def get(self, key: str, digest: str) -> Artifact | None:
        self._check_open()
        place = self._place(check_key(key), check_digest(digest))
        if place is None:
            return None
        self._artifacts.move_to_end(place)
        return self._artifacts[place]

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        self._check_open()
        header = artifact.header
        check_new(header, artifact.payload.size_bytes)
        if header.payload_bytes > self._limit_bytes:
            raise TooLarge(
                f"{self._name}: an artifact of {header.payload_bytes} bytes never fits in {self._limit_bytes}"
            )
        place = (header.key, header.variant)
        if place not in self._artifacts:
            try:
                encoded = await asyncio.to_thread(verify, artifact)
            except OSError as exc:
                raise TierError(f"{self._name}: the payload to store can't be read: {exc}") from exc
            if place not in self._artifacts:  # nobody else was faster meanwhile
                self._make_room(header.payload_bytes)
                self._artifacts[place] = Artifact(header, BytesPayload(encoded))
                self._used_bytes += header.payload_bytes
        if record is not None:
            self._records.setdefault(header.key, record)
        return self._artifacts[place].header

    async def record(self, key: str) -> KeyRecord | None:
        self._check_open()
        return self._records.get(check_key(key))

    async def delete(self, key: str, digest: str) -> bool:
        self._check_open()
        place = self._place(check_key(key), check_digest(digest))
        if place is None:
            return False
        self._drop(place)
        return True

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        """Nothing is kept aside: what is in memory is gone before anybody could look."""
        return await self.delete(key, digest)

    async def scan(self) -> AsyncIterator[Kept]:
        self._check_open()
        for artifact in tuple(self._artifacts.values()):
            header = artifact.header
            yield Kept(header, len(header.prefix()) + header.payload_bytes)

    async def close(self) -> None:
        self._closed = True
        self._artifacts.clear()
        self._records.clear()
        self._used_bytes = 0

    def _place(self, key: str, digest: str) -> tuple[str, str] | None:
        for place, artifact in self._artifacts.items():
            if place[0] == key and artifact.header.digest == digest:
                return place
        return None

    def _make_room(self, need_bytes: int) -> None:
        while self._used_bytes + need_bytes > self._limit_bytes:
            self._drop(next(iter(self._artifacts)))
            self._recorder(self._name, "evict", "ok", 0.0)

    def _drop(self, place: tuple[str, str]) -> None:
        self._used_bytes -= self._artifacts.pop(place).header.payload_bytes
        if not any(key == place[0] for key, _ in self._artifacts):
            self._records.pop(place[0], None)

    def _check_open(self) -> None:
        if self._closed:
            raise TierError(f"{self._name}: the tier is closed")
