"""Upkeep: what people ask of a whole store: what is there, take this away, is all of it sound.

Each works tier by tier, the fastest first, and tells one artifact of one tier at a time, so that a store of any size
can be gone through while the daemon serves. A tier that fails is told and left; the others go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from coldstart.artifact import Artifact
from coldstart.errors import ArtifactError, ColdstartError, InvalidRequest, TierError
from coldstart.identity.key import key_of
from coldstart.outcomes import Reason
from coldstart.server.checks import check_against_record
from coldstart.store.chain import ChainTier
from coldstart.store.disk import DiskTier
from coldstart.store.kept import Kept
from coldstart.store.selection import Selection
from coldstart.store.tier import Tier
from coldstart.store.verified import Gate
from coldstart.store.within import innermost

log = logging.getLogger("coldstart.server")

LET_GO_SECONDS = 60.0  # that a put which was under way is waited for


@dataclass(frozen=True, slots=True)
class Row:
    """One artifact in one tier, and what became of it; or, without one, why a tier was left."""

    tier: str
    kept: Kept | None
    outcome: str  # stored, meant, removed, gone, kept, sound, bad, aside, failed
    detail: str = ""  # for people
    of: int = 0  # how many the tier has that are meant; 0: not known yet


class Upkeep:
    """Over one chain. On one event loop."""

    def __init__(
        self,
        chain: Tier,
        forget: Callable[[Sequence[str]], int] = lambda keys: 0,
        gate: Gate | None = None,
        purged: Callable[[str], None] = lambda key: None,
    ) -> None:
        """`forget` drops negative entries of these keys, of all where there are none, and says how many. `purged` is
        told each key of which something was taken away.

        `gate` says which copies may not be believed; they are stored all the same, and can be gone through.
        """
        self._gate = gate
        self._chain = chain
        self._tiers: tuple[Tier, ...] = chain.tiers if isinstance(chain, ChainTier) else (chain,)
        self._forget = forget
        self._purged = purged

    async def stored(self, selection: Selection, tiers: Sequence[str] = ()) -> AsyncIterator[Row]:
        """What is there and meant. Raises InvalidRequest for a tier that isn't configured."""
        for tier in self._named(tiers):
            try:
                async for kept in self._meant(tier, selection):
                    yield Row(tier.name, kept, "stored")
            except ColdstartError as exc:
                yield _left(tier, exc)

    async def purge(
        self, selection: Selection, tiers: Sequence[str] = (), *, dry_run: bool = False
    ) -> AsyncIterator[Row]:
        """Take away what is meant. A client that was promised a file keeps it for as long as it was promised.

        Without `dry_run`, `removed` is what this call took away, `gone` what somebody else did meanwhile.
        """
        named = self._named(tiers)
        taken: list[Kept] = []
        for tier in named:
            if not tier.writable and not dry_run:
                yield Row(tier.name, None, "kept", "it may only be read from here (cs.write=false)")
                continue
            try:
                async for kept in self._meant(tier, selection):
                    if dry_run:
                        yield Row(tier.name, kept, "meant")
                        continue
                    there = await tier.delete(kept.header.key, kept.header.digest)
                    taken.append(kept)
                    self._purged(kept.header.key)
                    yield Row(tier.name, kept, "removed" if there else "gone")
            except ColdstartError as exc:
                yield _left(tier, exc)
        if taken:
            await self._once_more(taken, named)

    async def verify(
        self, selection: Selection, tiers: Sequence[str] = (), *, put_aside: bool = False
    ) -> AsyncIterator[Row]:
        """Read all that is meant, as whoever loads it would. On a disk it is no use of it."""
        for tier in self._named(tiers):
            try:
                all_of_it = [kept async for kept in self._meant(tier, selection)]
                for kept in sorted(all_of_it, key=lambda kept: kept.used_unix):
                    row = await self._checked(tier, kept, put_aside)
                    yield replace(row, of=len(all_of_it))
            except ColdstartError as exc:
                yield _left(tier, exc)

    def forget_negatives(self, keys: Sequence[str]) -> int:
        """Notes that these keys are not worth a lease now; of all keys where none is named."""
        return self._forget(keys)

    def _named(self, names: Sequence[str]) -> tuple[Tier, ...]:
        have = [tier.name for tier in self._tiers]
        for name in names:
            if name not in have:
                raise InvalidRequest(
                    f"no tier is called {name!r} here; there are {', '.join(have)}"
                )
        return tuple(tier for tier in self._tiers if not names or tier.name in names)

    async def _meant(self, tier: Tier, selection: Selection) -> AsyncIterator[Kept]:
        async for kept in tier.scan():
            if not replace(selection, rules=()).means(kept, None):
                continue
            if selection.needs_record and not selection.means(
                kept, await tier.record(kept.header.key)
            ):
                continue
            yield kept

    async def _once_more(self, taken: Sequence[Kept], tiers: Sequence[Tier]) -> None:
        """A hit, a publish or a late put that was under way may have brought it to a tier that was through already."""
        for kept in taken:
            if isinstance(self._chain, ChainTier):
                await self._chain.let_go(kept.header.key, kept.header.digest, LET_GO_SECONDS)
            for tier in tiers:
                if tier.writable:
                    try:
                        await tier.delete(kept.header.key, kept.header.digest)
                    except TierError as exc:
                        log.warning("purge: %s: %s", tier.name, exc)

    async def _checked(self, tier: Tier, kept: Kept, put_aside: bool) -> Row:
        header = kept.header
        why = "" if self._gate is None else self._gate(tier.name, header)
        if why:
            aside = put_aside and tier.writable
            if aside:
                await tier.quarantine(header.key, header.digest, Reason.SIGNATURE)
            return Row(tier.name, kept, "aside" if aside else "bad", f"not to be believed: {why}")
        disk = innermost(tier, lambda inner: isinstance(inner, DiskTier))
        used = await asyncio.to_thread(_Used, disk if isinstance(disk, DiskTier) else None, kept)
        try:
            artifact = await tier.get(header.key, header.digest)
        except ArtifactError as exc:  # tiers put aside what they see to be bad
            return Row(tier.name, kept, "aside", str(exc))
        if artifact is None:
            return Row(tier.name, kept, "gone")
        used.looked()
        try:
            await asyncio.to_thread(_hashed, artifact)
            record = await tier.record(header.key)
            if record is not None:
                if key_of(record) != header.key:
                    raise InvalidRequest(f"its key record is of {key_of(record)[:16]}")
                check_against_record(artifact.header, record)
        except (ArtifactError, InvalidRequest) as exc:
            aside = put_aside and tier.writable
            if aside:
                await tier.quarantine(header.key, header.digest, getattr(exc, "reason", "corrupt"))
            return Row(tier.name, kept, "aside" if aside else "bad", str(exc))
        finally:
            await asyncio.to_thread(used.put_back)
        return Row(tier.name, kept, "sound", "" if record is not None else "it has no key record")


