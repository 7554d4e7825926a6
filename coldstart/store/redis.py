"""RedisTier: artifacts in a Redis that the fleet shares; small, quick, short-lived.

    <prefix>:1:{<key>}:index             hash: variant -> row = place, newline, header as in an artifact, signature
    <prefix>:1:{<key>}:bytes:<upload>:n  the payload's n-th chunk
    <prefix>:1:{<key>}:record            the key record

    put   chunks under an upload's own names, hashed on the way -> one script: all there? index row, if none is there
    get   index row -> chunks, hashed on the way: a payload that isn't the header's is taken away and told as corrupt

The index is a hint. Redis may evict chunks and keep the row: whoever meets such a row takes it away, and it is a miss.
All names of a key are in one slot, so the scripts work on a cluster. Everything expires `ttl_seconds` after its last
use. What is larger than `max_value_bytes` is TooLarge here; `point` keeps a row that says in which tier it lies.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass

from coldstart.artifact import Artifact, BytesPayload, Header, read_header
from coldstart.errors import (
    ArtifactCorrupt,
    ArtifactError,
    ArtifactMismatch,
    InvalidRequest,
    TierError,
    TierFull,
    TooLarge,
)
from coldstart.identity.key import KeyRecord, is_key
from coldstart.redis_link import RedisLink, Script
from coldstart.store.kept import Kept
from coldstart.store.names import check_digest, check_key, check_new
from coldstart.store.recorder import Recorder, ignore

log = logging.getLogger(__name__)

DEFAULT_MAX_VALUE_BYTES = 64 << 20
DEFAULT_TTL_SECONDS = 7 * 86400.0
CHUNK_BYTES = (
    1 << 20
)  # well below the 512 MB of one value, and short enough to keep others waiting little
WINDOW = 2  # chunks asked for at once; more make the library copy what it has read again and again
MOST_READS = 8  # payloads in memory at once
IDLE_SECONDS = 10.0  # for one window of chunks
UPLOAD_SECONDS = 600.0  # chunks of an upload that never ended go after that
NO_VARIANT = "-"
DAMAGED_KEYS = 4096  # remembered so that a later miss can say why

# KEYS: index, record, chunks...  ARGV: variant, row, ttl in ms, bytes of the payload, record or ""
# 1: it is ours. 0: chunks are missing. Else the row that was there before; then our chunks are gone.
_COMMIT = Script("""
local there = redis.call('HGET', KEYS[1], ARGV[1])
if there and there ~= ARGV[2] and string.sub(there, 1, 5) == 'here ' then
  for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
  if ARGV[5] ~= '' then redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[3], 'NX') end
  return there
end
local size = 0
for i = 3, #KEYS do size = size + redis.call('STRLEN', KEYS[i]) end
if size ~= tonumber(ARGV[4]) then
  for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if ARGV[5] ~= '' then redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[3], 'NX') end
