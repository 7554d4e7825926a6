"""ProgramMemory: what the daemon remembers of programs, so that a known one costs no descriptor, and for `explain`.

    raw digest → rewrites, and the key that the lookup went on to      (an alias)
    raw digest → the raw descriptor, compressed
    key        → its record, published or not

A final program goes by its key and the digest of its descriptor, both made here: a name that no client can ask by.
Each bounded by count and by bytes, least recently used first; in memory only: after a restart, every program's first
lookup brings its descriptor again. Wrong rewrites can cost a miss and nothing worse: clients make the key from the
module that they rewrote, after they confirmed each edit on it. A key is what a client made of the very program that
the raw digest names, and it is handed out only with an artifact and with the record behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from coldstart.identity.key import KeyRecord
from coldstart.identity.rewrite import Rewrite
from coldstart.server.answers import Canonicalized

MAX_PROGRAMS = 100_000
ALIAS_BYTES = 64 << 20
DESCRIPTOR_BYTES = 64 << 20
RECORD_BYTES = 64 << 20
OVERHEAD_BYTES = 500  # of an entry, beside its text

T = TypeVar("T")


class Bounded(Generic[T]):
    """By name, least recently used first, no more than so many and so many bytes."""

    def __init__(self, count: int, size: int) -> None:
        self._most, self._limit_bytes = count, size
        self._entries: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """Latest first; counts as no use."""
        return ((name, entry) for name, (entry, _) in reversed(self._entries.items()))

    def get(self, name: str) -> T | None:
        found = self._entries.get(name)
        if found is None:
            return None
        self._entries.move_to_end(name)
        return found[0]

    def put(self, name: str, entry: T, size: int) -> list[tuple[str, T]]:
        """Returns what had to go."""
        before = self._entries.pop(name, None)
        self.bytes += size - (before[1] if before is not None else 0)
        self._entries[name] = (entry, size)
        gone = []
        while len(self._entries) > self._most or self.bytes > self._limit_bytes:
            old, (value, old_size) = self._entries.popitem(last=False)
            self.bytes -= old_size
            gone.append((old, value))
        return gone


@dataclass(slots=True)
class Alias:
    """What was answered to one raw digest."""

    rewrites: tuple[Rewrite, ...] | None  # None: nobody sent a descriptor
    abandoned: str = ""  # it was not canonicalized, and why: the next who asks may try again
    key: str = ""  # that it went on to; "": not yet


@dataclass(frozen=True, slots=True)
class RawProgram:
    """One raw program under a key."""

    raw_digest: str
    alias: Alias
    descriptor: bytes  # zlib; b"": not kept


class ProgramMemory:
    """One daemon's memory. On one event loop."""

    def __init__(
        self,
        *,
        most: int = MAX_PROGRAMS,
        alias_bytes: int = ALIAS_BYTES,
        descriptor_bytes: int = DESCRIPTOR_BYTES,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        self._aliases: Bounded[Alias] = Bounded(most, alias_bytes)
        self._descriptors: Bounded[bytes] = Bounded(most, descriptor_bytes)
        self._records: Bounded[KeyRecord] = Bounded(most, record_bytes)
        self._by_key: dict[str, dict[str, None]] = {}  # key → raw digests, oldest first

    def __len__(self) -> int:
        return len(self._aliases)

    def rewrites(self, raw_digest: str) -> tuple[Rewrite, ...] | None:
        """What may be rewritten; None: not known."""
        alias = self._aliases.get(raw_digest)
        return None if alias is None or alias.abandoned else alias.rewrites

    def key_of(self, raw_digest: str) -> str:
        """The key that it went on to; "": not known."""
        alias = self._aliases.get(raw_digest)
        return "" if alias is None else alias.key

    def remember(self, raw_digest: str, found: Canonicalized) -> None:
        """What became of its descriptor."""
        before = self._aliases.get(raw_digest)
        key = "" if before is None else before.key  # it may be described after it was asked for
        alias = Alias(found.rewrites, found.abandoned, key)
        size = OVERHEAD_BYTES + sum(_size(rewrite) for rewrite in found.rewrites)
        for gone, old in self._aliases.put(raw_digest, alias, size):
            self._unlink(gone, old)
        if found.kept:
            self._descriptors.put(raw_digest, found.kept, len(found.kept) + OVERHEAD_BYTES)

    def link(self, raw_digest: str, key: str, record: KeyRecord) -> None:
        """The lookup of `raw_digest` ("": asked by none) went on to this key."""
        size = OVERHEAD_BYTES + sum(
            len(text) for c in record.components for text in (c.value, c.detail)
        )
        size += len(record.program_name) + sum(len(a) + len(b) for a, b in record.versions)
        self._records.put(key, record, size + sum(map(len, record.notes)))
        if not raw_digest:
            return
        alias = self._aliases.get(raw_digest)
        if alias is None:
            alias = Alias(None)
            for gone, old in self._aliases.put(raw_digest, alias, OVERHEAD_BYTES):
                self._unlink(gone, old)
        if alias.key != key:
            self._unlink(raw_digest, alias)
            alias.key = key
            self._by_key.setdefault(key, {})[raw_digest] = None

    def record(self, key: str) -> KeyRecord | None:
        return self._records.get(key)

    def records(self) -> Iterator[tuple[str, KeyRecord]]:
        """All of them, latest first."""
        return iter(self._records)

    def programs(self, key: str) -> list[RawProgram]:
        """The raw programs that came to this key and may have been rewritten, latest first."""
        found = []
        for raw_digest in reversed(self._by_key.get(key, {})):
            alias = self._aliases.get(raw_digest)
            if alias is not None and alias.rewrites is not None:
                descriptor = self._descriptors.get(raw_digest) or b""
                found.append(RawProgram(raw_digest.rpartition(" ")[2], alias, descriptor))
        return found

    def _unlink(self, raw_digest: str, alias: Alias) -> None:
        linked = self._by_key.get(alias.key, {})
        linked.pop(raw_digest, None)
        if not linked:
            self._by_key.pop(alias.key, None)


def final_name(key: str, raw_digest: str) -> str:
    """What a final program is remembered by; no raw digest of a client looks so. One descriptor may have many keys."""
    return f"{key} {raw_digest}"


def _size(rewrite: Rewrite) -> int:
    texts = (rewrite.rule, rewrite.function, rewrite.attribute, rewrite.value, rewrite.reason)
    return OVERHEAD_BYTES + sum(map(len, texts))
