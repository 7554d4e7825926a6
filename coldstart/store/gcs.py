"""GcsTier: artifacts in a Google Cloud Storage bucket. Shared, large, durable; where it is, it decides (I2).

    <prefix>/coldstart/v1/
      artifacts/<key>/<variant or any>       one object: the artifact's bytes, then its key record as JSON, or nothing;
                                             its signature in the metadata
      quarantine/<key>/<variant>/<generation>  bad copies, a few; give the bucket a lifecycle rule for them
      leases/<key>                           lease/gcs.py

- Objects are made, replaced and deleted only where the generation that was looked at is still there. As not every
  server honours that, what was written is looked at once more, and what is there then is the answer.
- Ours is what carries our mark in its metadata under a name of ours. Anything else is ignored, and never touched.
- `find` reads the start of an object, `get` all of it, hashing. What is bad is read a second time, as it may have been
  damaged on its way; if it is bad again, it is put aside by its generation, so that nobody can lose a repaired copy.
- That an artifact is there is remembered for a minute, that there is none never.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from coldstart.artifact import MAGIC, Artifact, BytesPayload, Header, read_header
from coldstart.bucket import LATE, Bucket, Stored
from coldstart.errors import (
    ArtifactCorrupt,
    ArtifactMismatch,
    InvalidRequest,
    TierError,
    TierTimeout,
    TooLarge,
)
from coldstart.identity.key import SCHEME, KeyRecord, is_key, key_of
from coldstart.store.kept import Kept
from coldstart.store.names import check_digest, check_key, check_new
from coldstart.store.recorder import Recorder, ignore

log = logging.getLogger(__name__)

LAYOUT = "coldstart/v1"
MARK = "coldstart-artifact"  # metadata of what we wrote: how many bytes that was
NO_VARIANT = "any"
HEAD_BYTES = 16 << 10  # holds every header but those of very large targets
REMEMBERED_SECONDS = 60.0
REMEMBERED_KEYS = 4096
MOST_QUARANTINED = 32
LOOKS = 16  # objects of a scan that are looked at at once
SIGNATURE = "coldstart-signature"  # metadata: the signature, where there is one
TRIES = 6  # of a put that others get in the way of
DEFAULT_LIMIT_BYTES = 4 << 30
MOST_GET_SECONDS = 120.0
GET_SHARE = 0.25  # of the compile seconds that a hit saves


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one artifact is."""

    stored: Stored
    header: Header
    offset: int  # of the payload


