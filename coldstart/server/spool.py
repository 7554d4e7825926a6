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
from coldstart.errors import ArtifactCorrupt, TierError, TooLarge
from coldstart.store.disk_layout import translated

SPOOL_BYTES = 4 << 20  # written at once: a hop to a thread per chunk would cost more than the write
# Room is asked for as bytes arrive, for as much again as came already, up to this much ahead.
AHEAD_BYTES = 64 << 20
MAX_MEMORY_BYTES = 1 << 30  # without a disk the bytes are held in memory; more than this is refused

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """An empty file of a disk's, and what the disk does for who writes to it."""

    path: Path
    # Asked for the room before more is written: what is announced and never sent takes none.
    grow: Callable[[Path, int], Awaitable[None]]
    run: Callable[[Callable[[], None]], Awaitable[None]]  # blocking work; TierTimeout in the end
    refused: Callable[[TierError], None]  # told why the disk didn't take it


class Spool:
    """Where the bytes of one publish go until they are known to be good. A context manager: leaves nothing behind.

    On a disk a file comes to hold a whole artifact, prefix first, so that the disk can keep it as it is. Without one
    (`place` is None) the bytes are held in memory.
    """

    def __init__(self, header: Header, place: DiskPlace | None) -> None:
        self._header = header
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
        elif header.payload_bytes > MAX_MEMORY_BYTES:
            raise TooLarge(
                f"payload is {header.payload_bytes} bytes; a daemon without a disk tier takes "
                f"{MAX_MEMORY_BYTES}"
            )
        return self

    async def take(self, chunks: AsyncIterator[bytes]) -> Artifact:
        """All bytes, checked against the header's size and digest.

        Raises:
            ArtifactCorrupt: they don't fit. TierError: the disk didn't take them.
        """
        async for chunk in chunks:
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
            return Artifact(self._header, BytesPayload(b"".join(self._kept)))
        await self._on_disk(self._file.close)
        offset = len(self._header.prefix())
        return Artifact(self._header, FilePayload(self._path, offset, self._size))

    async def _flush(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
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
        if self._file is not None:
            with contextlib.suppress(OSError):  # what is still in its buffer: nobody wants it
                self._file.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
