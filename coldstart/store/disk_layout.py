"""Names, locks and the few file operations that DiskTier's durability rests on.

    <root>/v1/
      objects/<2 hex>/<digest>-<header>.csa   whole artifact files; <header> = 16 hex of the header's sha256
      keys/<2 hex>/<key>/<variant or any>     one small JSON: the header, its hash, the digest, its signature
      records/<2 hex>/<key>.json              the key record
      tmp/<owner>-<random>                    not published yet; swept when the owner is dead
      tmp/<owner>.owner                       held locked while its process lives
      quarantine/                             bad copies, a few
      nonces/                                 files by which a client proves that it sees this volume
      locks/<2 hex>, locks/limit              flock; never deleted
      late/                                   late_marks.py: what other tiers have still to be given

The header is part of an object's name because two keys can have byte-identical payloads: each keeps its own file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coldstart.errors import TierError, TierFull, TierTimeout

LAYOUT = "v1"
NO_VARIANT = "any"
LOCK_SECONDS = 10.0  # locks are held for a few fsyncs; a holder that takes longer is frozen
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Layout:
    """Where things lie under one root. Builds paths; every part of one was checked by names.py."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = root / LAYOUT
        self.objects = self.base / "objects"
        self.keys = self.base / "keys"
        self.records = self.base / "records"
        self.tmp = self.base / "tmp"
        self.quarantine = self.base / "quarantine"
        self.nonces = self.base / "nonces"
        self.locks = self.base / "locks"

    @property
    def folders(self) -> tuple[Path, ...]:
        return (
            self.objects,
            self.keys,
            self.records,
            self.tmp,
            self.quarantine,
            self.nonces,
            self.locks,
        )

    def make_folders(self) -> None:
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)

    def made_anew(self, device: int) -> bool:
        """True if folders of the store were missing, as somebody cleaned up, and are there again, empty.

        Not on another file system than `device`: then a volume isn't mounted, and what lies there now is another's.
        """
        if all(folder.exists() for folder in self.folders) or self.device() != device:
            return False
        self.make_folders()
        return True

    def device(self) -> int:
        """That of the file system on which the store is, or would be made."""
        place = self.root
        while not place.exists() and place != place.parent:
            place = place.parent
        return os.stat(place).st_dev

    def check_writable(self) -> None:
        """Raises OSError naming a folder where nothing can be written."""
        for folder in self.folders:
            if not os.access(folder, os.W_OK | os.X_OK):
                read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
                number = errno.EROFS if read_only else errno.EACCES
                raise OSError(number, os.strerror(number), str(folder))

    def aside(self, name: str) -> Path:
        """Where to put what is bad; names sort by time."""
        return self.quarantine / f"{time.time_ns():020}-{name}"

    def displace(self, path: Path) -> None:
        """What lies at a name of ours and isn't of its kind (a folder for a file, a file for a folder) goes aside:
        whoever put it there, it keeps a key from being stored for ever."""
        os.rename(path, self.aside("displaced"))

    def object(self, digest: str, header_body: bytes) -> Path:
        tag = hashlib.sha256(header_body).hexdigest()[:16]
        return self.objects / digest[:2] / f"{digest}-{tag}.csa"

    def key_folder(self, key: str) -> Path:
        return self.keys / shard(key) / key

    def index(self, key: str, variant: str) -> Path:
        return self.key_folder(key) / (variant or NO_VARIANT)

    def record(self, key: str) -> Path:
        return self.records / shard(key) / f"{key}.json"

    def lock(self, key: str) -> Path:
        return self.locks / shard(key)

    @property
    def limit_lock(self) -> Path:
        return self.locks / "limit"


def shard(key: str) -> str:
    """The two hex digits that a key's files are filed under."""
    return key.partition("-")[2][:2]


@contextmanager
def flocked(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold `path` locked, against other processes and other threads. Raises TierTimeout after `seconds` in vain.

    Order where two are held: limit before a key's.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except IsADirectoryError:
        with suppress(OSError):
            os.rename(path, path.with_name(f"displaced-{time.time_ns()}"))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        give_up = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise TierTimeout(
                        f"disk: {path} is held by a process that does not go on; is one stopped?"
                    ) from None
                time.sleep(0.002)
        yield
    finally:
        os.close(fd)


@contextmanager
def translated(doing: str, path: Path) -> Iterator[None]:
    """The operating system's words become ours, with the path and what to do about it."""
    try:
        yield
    except OSError as exc:
        where = exc.filename or path
        if exc.errno in NO_ROOM:
            raise TierFull(
                f"disk: no space left for {doing} at {where}; free some, or lower cs.limit"
            ) from exc
        if exc.errno in NOT_ALLOWED:
            raise TierError(
                f"disk: {doing} not allowed at {where} ({exc.strerror}); give user id {os.geteuid()} "
                "the right to it, or open the store with cs.write=false if it is only to be read"
            ) from exc
        raise TierError(f"disk: {doing} failed at {where}: {exc.strerror or exc}") from exc


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_file(path: Path, data: bytes) -> None:
    """A new small file, its bytes on the disk when this returns (its name is not: sync_folder)."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def unlink(path: Path) -> bool:
    """Remove a file; True if it was there."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):  # the latter: its folder isn't there either
        return False
    return True


def remove(path: Path) -> bool:
    """Remove a file, or a folder with all that is in it; True if it was there."""
    try:
        return unlink(path)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
        return True
