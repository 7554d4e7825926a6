"""DiskTier: artifacts as files under one root; durable, bounded, shared by the processes that open it.

    put   reserve room -> write tmp/ while hashing -> fsync -> rename to objects/ -> fsync(folder)
          -> key record, the same -> index entry, the same, but by link: the first wins -> reply
    get   index entry -> object file; no lock; its payload stays in the file

A reader sees a whole artifact or a miss, whatever dies whenever. Layout: disk_layout.py; README.md beside it.

Way in: DiskTier(root, limit_bytes=...). For handing files over by path: `pin`, then `get`: its payload is the file.
For publishing without a second copy: `open_spool`, write the artifact there, `put` it as a FilePayload.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from coldstart.artifact import Artifact, FilePayload, Header, open_file
from coldstart.errors import (
    ArtifactCorrupt,
    ArtifactError,
    TierError,
    TierFull,
)
from coldstart.identity.key import KeyRecord
from coldstart.store.disk_index import DiskIndex, Entry, Unsound
from coldstart.store.disk_layout import Layout, flocked, translated, unlink
from coldstart.store.disk_locality import answers_at_once
from coldstart.store.disk_nonce import Nonce
from coldstart.store.disk_recent import Recent
from coldstart.store.disk_room import Room
from coldstart.store.disk_scan import in_shard, shards
from coldstart.store.disk_space import Usage
from coldstart.store.disk_sweep import Swept, sweep
from coldstart.store.disk_threads import Threads
from coldstart.store.disk_tmp import TempFolder
from coldstart.store.disk_write import check_in_place, copy_in, is_sound, is_whole
from coldstart.store.kept import Kept
from coldstart.store.names import check_digest, check_key, check_new
from coldstart.store.pins import Pins
from coldstart.store.recorder import Recorder, ignore

log = logging.getLogger(__name__)

DEFAULT_LIMIT_BYTES = 20 << 30
READ_THREADS = 4  # disks gain little from more, and each may hold a chunk of memory
WRITE_THREADS = 4  # their own, so that no reader waits behind a 600 MB publish or an eviction
# How long callers wait for a disk. A write stands in line behind others and behind locks; a large one takes longer.
READ_SECONDS, WRITE_SECONDS, SLOW_BYTES_PER_SECOND = 5.0, 30.0, 8 << 20
DAMAGED_KEYS = 4096  # remembered so that a later miss can say why

T = TypeVar("T")


class DiskTier:
    """One store on a local disk. Several processes may open one root at once."""

    def __init__(
        self,
        root: Path,
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        recorder: Recorder = ignore,
        now: Callable[
            [], float
        ] = time.time,  # stamps last uses: must be comparable after a restart
        monotonic: Callable[[], float] = time.monotonic,  # ends pins
    ) -> None:
        """Makes the folders. Raises TierError where that is impossible and there is no store to read either."""
        self.root = root
        self.limit_bytes = limit_bytes
        self._recorder = recorder
        self._now = now
        self._layout = Layout(root)
        self._temps = TempFolder(self._layout.tmp)
        self._index = DiskIndex(self._layout, self._temps)
        self._recent = Recent(self._layout.key_folder)
        self._pins = Pins(monotonic)
        self._room = Room(
            self._layout, self._temps, self._index, self._pins, limit_bytes, recorder, self.name
        )
        self._stamp_lock = threading.Lock()
        self._last_stamp = 0
        self._damaged: dict[str, None] = {}  # oldest first
        # Deleted, and promised to a client: digest, object.
        self._left: deque[tuple[str, Path]] = deque()
        self._nonce = Nonce(root, self._layout.nonces)
        self._closed = False
        try:
            with translated("opening a store", root):
                self._layout.make_folders()
        except TierError:
            if not os.access(self._layout.keys, os.R_OK | os.X_OK):
                raise  # else a store that can only be read: put says so when it is asked
        self._device = self._layout.device()
        self._at_once = answers_at_once(root)  # else only threads look at files
        self._readers = Threads("coldstart-disk-read", READ_THREADS)
        self._writers = Threads("coldstart-disk-write", WRITE_THREADS)
        self._spoolers = Threads("coldstart-disk-spool", WRITE_THREADS)
        self._writers.submit(self._warm)

    @property
    def name(self) -> str:
        return "disk"

    @property
    def writable(self) -> bool:
        return True

    async def find(self, key: str) -> tuple[Header, ...]:
        headers = self._recent.headers(check_key(key)) if self._at_once else None
        return headers if headers is not None else await self._read(self._find, key)

    async def get(self, key: str, digest: str) -> Artifact | None:
        check_key(key), check_digest(digest)
        found = self._recent.artifact(key, digest, self._stamp) if self._at_once else None
        return found if found is not None else await self._read(self._get, key, digest)

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        check_new(artifact.header, artifact.payload.size_bytes)
        slow_seconds = artifact.payload.size_bytes / SLOW_BYTES_PER_SECOND
        work = self._work(self._put, artifact, record)
        return await self._writers.run(work, WRITE_SECONDS + slow_seconds)

    async def record(self, key: str) -> KeyRecord | None:
        return await self._read(self._index.record, check_key(key))

    async def delete(self, key: str, digest: str) -> bool:
        return await self._write(self._remove, check_key(key), check_digest(digest), "")

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        return await self._write(
            self._remove, check_key(key), check_digest(digest), reason or "bad"
        )

    async def scan(self) -> AsyncIterator[Kept]:
        for shard in await self._read(shards, self._layout):
            for stored in await self._read(in_shard, self._layout, self._index, shard):
                yield stored

    async def close(self) -> None:
        """Waits for what was begun, where the disk answers. Spooled files that were not put are then anybody's."""
        if self._closed:
            return
        self._closed, self._at_once = True, False
        pools = (self._readers, self._writers, self._spoolers)
        if not all(await asyncio.gather(*(pool.close() for pool in pools))):
            log.warning("disk: %s does not answer; left without waiting for it", self.root)
            return  # its files are held by threads that still may go on
        self._temps.close()
        self._nonce.forget()

    # Handing over by path

    def pin(self, digest: str, seconds: float) -> str:
        """Keep artifacts with that digest from eviction. Pin first, then `get`: then the file is there."""
        return self._pins.pin(check_digest(digest), seconds)

    def unpin(self, token: str) -> bool:
        """True if the pin still held."""
        return self._pins.unpin(token)

    def relative_path(self, digest: str, key: str = "") -> str:
        """The artifact's file, relative to `root`; "" if there is none.

        Two keys can have byte-identical payloads, each with its own file and header: name the key.
        """
        folder = self._layout.objects / check_digest(digest)[:2]
        if key:
            with translated("lookup", folder):
                entries = self._recent.entries(check_key(key)) or self._index.entries(key)[0]
                for entry in entries:
                    if entry.header.digest == digest:
                        return str(entry.object.relative_to(self.root))
            return ""
        for path in sorted(folder.glob(f"{digest}-*.csa")):
            return str(path.relative_to(self.root))
        return ""

    async def nonce(self) -> tuple[str, bytes]:
        """A file (relative to `root`) and its content: who can tell the content sees this volume."""
        made = self._nonce.made
        return made if made is not None else await self._read(self._nonce.tell)

    # Publishing without a second copy

    def spool_path(self) -> Path:
        """A fresh path on this store's device, for a whole artifact: header prefix, then payload.

        `put` of a FilePayload at that path and offset `len(header.prefix())` takes the file over by rename, after
        checking it. Whoever asked for the path unlinks it in the end, whatever happened (missing is fine).
        The bytes written there count against the limit, but nothing is evicted for them until `put`: prefer
        `open_spool` where the size is known.
        """
        with translated("spooling", self._layout.tmp):
            return self._temps.new_path()

    async def open_spool(self, total_bytes: int) -> Path:
        """As `spool_path`, for an artifact of exactly `total_bytes`: an empty file. `grow_spool` before writing.

        Raises:
            TooLarge: it never fits. TierFull: nothing fits now.
        """
        work = self._work(self._room.open_spool, total_bytes)
        # Where it comes too late nobody will ever learn the path.
        return await self._writers.run(work, WRITE_SECONDS, unwanted=unlink)

    async def grow_spool(self, path: Path, to_bytes: int) -> None:
        """Let the file of an `open_spool` hold `to_bytes`, and give it that size; room is made for what is new.

        Raises:
            TierFull: there is no room now, or too much is being published at once.
        """
        await self._write(self._room.grow_spool, path, to_bytes)

    async def write_spool(self, work: Callable[[], None]) -> None:
        """Do what writes to such a file, in threads of its own. Raises OSError, TierTimeout."""
        await self._spoolers.run(work, WRITE_SECONDS)

    # Upkeep

    async def usage(self) -> Usage:
        """Bytes, artifacts and the limit, as of now."""
        return await self._write(self._usage)

    async def sweep(self) -> Swept:
        """Remove what crashes and strangers left: dead temporary files, orphans, entries without an artifact."""
        return await self._writers.run(self._work(self._sweep), None)

    def evicted_recently(self, key: str) -> bool:
        """True if this process evicted an artifact of `key` and still remembers."""
        return self._room.evicted(key)

    def damaged_recently(self, key: str) -> bool:
        """True if this process met an entry of `key` that was not sound, took it away, and nothing came since."""
        return key in self._damaged

    def check_writable(self) -> None:
        """Raises TierError, with what to do, where nothing could ever be stored. A full disk is another matter."""
        with translated("writing", self.root), suppress(TierFull):
            self._layout.check_writable()
            with translated("writing", self._layout.tmp):
                self._temps.new_path()  # takes the owner file: really writes

    # Below: blocking, in the pool

    async def _read(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._readers.run(self._work(work, *arguments), READ_SECONDS)

    async def _write(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._writers.run(self._work(work, *arguments), WRITE_SECONDS)

    def _work(self, work: Callable[..., T], *arguments: object) -> Callable[[], T]:
        if self._closed:
            raise TierError(f"disk: the store at {self.root} is closed")
        return lambda: self._translated(work, *arguments)

    def _translated(self, work: Callable[..., T], *arguments: object) -> T:
        with translated(work.__name__.strip("_"), self.root):
            try:
                return work(*arguments)
            except FileNotFoundError:
                if not self._layout.made_anew(self._device):
                    raise
                log.warning("disk: the store at %s was removed; it is begun anew", self.root)
                self._nonce.forget()
                return work(*arguments)

    def _warm(self) -> None:
        """At start: drop what dead processes left and read the folders once. Nobody waits for it but `put`."""
        try:
            self._temps.sweep()
            self._usage()
            with self._stamp_lock:
                self._last_stamp = max(self._last_stamp, self._room.latest_use_ns())
        except OSError as exc:
            log.warning("disk: could not read the store at %s: %s", self.root, exc)

    def _sweep(self) -> Swept:
        self._drop_left()
        return sweep(self._layout, self._index, self._temps)

    def _usage(self) -> Usage:
        return self._room.usage()

    def _find(self, key: str) -> tuple[Header, ...]:
        return (not self._at_once and self._recent.headers(key)) or tuple(
            entry.header for entry in self._sound(key)
        )

    def _sound(self, key: str) -> list[Entry]:
        before = self._recent.before(key)
        sound, unsound = self._index.entries(key)
        self._recent.remember(key, None if unsound else before, sound)
        for name in unsound:
            healed = self._index.heal(key, name)
            if healed is not None:
                self._healed(key, healed)
        return sound

    def _healed(self, key: str, found: Unsound) -> None:
        """An entry was taken away that named nothing sound."""
        there = found.object is not None
        self._recorder(self.name, "heal", "corrupt" if there else "ok", 0.0)
        if not found.foreign:
            self._note_damage(key)

    def _note_damage(self, key: str) -> None:
        self._damaged[key] = None
        while len(self._damaged) > DAMAGED_KEYS:
            self._damaged.pop(next(iter(self._damaged)), None)

    def _get(self, key: str, digest: str) -> Artifact | None:
        if known := not self._at_once and self._recent.artifact(key, digest, self._stamp):
            return known
        for entry in self._sound(key):
            if entry.header.digest != digest:
                continue
            try:
                found = open_file(entry.object)
            except FileNotFoundError:
                return None  # evicted a moment ago
            except ArtifactError as exc:
                log.warning("disk: %s is bad: %s", entry.object, exc)
                raise self._bad(key, digest, str(exc), exc.reason) from exc
            if found.header != entry.header:
                raise self._bad(key, digest, "the file's header is not the index's", "corrupt")
            self._touch(entry.object)
            self._recent.opened(key, entry.object)
            return Artifact(entry.header, found.payload)  # the index has the signature
        return None

    def _bad(self, key: str, digest: str, message: str, reason: str) -> ArtifactCorrupt:
        """Put a bad copy aside, so that the next publish can win; what to raise."""
        self._remove(key, digest, reason)
        return ArtifactCorrupt(
            f"disk: artifact {digest[:12]} of {key[:16]}: {message}", reason=reason
        )

    def _stamp(self) -> int:
        """Of a use now. Never before an earlier one, whatever the clock says: else what is used most would be evicted
        first after it was set back."""
        with self._stamp_lock:
            self._last_stamp = max(self._last_stamp + 1, int(self._now() * 1e9))
            return self._last_stamp

    def _touch(self, path: Path) -> None:
        stamp = self._stamp()
        with suppress(OSError):  # read-only or another user's: eviction's order is then a guess
            os.utime(path, ns=(stamp, stamp))

    def _put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        header = artifact.header
        text = record.to_json() if record is not None else ""
        there = self._index.entry(header.key, header.variant)
        if there is not None and self._still_good(there):
            return self._adopt(there, text)
        prefix_bytes = len(header.prefix())
        with ExitStack() as undo:
            temp = self._spooled(artifact)
            if temp is None:
                temp = self._room.reserve(prefix_bytes + header.payload_bytes, len(text))
                undo.callback(unlink, temp)
                copy_in(artifact, temp, self._stamp())
            else:
                self._room.make(len(text))
                check_in_place(artifact, temp, self._stamp())
            with flocked(self._layout.lock(header.key)), ExitStack() as uncommitted:
                there = self._index.entry(header.key, header.variant)
                if there is not None:
                    if text:
                        self._index.add_record(header.key, text)
                    return there.header
                found = self._index.add(header, temp, text, uncommitted)
                uncommitted.pop_all()
        if found is not None:
            self._healed(header.key, found)
        self._room.stored(header.key)
        self._damaged.pop(header.key, None)
        return header

    def _spooled(self, artifact: Artifact) -> Path | None:
        """The payload's own file, if it can become the object as it is."""
        payload = artifact.payload
        if isinstance(payload, FilePayload) and self._temps.owns(payload.path):
            return payload.path if is_whole(artifact.header, payload) else None
        return None

    def _still_good(self, there: Entry) -> bool:
        """What a publisher is told to adopt takes the place of its own: a copy that has gone bad must not."""
        if is_sound(there.header, there.object):
            return True
        header = there.header
        log.warning("disk: %s is bad; a publish takes its place", there.object)
        self._recorder(self.name, "heal", "corrupt", 0.0)
        self._remove(header.key, header.digest, "corrupt")
        return False

    def _adopt(self, there: Entry, text: str) -> Header:
        key = there.header.key
        if text and not self._layout.record(key).is_file():
            self._room.make(len(text))
            with flocked(self._layout.lock(key)):
                if self._index.entry(key, there.header.variant) is not None:
                    self._index.add_record(key, text)
        return there.header

    def _remove(self, key: str, digest: str, reason: str) -> bool:
        """Delete, or with a reason keep aside."""
        removed = False
        self._recent.forget(key)
        with flocked(self._layout.lock(key)):
            for entry in self._index.entries(key)[0]:
                if entry.header.digest == digest:
                    with self._pins.unless_held(digest) as free:
                        left = not free and not reason
                        aside = self._aside(digest, reason) if reason else None
                        gone = self._index.remove(key, entry, aside, leave_object=left)
                    if left:
                        self._left.append((digest, entry.object))
                    removed = gone or removed
        self._drop_left()
        if reason and removed:
            self._note_damage(key)
            self._room.trim_quarantine(self.limit_bytes // 20)
        return removed

    def _drop_left(self) -> None:
        """Objects that were deleted while a client was promised the file: where it had its time, they go."""
        for _ in range(len(self._left)):
            with suppress(IndexError):  # another thread has it
                digest, path = self._left.popleft()
                if self._pins.held(digest):
                    self._left.append((digest, path))
                else:
                    self._index.remove_orphan(path)

    def _aside(self, digest: str, reason: str) -> Path:
        word = re.sub(r"[^a-z0-9-]", "", reason.lower())[:40]
        return self._layout.aside(f"{digest[:16]}-{word}.csa")
