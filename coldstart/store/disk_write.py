"""Getting an artifact's bytes onto the disk, or checking those that are there: hashed, synced, not yet named.

Blocking. `stamp_ns` becomes the file's modification time, which is an object's last use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from coldstart.artifact import Artifact, FilePayload, Header, open_file
from coldstart.errors import ArtifactCorrupt, ArtifactError, TierError
from coldstart.store.disk_layout import write_all


def copy_in(artifact: Artifact, temp: Path, stamp_ns: int) -> None:
    """Write the whole artifact to the reserved file `temp`.

    Raises:
        ArtifactCorrupt: the payload is not what the header says. TierError: it can't be read.
    """
    fd = os.open(temp, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(fd, artifact.header.prefix())
        _check(artifact, lambda chunk: write_all(fd, chunk))
        os.utime(fd, ns=(stamp_ns, stamp_ns))
        os.fsync(fd)
    finally:
        os.close(fd)


def is_whole(header: Header, payload: FilePayload) -> bool:
    """True if the payload's file is a whole artifact with that header, judged by prefix and size."""
    prefix = header.prefix()
    if payload.offset != len(prefix):
        return False
    with payload.path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return file.read(len(prefix)) == prefix and size == len(prefix) + payload.size_bytes


def is_sound(header: Header, path: Path) -> bool:
    """True if the file is that artifact, every byte of it; also where it is gone, which is no damage."""
    try:
        found = open_file(path)
        if found.header != header:
            return False
        _check(found, lambda chunk: None)
    except FileNotFoundError:
        return True
    except ArtifactError:
        return False
    return True


def check_in_place(artifact: Artifact, temp: Path, stamp_ns: int) -> None:
    """Hash what lies in `temp` already and sync it. Raises as `copy_in`."""
    _check(artifact, lambda chunk: None)
    fd = os.open(temp, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.utime(fd, ns=(stamp_ns, stamp_ns))
        os.fsync(fd)
    finally:
        os.close(fd)


def _check(artifact: Artifact, take: Callable[[bytes], None]) -> None:
    header = artifact.header
    digest, size = hashlib.sha256(), 0
    chunks = artifact.payload.chunks()
    while True:
        try:
            chunk = next(chunks, b"")
        except (
            OSError
        ) as exc:  # where the bytes come from: must not look like trouble with this disk
            raise TierError(f"disk: the payload to store can't be read: {exc}") from exc
        size += len(chunk)
        if not chunk or size > header.payload_bytes:  # never write past what was reserved
            break
        digest.update(chunk)
        take(chunk)
    if size != header.payload_bytes:
        raise ArtifactCorrupt(f"payload is {size} bytes, its header says {header.payload_bytes}")
    if digest.hexdigest() != header.digest:
        raise ArtifactCorrupt(
            f"payload digest {digest.hexdigest()[:12]} is not the header's {header.digest[:12]}"
        )