class GcsTier:
    """Artifacts in one bucket under one prefix."""

    def __init__(
        self,
        bucket: Bucket,
        prefix: str = "",
        *,
        write: bool = True,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        min_compile_seconds: float = 0.0,
        recorder: Recorder = ignore,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_bytes` is for one artifact. Without `write` not even bad copies are put aside.

        `min_compile_seconds` is for whoever decides what it is given: sharing.py.
        """
        self.min_compile_seconds = min_compile_seconds
        self._bucket = bucket
        self._base = "/".join(filter(None, (prefix.strip("/"), LAYOUT)))
        self._write = write
        self._limit_bytes = limit_bytes
        self._recorder = recorder
        self._now = now
        self._damaged: OrderedDict[str, None] = OrderedDict()  # keys, until something sound is put
        # key -> (when it was seen, what is there); the oldest first
        self._seen: OrderedDict[str, tuple[float, tuple[_Place, ...]]] = OrderedDict()

    @property
    def bucket(self) -> Bucket:
        """Open until the tier is closed; leases are kept in the same one."""
        return self._bucket

    @property
    def name(self) -> str:
        return "gcs"

    @property
    def writable(self) -> bool:
        return self._write

    async def find(self, key: str) -> tuple[Header, ...]:
        return tuple(place.header for place in await self._places(check_key(key)))

    async def get(self, key: str, digest: str) -> Artifact | None:
        check_digest(digest)
        for _ in range(2):  # what is remembered may have been replaced
            place = await self._place(check_key(key), digest)
            if place is None:
                return None
            try:
                payload = await self._payload(place)
            except ArtifactCorrupt as exc:
                await self._heal(place.stored, exc)
                raise
            if payload is not None:
                return Artifact(place.header, BytesPayload(payload))
            self._seen.pop(key, None)
        return None

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        self._check_writable("put")
        header = artifact.header
        check_new(header, artifact.payload.size_bytes)
        if header.payload_bytes > self._limit_bytes:
            raise TooLarge(
                f"gcs: an artifact of {header.payload_bytes} bytes; cs.limit is {self._limit_bytes}"
            )
        body = _Body(artifact, record)
        name = f"{self._folder(header.key)}{header.variant or NO_VARIANT}"
        self._seen.pop(header.key, None)
        for times in range(TRIES):
            await self._bucket.give_way(times)
            there = await self._bucket.stat(name)
            if there is not None:
                try:
                    held = await self._held(there, header)
                except ArtifactCorrupt as exc:
                    self._recorder(self.name, "heal", "corrupt", 0.0)
                    log.warning("gcs: %s is bad and replaced: %s", name, exc)
                else:
                    if held is not None:
                        return held.header
                    continue  # it went or was replaced meanwhile
            try:
                written = await self._bucket.write(
                    name,
                    body.parts,
                    body.size_bytes,
                    metadata=_metadata(body, header),
                    generation=0 if there is None else there.generation,
                )
            except OSError as exc:
                raise TierError(f"gcs: the payload to store can't be read: {exc}") from exc
            now = await self._bucket.stat(name)  # the server may not have honoured the condition
            if written and now and written.generation == now.generation:
                self._damaged.pop(header.key, None)
                return header
        raise TierError(f"gcs: put of {name}: it was changed {TRIES} times by others meanwhile")

    async def record(self, key: str) -> KeyRecord | None:
        for place in await self._places(check_key(key)):
            start = place.offset + place.header.payload_bytes
            if start >= place.stored.size_bytes:
                continue
            text = await self._bucket.read(place.stored.name, place.stored.generation, start=start)
            try:
                record = KeyRecord.from_json((text or b"").decode())
            except (InvalidRequest, UnicodeDecodeError):
                continue
            if key_of(record) == key:
                return record
        return None

    async def delete(self, key: str, digest: str) -> bool:
        self._check_writable("delete")
        place = await self._there(key, digest)
        return place is not None and await self._remove(place.stored)

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        self._check_writable("quarantine")
        place = await self._there(key, digest)
        gone = place is not None and await self._put_aside(place.stored, reason)
        if gone:
            self._note_damage(key)
        return gone

    async def scan(self) -> AsyncIterator[Kept]:
        """In pieces, as a listing of all at once would have no end to wait for. Skips what isn't ours, or is bad."""
        for shard in range(256):
            listed = await self._bucket.list(f"{self._base}/artifacts/{SCHEME}-{shard:02x}")
            for start in range(0, len(listed), LOOKS):
                some = listed[start : start + LOOKS]
                looked = await asyncio.gather(*(self._glance(stored) for stored in some))
                for place in filter(None, looked):
                    yield Kept(place.header, place.stored.size_bytes)

    async def close(self) -> None:
        self._seen.clear()
        await self._bucket.close()

    def damaged_recently(self, key: str) -> bool:
        """True where a copy of `key` was found to be bad, and no other was put here since."""
        return key in self._damaged

    # --- looking -------------------------------------------------------------------------------

    def _folder(self, key: str) -> str:
        return f"{self._base}/artifacts/{key}/"

    async def _there(self, key: str, digest: str) -> _Place | None:
        """As `_place`, by the bucket's own word."""
        self._seen.pop(check_key(key), None)
        return await self._place(key, check_digest(digest))

    async def _place(self, key: str, digest: str) -> _Place | None:
        places = await self._places(key)
        return next((place for place in places if place.header.digest == digest), None)

    async def _places(self, key: str) -> tuple[_Place, ...]:
        when, known = self._seen.get(key, (0.0, ()))
        if known and self._now() - when < REMEMBERED_SECONDS:
            return known
        # Of all its calls together; a bit more than one of them has, which says more of what is wrong.
        seconds = self._bucket.patience.call_seconds * LATE * LATE
        try:
            async with asyncio.timeout(seconds):
                listed = await self._bucket.list(self._folder(key))
                looked = await asyncio.gather(*(self._look(stored, key) for stored in listed))
        except TimeoutError as exc:
            raise TierTimeout(f"gcs: find of {key[:16]}: no answer within {seconds:g} s") from exc
        places = tuple(place for place in looked if place is not None)
        self._seen.pop(key, None)
        if places:
            self._seen[key] = (self._now(), places)
            if len(self._seen) > REMEMBERED_KEYS:
                self._seen.popitem(last=False)
        return places

    async def _look(self, stored: Stored, key: str) -> _Place | None:
        """What a reader can see there; a bad copy of ours is put aside."""
        if MARK not in stored.metadata:
            return None
        try:
            return await self._read_head(stored, key)
        except ArtifactMismatch as exc:  # another release's, which may know better
            log.info("gcs: %s is left alone: %s", stored.name, exc)
        except ArtifactCorrupt as exc:
            await self._heal(stored, exc)
        return None

    async def _glance(self, stored: Stored) -> _Place | None:
        """As `_look`, and nothing is put aside."""
        key = self._key_of(stored)
        if MARK not in stored.metadata or not is_key(key):
            return None
        try:
            return await self._read_head(stored, key)
        except (ArtifactCorrupt, ArtifactMismatch):
            return None

    async def _held(self, stored: Stored, mine: Header) -> _Place | None:
        """What a writer finds under its name; None: it isn't there any more. Raises ArtifactCorrupt: to be replaced."""
        if MARK not in stored.metadata:
            raise _left_alone(f"gcs: {stored.name} was not written by coldstart; remove it by hand")
        try:
            place = await self._read_head(stored, mine.key)
        except ArtifactMismatch as exc:
            raise _left_alone(f"gcs: {stored.name} is of another release: {exc}") from exc
        if place is not None and place.header.digest == mine.digest:
            # Published again, so perhaps as somebody found it bad: here are the bytes to repair it with.
            return None if await self._payload(place) is None else place
        return place

    async def _read_head(self, stored: Stored, key: str) -> _Place | None:
        """None: it went meanwhile. Raises ArtifactCorrupt, ArtifactMismatch."""
        for last in (False, True):
            try:
                head = await self._bucket.read(
                    stored.name, stored.generation, most_bytes=HEAD_BYTES
                )
                more = int.from_bytes((head or b"")[4:8], "big") + 40
                if head and HEAD_BYTES < more <= stored.size_bytes:
                    head = await self._bucket.read(stored.name, stored.generation, most_bytes=more)
                if head is not None and head[:3] != MAGIC[:3]:
                    raise ArtifactCorrupt(f"gcs: {stored.name} is no artifact of any release")
                return None if head is None else _checked(stored, key, *read_header(head))
            except (ArtifactCorrupt, ArtifactMismatch):
                if last:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _payload(self, place: _Place) -> bytes | None:
        """The payload, hashed; None: gone. Raises ArtifactCorrupt."""
        header, stored = place.header, place.stored
        seconds = min(MOST_GET_SECONDS, GET_SHARE * header.compile_seconds)
        for _ in range(2):
            data = await self._bucket.read(
                stored.name,
                stored.generation,
                seconds=max(self._bucket.patience.call_seconds, seconds),
            )
            if data is None:
                return None
            payload = data[place.offset : place.offset + header.payload_bytes]
            if data.startswith(header.prefix()) and await _digest(payload) == header.digest:
                return payload
        raise ArtifactCorrupt(f"gcs: {stored.name} does not have the digest that it claims")

    # --- removing ------------------------------------------------------------------------------

    async def _heal(self, stored: Stored, bad: ArtifactCorrupt) -> None:
        self._recorder(self.name, "heal", "corrupt", 0.0)
        log.warning("gcs: %s is bad: %s", stored.name, bad)
        self._note_damage(self._key_of(stored))
        if not self._write:
            return
        try:
            await self._put_aside(stored, bad.reason)
        except TierError as exc:  # readers go on finding that it is bad
            log.warning("gcs: a bad copy stays: %s", exc)

    def _note_damage(self, key: str) -> None:
        self._damaged[key] = None
        if len(self._damaged) > REMEMBERED_KEYS:
            self._damaged.popitem(last=False)

    async def _put_aside(self, stored: Stored, reason: str) -> bool:
        aside = f"{self._base}/quarantine/"
        where = stored.name.removeprefix(f"{self._base}/artifacts/")
        if len(await self._bucket.list(aside)) < MOST_QUARANTINED:
            await self._bucket.copy(stored, f"{aside}{where}/{stored.generation}")
        log.warning("gcs: %s is put aside: %s", stored.name, reason)
        return await self._remove(stored)

    async def _remove(self, stored: Stored) -> bool:
        self._seen.pop(self._key_of(stored), None)
        return await self._bucket.delete(stored.name, stored.generation)

    def _key_of(self, stored: Stored) -> str:
        return stored.name.removeprefix(f"{self._base}/artifacts/").partition("/")[0]

    def _check_writable(self, op: str) -> None:
        if not self._write:
            raise TierError(f"gcs: {op} refused, this tier is read-only here (cs.write=false)")


class _Body:
    """An artifact's object, hashed each time it is read."""

    def __init__(self, artifact: Artifact, record: KeyRecord | None) -> None:
        self._artifact = artifact
        self._prefix = artifact.header.prefix()
        self._trailer = b"" if record is None else record.to_json().encode()
        self.size_bytes = len(self._prefix) + artifact.header.payload_bytes + len(self._trailer)

    def parts(self) -> Iterator[bytes]:
        """Raises ArtifactCorrupt, before the last part, where the payload isn't what the header says."""
        header = self._artifact.header
        digest, size = hashlib.sha256(), 0
        yield self._prefix
        for chunk in self._artifact.payload.chunks():
            digest.update(chunk)
            size += len(chunk)
            yield chunk
        if size != header.payload_bytes or digest.hexdigest() != header.digest:
            raise ArtifactCorrupt(f"gcs: the payload of {header.key} is not what its header says")
        yield self._trailer


def _checked(stored: Stored, key: str, header: Header, offset: int) -> _Place:
    """Raises ArtifactCorrupt where it can be seen without the payload."""
    variant = stored.name.rpartition("/")[2]
    if header.key != key or (header.variant or NO_VARIANT) != variant:
        raise ArtifactCorrupt(
            f"gcs: {stored.name} holds {header.key} {header.variant}", reason="key-mismatch"
        )
    written, least = stored.metadata[MARK], offset + header.payload_bytes
    if written != str(stored.size_bytes) or stored.size_bytes < least:
        raise ArtifactCorrupt(
            f"gcs: {stored.name} has {stored.size_bytes} bytes; {written} were written, {least} needed"
        )
    signature = stored.metadata.get(SIGNATURE, "").encode()
    return _Place(stored, header.signed(signature), offset)


def _metadata(body: _Body, header: Header) -> dict[str, str]:
    signature = {SIGNATURE: header.signature.decode()} if header.signature else {}
    return {MARK: str(body.size_bytes), **signature}


def _left_alone(words: str) -> TierError:
    error = TierError(f"{words}; it is left alone")
    error.lasting = True
    return error


async def _digest(data: bytes) -> str:
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
