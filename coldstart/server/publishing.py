"""Taking in an artifact: what a publisher says is checked against itself, the bytes are spooled and hashed.

Nothing here decides who may publish or what is stored; that is `Lookups`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from coldstart import artifact
from coldstart.artifact import Artifact, BytesPayload, FilePayload, Header
from coldstart.errors import ArtifactCorrupt, InvalidRequest, TierError, TooLarge
from coldstart.identity.key import KeyRecord, is_key, key_of

SPOOL_BYTES = 4 << 20  # written at once: a hop to a thread per chunk would cost more than the write
MAX_MEMORY_BYTES = 1 << 30  # without a disk the bytes are held in memory; more than this is refused

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Publication:
    """The start of a publish: everything but the bytes."""

    lookup_id: str
    lease_id: str  # "": after a fallback
    header: Header
    record: KeyRecord
    planned: bool


def read_header(body: bytes) -> Header:
    """A header off the wire, with every field of the type and in the range that the store relies on.

    Raises:
        InvalidRequest, ArtifactCorrupt, ArtifactMismatch: it is not a header that can be stored.
    """
    if len(body) > artifact.MAX_HEADER_BYTES:
        raise InvalidRequest(
            f"header is {len(body)} bytes, the limit is {artifact.MAX_HEADER_BYTES}"
        )
    try:
        header = artifact.decode_header(body)
    except RecursionError as exc:
        raise InvalidRequest("header is nested too deep to be one") from exc
    for field in fields(Header):
        value = getattr(header, field.name)
        if not _has_type(value, str(field.type)):
            raise InvalidRequest(f"header field {field.name} is not {field.type}: {value!r:.80}")
    if header.encode() != body:
        raise InvalidRequest("header is not in its canonical encoding (sorted keys, no spaces)")
    if not is_key(header.key):
        raise InvalidRequest(f"header.key is not a key: {header.key!r:.80}")
    for name in ("digest", "module_digest"):
        text = getattr(header, name)
        if len(text) != 64 or not _HEX.issuperset(text):
            raise InvalidRequest(f"header.{name} is not 64 hex digits: {text!r:.80}")
    if header.codec not in artifact.CODECS:
        raise InvalidRequest(
            f"header.codec is {header.codec!r:.80}, known: {', '.join(artifact.CODECS)}"
        )
    if list(header.cpu_features) != sorted(set(header.cpu_features)):
        raise InvalidRequest("header.cpu_features is not sorted, or names one twice")
    return header


def check_against_record(header: Header, record: KeyRecord) -> None:
    """Raises InvalidRequest where the artifact and the key record are not about the same compile."""
    key = key_of(record)
    if header.key != key:
        raise InvalidRequest(
            f"header.key {header.key[:16]} is not the record's key {key[:16]}; publish under the record's"
        )
    if header.module_digest != record.module_digest:
        raise InvalidRequest(
            f"header.module_digest {header.module_digest[:12]} is not the record's program component "
            f"{record.module_digest[:12]}: another module was compiled"
        )
    if header.target != record["target"].value:
        raise InvalidRequest(
            f"header.target {header.target!r:.80} is not the record's {record['target'].value!r:.80}"
        )


class Spool:
    """Where the bytes of one publish go until they are known to be good. A context manager: leaves nothing behind.

    `path` is a file that the disk reserved; it comes to hold a whole artifact, prefix first, so that the disk can
    keep it as it is.
    """

    def __init__(self, header: Header, path: Path | None) -> None:
        self._header = header
        self._path = path
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._kept: list[bytes] = []  # without a disk

    async def __aenter__(self) -> Spool:
        header = self._header
        if self._path is not None:
            try:
                self._file = await asyncio.to_thread(self._path.open, "r+b")
                await asyncio.to_thread(self._file.write, header.prefix())
            except OSError as exc:
                raise TierError(f"spool: can't write {self._path.name}: {exc.strerror}") from exc
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
        await asyncio.to_thread(self._file.close)
        offset = len(self._header.prefix())
        return Artifact(self._header, FilePayload(self._path, offset, self._size))

    async def _flush(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        try:
            await asyncio.to_thread(self._write, pending)
        except OSError as exc:
            raise TierError(f"spool: can't write: {exc.strerror}") from exc

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
        if self._file is not None:
            self._file.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()


def _has_type(value: object, annotation: str) -> bool:
    if annotation == "str":
        return isinstance(value, str)
    if annotation == "int":
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    if annotation == "float":
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and 0 <= value < 1e12
        )
    return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
