"""Artifact: a self-describing header and an encoded payload. Immutable once made.

    artifact     = magic header_size header header_hash payload
    magic        = "CSA1"                      4 bytes; another magic is another format: refused
    header_size  = uint32, big endian          at most 1 MiB
    header       = UTF-8 JSON, sorted keys, no spaces
    header_hash  = sha256(header)              32 bytes
    payload      = `payload_bytes` bytes       encoded by `codec`; sha256 of *these* bytes is `digest`

A *signature* (trust/statement.py) is about all of that and part of none of it: a `Header` carries the one that it came
with, and each tier keeps it beside the header. Bytes without one are the same artifact, not vouched for.

The header is the truth for the codec; an unknown codec is refused, never guessed. A payload is encoded once, by
the publisher, and never re-encoded between tiers. Whoever copies bytes hashes them on the way; whoever loads
calls `verify` and `decode`, which check header hash, size and digest before anything is decompressed.

Way in: `make`, `read_prefix`, `verify`, `decode`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from coldstart.errors import ArtifactCorrupt, ArtifactMismatch

MAGIC = b"CSA1"
FORMAT = 1
MAX_HEADER_BYTES = 1 << 20
CODECS = ("zstd", "raw")
ZSTD_LEVEL = 3  # measured on a TPU executable: 8.3 MB -> 1.0 MB at 650 MB/s
CHUNK_BYTES = 1 << 20
MAX_SIGNATURE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Header:
    """What an artifact says of itself. Every field is checked by some gate before its payload is loaded."""

    key: str  # canonical key it is stored under
    module_digest: str  # sha256 (hex) of the normal form of the module that was compiled
    digest: str  # sha256 (hex) of the encoded payload
    payload_bytes: int  # size of the encoded payload
    raw_bytes: int  # size of the decoded payload
    codec: str  # one of CODECS
    platform: str  # cpu, tpu, gpu
    target: str  # the key record's target component, in full
    partitions: int
    replicas: int
    callbacks: int  # host callbacks that the program was compiled with
    cpu_features: tuple[str, ...] = ()  # ISA features that the code may use; sorted; cpu only
    compile_seconds: float = 0.0
    created_unix: float = 0.0
    producer: str = ""  # who published, for people until signatures say it
    program_name: str = ""
    compiler: str = ""  # compiler build, for people; the target holds what is keyed
    format: int = FORMAT
    _body: bytes = field(default=b"", init=False, repr=False, compare=False)
    _signature: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def variant(self) -> str:
        """Which of a key's artifacts this is: a short hash of the CPU features, "" where there are none."""
        if not self.cpu_features:
            return ""
        return hashlib.sha256(",".join(self.cpu_features).encode()).hexdigest()[:16]

    @property
    def signature(self) -> bytes:
        """What came beside the header, as trust/statement.py encodes it; b"": nothing. Nobody has checked it yet."""
        return self._signature

    def signed(self, signature: bytes) -> Header:
        """The same header with that signature beside it. What can't be one by its form is left out."""
        if len(signature) > MAX_SIGNATURE_BYTES or not signature.isascii():
            signature = b""
        header = replace(self)
        object.__setattr__(header, "_body", self._body)
        object.__setattr__(header, "_signature", signature)
        return header

    def encode(self) -> bytes:
        """The header's bytes as they are hashed."""
        if not self._body:  # kept: a daemon hands the same header out again and again
            data: dict[str, Any] = {name: getattr(self, name) for name in _KINDS}
            data["cpu_features"] = list(self.cpu_features)
            body = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
            object.__setattr__(self, "_body", body)
        return self._body

    def prefix(self) -> bytes:
        """Everything of the artifact's bytes that stands before the payload."""
        body = self.encode()
        return MAGIC + len(body).to_bytes(4, "big") + body + hashlib.sha256(body).digest()


# What `decode_header` insists on: annotations are text here, so the kinds are looked up by it.
_KIND_OF: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "tuple[str, ...]": (tuple,),
}
_KINDS = {f.name: _KIND_OF[str(f.type)] for f in fields(Header) if f.init}


class Payload(Protocol):
    """Encoded bytes, wherever they lie. Chunks so that 600 MB never need to be in memory at once."""

    @property
    def size_bytes(self) -> int: ...

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The bytes in order. Blocking I/O: call off the event loop. Raises OSError when a file is gone."""
        ...


@dataclass(frozen=True, slots=True)
class BytesPayload:
    """A payload in memory."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        for start in range(0, len(self.data), chunk_bytes):
            yield self.data[start : start + chunk_bytes]


@dataclass(frozen=True, slots=True)
class FilePayload:
    """A payload inside a file that holds a whole artifact."""

    path: Path
    offset: int  # where the payload starts
    size_bytes: int

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
        left = self.size_bytes
        with open_regular(self.path) as file:
            file.seek(self.offset)
            while left > 0:
                chunk = file.read(min(chunk_bytes, left))
                if not chunk:
                    return  # short file: the reader's size check says so
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True, slots=True)
class Artifact:
    """A header and where its payload is."""

    header: Header
    payload: Payload


def make(raw: bytes, *, codec: str = "zstd", **about: Any) -> Artifact:
    """Encode `raw` and describe it; `about` holds the remaining fields of `Header`."""
    encoded = _encode(raw, codec)
    header = Header(
        digest=hashlib.sha256(encoded).hexdigest(),
        payload_bytes=len(encoded),
        raw_bytes=len(raw),
        codec=codec,
        **about,
    )
    return Artifact(header, BytesPayload(encoded))