class _Used:
    """To check an artifact is no use of it: else all would look as if it had just been used. A client's use meanwhile
    stays."""

    def __init__(self, disk: DiskTier | None, kept: Kept) -> None:
        place = disk.relative_path(kept.header.digest, kept.header.key) if disk else ""
        self._path = disk.root / place if disk and place else None
        self._own = self._before = self._stamp()

    def looked(self) -> None:
        """The check's own look has just stamped it."""
        self._own = self._stamp()

    def put_back(self) -> None:
        if self._path is not None and self._before and self._stamp() == self._own:
            with suppress(OSError):
                os.utime(self._path, ns=(self._before, self._before))

    def _stamp(self) -> int:
        try:
            return os.stat(self._path).st_mtime_ns if self._path else 0
        except OSError:
            return 0


def _hashed(artifact: Artifact) -> None:
    """Raises ArtifactError where the payload isn't what the header says. Piece by piece: it may be large."""
    header, digest, size = artifact.header, hashlib.sha256(), 0
    try:
        for chunk in artifact.payload.chunks():
            digest.update(chunk)
            size += len(chunk)
    except OSError as exc:
        raise TierError(f"the payload can't be read: {exc}") from exc
    if (size, digest.hexdigest()) != (header.payload_bytes, header.digest):
        raise ArtifactError(
            f"{size} bytes with digest {digest.hexdigest()[:12]}, not {header.digest[:12]}"
        )


def _left(tier: Tier, exc: ColdstartError) -> Row:
    return Row(tier.name, None, "failed", str(exc))
