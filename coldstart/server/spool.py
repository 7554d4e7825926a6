"""Spool: where the bytes of one publish go, hashed on the way, until they are known to be good."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from coldstart.artifact import Artifact, BytesPayload, FilePayload, Header
from coldstart.errors import ArtifactCorrupt, TierError, TierFull, TooLarge
from coldstart.store.disk_layout import translated

SPOOL_BYTES = 4 << 20  # written at once: a hop to a thread per chunk would cost more than the write
# Room is asked for as bytes arrive, for as much again as came already, up to this much ahead.
AHEAD_BYTES = 64 << 20
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """An empty file of a disk's, and what the disk does for who writes to it."""

    path: Path
    # Asked for the room before more is written: what is announced and never sent takes none.
    grow: Callable[[Path, int], Awaitable[None]]
    run: Callable[[Callable[[], None]], Awaitable[None]]  # blocking work; TierTimeout in the end
    refused: Callable[[TierError], None]  # told why the disk didn't take it


class SpoolMemory:
    """What all publishes of a daemon may hold in memory at once. On one event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0

    def hold(self, more_bytes: int) -> None:
        """Raises TierFull."""
        if self.held_bytes + more_bytes > self.limit_bytes:
            raise TierFull(
                f"publishes hold {self.held_bytes} bytes in memory, spool_memory is {self.limit_bytes}: no room "
                f"for {more_bytes} more"
            )
        self.held_bytes += more_bytes

    def give_back(self, bytes_held: int) -> None:
        self.held_bytes -= bytes_held


class Spool:
    """Where the bytes of one publish go until they are known to be good. A context manager: leaves nothing behind.

    On a disk a file comes to hold a whole artifact, prefix first, so that the disk can keep it as it is. Without one
    (`place` is None) the bytes are held in memory until the spool is left, and twice while they are put together.
    """

    def __init__(self, header: Header, place: DiskPlace | None, memory: SpoolMemory) -> None:
        self._header = header
        self._memory = memory
        self._held_bytes = 0  # of it
        self._place = place
        self._path = None if place is None else place.path
        self._room_bytes = 0
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._kept: list[bytes] = []  # without a disk

    async def __aenter__(self) -> Spool:
        header = self._header
        if self._place is not None:
            try:
                await self._on_disk(self._open)
            except BaseException:
                self._close()
                raise
        elif 2 * header.payload_bytes > self._memory.limit_bytes:
            raise TooLarge(
                f"payload is {header.payload_bytes} bytes; without a disk that takes it a half of "
                f"spool_memory={self._memory.limit_bytes} is the most"
            )
        return self

    async def take(self, chunks: AsyncIterator[bytes]) -> Artifact:
        """All bytes, checked against the header's size and digest.

        Raises:
            ArtifactCorrupt: they don't fit. TierError: the disk didn't take them. TierFull: no memory for them.
        """
        async for chunk in chunks:
            self._hold(len(chunk))
            self._size += len(chunk)
            if self._size > self._header.payload_bytes:
                raise ArtifactCorrupt(
                    f"payload is longer than the {self._header.payload_bytes} bytes that its header says"
                )
            self._pending.append(chunk)
            self._pending_bytes += len(chunk)
            if self._pending_bytes >= SPOOL_BYTES:
                await self._flush()
        await self._flush()
        if self._size != self._header.payload_bytes:
            raise ArtifactCorrupt(
                f"payload is {self._size} bytes, its header says {self._header.payload_bytes}"
            )
        if self._digest.hexdigest() != self._header.digest:
            raise ArtifactCorrupt(
                f"payload digest {self._digest.hexdigest()[:12]} is not the header's "
                f"{self._header.digest[:12]}"
            )
        if self._file is None or self._path is None:
            self._hold(self._size)
            whole = b"".join(self._kept)
            self._kept.clear()
            self._give_back(self._size)
            return Artifact(self._header, BytesPayload(whole))
        await self._on_disk(self._file.close)
        offset = len(self._header.prefix())
        return Artifact(self._header, FilePayload(self._path, offset, self._size))

    async def _flush(self) -> None:
        pending, pending_bytes = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._place is None:
            await asyncio.to_thread(self._write, pending)
            return
        prefix_bytes = len(self._header.prefix())
        needed = prefix_bytes + self._size
        if needed > self._room_bytes:
            total = prefix_bytes + self._header.payload_bytes
            self._room_bytes = min(total, 2 * needed, needed + AHEAD_BYTES)
            try:
                await self._place.grow(self._place.path, self._room_bytes)
            except TierError as exc:
                self._place.refused(exc)
                raise
        await self._on_disk(lambda: self._write(pending))
        self._give_back(pending_bytes)

    def _hold(self, more_bytes: int) -> None:
        self._memory.hold(more_bytes)
        self._held_bytes += more_bytes

    def _give_back(self, bytes_held: int) -> None:
        self._memory.give_back(bytes_held)
        self._held_bytes -= bytes_held

    async def _on_disk(self, work: Callable[[], None]) -> None:
        place = self._place
        assert place is not None
        try:
            with translated("spooling", place.path):
                await place.run(work)
        except TierError as exc:
            place.refused(exc)
            raise

    def _open(self) -> None:
        assert self._path is not None
        self._file = self._path.open("r+b")
        self._file.write(self._header.prefix())  # into the buffer

    def _write(self, pending: list[bytes]) -> None:
        for chunk in pending:
            self._digest.update(chunk)
            if self._file is not None:
                self._file.write(chunk)
            else:
                self._kept.append(chunk)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._give_back(self._held_bytes)
        if self._file is not None:
            with contextlib.suppress(OSError):  # what is still in its buffer: nobody wants it
                self._file.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