def read_header(prefix: bytes) -> tuple[Header, int]:
    """Parse and check an artifact's prefix; returns the header and the payload's offset.

    `prefix` may be longer than the prefix; a whole artifact will do.

    Raises:
        ArtifactCorrupt: not an artifact, torn, or its header hash is wrong.
        ArtifactMismatch: a format that this reader doesn't know (reason `format`).
    """
    if len(prefix) < 8:
        raise ArtifactCorrupt("artifact is shorter than its own prefix")
    if prefix[:4] != MAGIC:
        raise ArtifactMismatch(
            f"artifact magic is {prefix[:4]!r}, this reader knows {MAGIC!r}", reason="format"
        )
    size = int.from_bytes(prefix[4:8], "big")
    if size > MAX_HEADER_BYTES:
        raise ArtifactCorrupt(
            f"artifact header claims {size} bytes, the limit is {MAX_HEADER_BYTES}"
        )
    end = 8 + size + 32
    if len(prefix) < end:
        raise ArtifactCorrupt("artifact ends inside its header")
    body = prefix[8 : 8 + size]
    if hashlib.sha256(body).digest() != prefix[8 + size : end]:
        raise ArtifactCorrupt("artifact header does not match its hash")
    return decode_header(body), end


def decode_header(body: bytes) -> Header:
    """Read `Header.encode`'s bytes (their hash having been checked where they come from a store)."""
    try:
        data = json.loads(body)
        if data.get("format") != FORMAT:
            raise ArtifactMismatch(
                f"artifact format {data.get('format')!r}, this reader knows {FORMAT}",
                reason="format",
            )
        data["cpu_features"] = tuple(data["cpu_features"])
        header = Header(**data)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ArtifactCorrupt(f"artifact header can't be read: {exc}") from exc
    for name, kinds in _KINDS.items():
        value = getattr(header, name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ArtifactCorrupt(f"artifact header has no usable {name}: {value!r:.80}")
    if not all(isinstance(feature, str) for feature in header.cpu_features):
        raise ArtifactCorrupt("artifact header has a CPU feature that is no text")
    return header


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        OSError: it can't be opened. ArtifactCorrupt: a pipe, folder or device: reading those may never end.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except BlockingIOError:  # a file that another program has a lease on, which it now gives back
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ArtifactCorrupt(f"{path} is no regular file")
    return os.fdopen(fd, "rb")


def open_file(path: Path) -> Artifact:
    """The artifact in a file: its header checked, its payload left where it is.

    Raises:
        FileNotFoundError: no such file. ArtifactCorrupt, ArtifactMismatch: as `read_header`, or wrong size.
    """
    with open_regular(path) as file:
        start = file.read(8)
        size = int.from_bytes(start[4:8], "big") if len(start) == 8 else 0
        prefix = start + file.read(min(size, MAX_HEADER_BYTES) + 32)
        header, offset = read_header(prefix)
        actual = os.fstat(file.fileno()).st_size - offset
    if actual != header.payload_bytes:
        raise ArtifactCorrupt(f"payload is {actual} bytes, its header says {header.payload_bytes}")
    return Artifact(header, FilePayload(path, offset, header.payload_bytes))


def verify(artifact: Artifact) -> bytes:
    """The encoded payload, checked against the header's size and digest. Whoever loads calls this."""
    digest = hashlib.sha256()
    parts: list[bytes] = []
    for chunk in artifact.payload.chunks():
        digest.update(chunk)
        parts.append(chunk)
    encoded = b"".join(parts)
    if len(encoded) != artifact.header.payload_bytes:
        raise ArtifactCorrupt(
            f"payload is {len(encoded)} bytes, its header says {artifact.header.payload_bytes}"
        )
    if digest.hexdigest() != artifact.header.digest:
        raise ArtifactCorrupt(
            f"payload digest {digest.hexdigest()[:12]} is not the header's {artifact.header.digest[:12]}"
        )
    return encoded


def decode(artifact: Artifact) -> bytes:
    """The payload as the runtime wants it: verified first, then decoded.

    Raises:
        ArtifactCorrupt: size, digest or encoding wrong. ArtifactMismatch: unknown codec (reason `codec`).
    """
    header = artifact.header
    if header.codec not in CODECS:
        raise ArtifactMismatch(
            f"artifact codec {header.codec!r} is unknown here; known: {', '.join(CODECS)}",
            reason="codec",
        )
    encoded = verify(artifact)
    if header.codec == "raw":
        raw = encoded
    else:
        try:
            raw = zstandard.ZstdDecompressor().decompress(encoded, max_output_size=header.raw_bytes)
        except zstandard.ZstdError as exc:
            raise ArtifactCorrupt(f"payload can't be decompressed: {exc}") from exc
    if len(raw) != header.raw_bytes:
        raise ArtifactCorrupt(
            f"decoded payload is {len(raw)} bytes, its header says {header.raw_bytes}"
        )
    return raw


def _encode(raw: bytes, codec: str) -> bytes:
    if codec == "raw":
        return raw
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(raw)
    raise ArtifactMismatch(f"unknown codec {codec!r}; known: {', '.join(CODECS)}", reason="codec")