for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[3]) end
return 1
""")
# KEYS: index, record, chunks...  ARGV: variant, row. 1: that very row was there, and is gone with its chunks.
_REMOVE = Script("""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
for i = 3, #KEYS do redis.call('UNLINK', KEYS[i]) end
if redis.call('HLEN', KEYS[1]) == 0 then redis.call('UNLINK', KEYS[2]) end
return 1
""")
# KEYS: index, record, chunks...  ARGV: ttl in ms
_TOUCH = Script("for i = 1, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end return 1")


@dataclass(frozen=True, slots=True)
class _Row:
    """One entry of an index."""

    variant: str
    raw: bytes
    header: Header
    upload: str = ""  # "": the bytes lie in another tier
    chunk_bytes: int = 0
    below: str = ""  # which

    @property
    def chunks(self) -> int:
        return -(-self.header.payload_bytes // self.chunk_bytes) if self.upload else 0


class RedisTier:
    """Artifacts in one Redis."""

    def __init__(
        self,
        link: RedisLink,
        *,
        max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
        ttl_seconds: float = DEFAULT_TTL_SECONDS,
        min_compile_seconds: float = 0.0,
        recorder: Recorder = ignore,
    ) -> None:
        """Closes `link` when it is closed. `min_compile_seconds` is for who decides what it is given: sharing.py."""
        self.link = link
        self.min_compile_seconds = min_compile_seconds
        self._max_value_bytes = max_value_bytes
        self._ttl_ms = max(1, int(ttl_seconds * 1000))
        self._recorder = recorder
        self._reads = asyncio.Semaphore(MOST_READS)
        self._damaged: OrderedDict[str, None] = OrderedDict()  # keys, until something sound is put

    @property
    def name(self) -> str:
        return "redis"

    @property
    def writable(self) -> bool:
        return True

    @property
    def trouble(self) -> str:
        """What is wrong with it now, for people; "" where nothing is."""
        return self.link.trouble

    async def find(self, key: str) -> tuple[Header, ...]:
        check_key(key)
        found = []
        for row in await self._rows(key):
            if not row.upload:
                continue
            names = self._chunk_keys(row)
            if not names or await self.link.call("EXISTS", *names) == len(names):
                found.append(row.header)
            else:
                await self._heal(key, row.variant, row.raw, names)
        return tuple(found)

    async def get(self, key: str, digest: str) -> Artifact | None:
        check_key(key)
        check_digest(digest)
        for row in await self._rows(key):
            if row.upload and row.header.digest == digest:
                async with self._reads:
                    return await self._read(key, row)
        return None

    async def put(self, artifact: Artifact, record: KeyRecord | None) -> Header:
        header = artifact.header
        check_new(header, artifact.payload.size_bytes)
        if header.payload_bytes > self._max_value_bytes:
            raise TooLarge(
                f"redis: an artifact of {header.payload_bytes} bytes is over cs.max_value={self._max_value_bytes}"
            )
        text = "" if record is None else record.to_json()
        there = await self._there(header)
        if there is not None:
            await self._add_record(header.key, text)
            return there
        try:
            return await self._upload(artifact, text)
        except TierFull:
            self._recorder(self.name, "oom", "full", 0.0)
            raise

    async def record(self, key: str) -> KeyRecord | None:
        found = await self.link.call("GET", self.link.key(check_key(key), "record"))
        if found is None:
            return None
        try:
            return KeyRecord.from_json(found.decode())
        except (InvalidRequest, UnicodeDecodeError) as exc:
            log.warning("redis: what is stored for %s is no key record: %s", key[:16], exc)
            with suppress(TierError):
                await self.link.call("UNLINK", self.link.key(key, "record"))
            return None

    async def delete(self, key: str, digest: str) -> bool:
        check_key(key)
        check_digest(digest)
        gone = False
        for row in await self._rows(key):
            if row.header.digest == digest:
                removed = await self._remove(key, row.variant, row.raw, self._chunk_keys(row))
                gone = gone or (removed and bool(row.upload))
        return gone

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        """Nothing is kept aside: memory is dear here, and the bytes may be had from who published them."""
        gone = await self.delete(key, digest)
        if gone:
            self._note_damage(key)
        return gone

    def damaged_recently(self, key: str) -> bool:
        """True where this process found a bad copy of `key`, and put no other since."""
        return key in self._damaged

    async def scan(self) -> AsyncIterator[Kept]:
        """By the index rows. What Redis evicted behind one is still told: only a reader takes such a row away."""
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", self.link.key("", "index")).replace("{}", "{*}")
        told: set[str] = set()
        async for name in self.link.names(pattern):
            key = name.rpartition("{")[2].partition("}")[0]
            if not is_key(key) or key in told:
                continue
            told.add(key)
            for row in await self._rows(key):
                if row.upload:
                    size = len(row.header.prefix()) + row.header.payload_bytes
                    yield Kept(row.header, size)

    async def close(self) -> None:
        await self.link.close()

    # --- what lies in a lower tier -------------------------------------------------------------

    async def point(self, header: Header, below: str) -> None:
        """Note that the artifact lies in the tier named `below`. A hint, for `pointed`; never counts as stored."""
        check_key(header.key)
        row = f"below {below}\n".encode() + header.prefix() + header.signature
        index = self.link.key(header.key, "index")
        if await self.link.call("HSETNX", index, header.variant or NO_VARIANT, row):
            await self.link.call("PEXPIRE", index, self._ttl_ms)

    async def pointed(self, key: str) -> tuple[tuple[Header, str], ...]:
        """Headers of what is said to lie in another tier, and which."""
        rows = await self._rows(check_key(key))
        return tuple((row.header, row.below) for row in rows if row.below)

    async def unpoint(self, key: str, digest: str) -> None:
        """It wasn't there."""
        for row in await self._rows(check_key(key)):
            if row.below and row.header.digest == digest:
                await self._heal(key, row.variant, row.raw, [])

    # --- the index -----------------------------------------------------------------------------

    async def _rows(self, key: str) -> list[_Row]:
        """The index of `key`. A row that can't be used is taken away."""
        reply = await self.link.call("HGETALL", self.link.key(key, "index"))
        rows = []
        for name, raw in _pairs(reply):
            variant = name.decode(errors="replace")
            try:
                rows.append(_parse(key, variant, raw))
            except (ArtifactError, ValueError) as exc:
                log.warning("redis: index row %s of %s is bad: %s", variant[:20], key[:16], exc)
                if not isinstance(exc, ArtifactMismatch):  # another release's is no damage
                    self._note_damage(key)
                await self._heal(key, variant, raw, [])
        return rows

    async def _heal(self, key: str, variant: str, raw: bytes, chunks: list[str]) -> None:
        """Take away a row without sound bytes behind it. Best effort: a reader's miss doesn't depend on it."""
        with suppress(TierError):
            if await self._remove(key, variant, raw, chunks):
                self._recorder(self.name, "heal", "ok", 0.0)

    async def _remove(self, key: str, variant: str, raw: bytes, chunks: list[str]) -> bool:
        keys = [self.link.key(key, "index"), self.link.key(key, "record"), *chunks]
        return bool(await self.link.script(_REMOVE, keys, variant, raw))

    async def _there(self, mine: Header) -> Header | None:
        """What is stored for that key and variant. If it says to be the very same, it is read: here is a good copy."""
        for row in await self._rows(mine.key):
            if row.header.variant != mine.variant or not row.upload:
                continue
            if row.header.digest != mine.digest:
                return next((h for h in await self.find(mine.key) if h == row.header), None)
            try:
                async with self._reads:
                    return mine if await self._read(mine.key, row) is not None else None
            except ArtifactCorrupt:
                self._recorder(self.name, "heal", "corrupt", 0.0)
        return None

    async def _add_record(self, key: str, text: str) -> None:
        if text:
            name = self.link.key(key, "record")
            await self.link.call("SET", name, text, "PX", self._ttl_ms, "NX")

    def _chunk_keys(self, row: _Row) -> list[str]:
        return self._names(row.header.key, row.upload, row.chunks)

    def _names(self, key: str, upload: str, count: int) -> list[str]:
        return [self.link.key(key, f"bytes:{upload}:{n}") for n in range(count)]

    def _note_damage(self, key: str) -> None:
        self._damaged[key] = None
        if len(self._damaged) > DAMAGED_KEYS:
            self._damaged.popitem(last=False)

    # --- bytes ---------------------------------------------------------------------------------

    async def _read(self, key: str, row: _Row) -> Artifact | None:
        names = self._chunk_keys(row)
        digest = hashlib.sha256()
        parts: list[bytes] = []
        for at in range(0, len(names), WINDOW):
            window = await self.link.call("MGET", *names[at : at + WINDOW], seconds=IDLE_SECONDS)
            for chunk in window:
                if chunk is None:  # evicted
                    await self._heal(key, row.variant, row.raw, names)
                    return None
                digest.update(chunk)
                parts.append(chunk)
        encoded = b"".join(parts)
        if len(encoded) != row.header.payload_bytes or digest.hexdigest() != row.header.digest:
            self._note_damage(key)
            with suppress(TierError):
                await self._remove(key, row.variant, row.raw, names)
            raise ArtifactCorrupt(
                f"redis: artifact {row.header.digest[:12]} of {key[:16]}: {len(encoded)} bytes with digest "
                f"{digest.hexdigest()[:12]}, its header says {row.header.payload_bytes}"
            )
        with suppress(TierError):  # a replica takes no writes
            keys = [self.link.key(key, "index"), self.link.key(key, "record"), *names]
            await self.link.script(_TOUCH, keys, self._ttl_ms)
        return Artifact(row.header, BytesPayload(encoded))

    async def _upload(self, artifact: Artifact, record: str) -> Header:
        header = artifact.header
        upload = secrets.token_hex(8)
        names = self._names(header.key, upload, -(-header.payload_bytes // CHUNK_BYTES))
        try:
            await self._send(artifact, names)
            row = f"here {upload} {CHUNK_BYTES}\n".encode() + header.prefix() + header.signature
            keys = [self.link.key(header.key, "index"), self.link.key(header.key, "record"), *names]
            variant = header.variant or NO_VARIANT
            done = await self.link.script(
                _COMMIT, keys, variant, row, self._ttl_ms, header.payload_bytes, record
            )
        except (TierError, ArtifactError):
            with suppress(TierError):
                await self.link.call("UNLINK", self.link.key(header.key, "none"), *names)
            raise
        self._damaged.pop(header.key, None)
        if done == 0:
            raise TierFull("redis: put: chunks were evicted before the last one was there")
        return header if done == 1 else _parse(header.key, variant, done).header

    async def _send(self, artifact: Artifact, names: list[str]) -> None:
        """The chunks, hashed as they go. Raises ArtifactCorrupt where they aren't the header's."""
        header = artifact.header
        digest = hashlib.sha256()
        size = 0
        chunks = artifact.payload.chunks(CHUNK_BYTES)
        for name in [*names, ""]:
            chunk = await asyncio.to_thread(_next, chunks)
            digest.update(chunk)
            size += len(chunk)
            if not chunk or not name:
                break
            await self.link.call(
                "SET", name, chunk, "PX", int(UPLOAD_SECONDS * 1000), seconds=IDLE_SECONDS
            )
        if size != header.payload_bytes or digest.hexdigest() != header.digest:
            raise ArtifactCorrupt(
                f"redis: put: the payload is {size} bytes with digest {digest.hexdigest()[:12]}, its header says "
                f"{header.payload_bytes} and {header.digest[:12]}"
            )


def _next(chunks: Iterator[bytes]) -> bytes:
    try:
        return next(chunks, b"")
    except OSError as exc:
        raise TierError(f"redis: the payload to store can't be read: {exc}") from exc


def _parse(key: str, variant: str, raw: bytes) -> _Row:
    """Raises ArtifactError or ValueError."""
    place, _, prefix = raw.partition(b"\n")
    header, end = read_header(prefix)
    header = header.signed(prefix[end:])
    if header.key != key or (header.variant or NO_VARIANT) != variant:
        raise ValueError(f"it is about {header.key[:16]}, variant {header.variant or NO_VARIANT}")
    words = place.decode().split(" ")
    if words[0] == "below" and len(words) == 2:
        return _Row(variant, raw, header, below=words[1])
    if words[0] != "here" or len(words) != 3 or int(words[2]) <= 0:
        raise ValueError(f"no place is called {place[:40]!r}")
    return _Row(variant, raw, header, upload=words[1], chunk_bytes=int(words[2]))


def _pairs(reply: object) -> list[tuple[bytes, bytes]]:
    """HGETALL's, which the library's releases shape differently."""
    if isinstance(reply, dict):
        return list(reply.items())
    flat = list(reply) if isinstance(reply, list) else []
    return list(zip(flat[::2], flat[1::2], strict=True))
