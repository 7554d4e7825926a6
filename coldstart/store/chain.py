"""ChainTier: ordered tiers acting as one. Fast and small first, slow and authoritative last.

- Asked in order. A tier that fails is counted, named in the log and skipped. Misses everywhere are a miss; misses
  with a failure on the way are a TierError: we don't know.
- A hit in a lower tier is back-filled into the writable ones above that missed, from the bytes in hand, in the
  background (backfill.py): whoever asked doesn't wait for it.
- `put` adopts what any tier already has. Otherwise the write policy says which tiers must take it:

      best_effort   the first writable must; the others are tried (default)
      first         the first writable must; the others are left alone
      all           every writable must

  Tiers named in `required` must under every policy. What another could not take is put later (write_back.py).
- Small programs aren't given to tiers that hosts share, unless a plan names them (sharing.py): not by a put, and not by
  any copy that is made afterwards.
- The lowest tier decides (I2): where it turns out to have another digest by then, ours is taken back from those above.
  What a tier above hands out is compared with it once, in the background (authority.py).
- A tier that is too small for an artifact leaves it to those below and may keep a row about it (pointers.py).
- A bad copy is quarantined in the first tier that has it, which is the one that was served; the next tier's copy
  then answers. Where that tier can't be written, its copy is barred in memory instead.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Literal

from coldstart.artifact import Artifact, FilePayload, Header
from coldstart.errors import ArtifactCorrupt, ConfigError, TierError, TooLarge
from coldstart.identity.key import KeyRecord
from coldstart.store.asking import FAILURES, Asking, find_within, raise_unknown
from coldstart.store.authority import Authority
from coldstart.store.backfill import BackFill
from coldstart.store.kept import Kept
from coldstart.store.late_marks import LateMarks
from coldstart.store.pointers import Pointers
from coldstart.store.recorder import Recorder, ignore
from coldstart.store.sharing import Sharing
from coldstart.store.tier import Tier
from coldstart.store.write_back import FIRST_SECONDS

WritePolicy = Literal["first", "all", "best_effort"]
WRITE_POLICIES: tuple[WritePolicy, ...] = ("first", "all", "best_effort")
# For one tier's find, so that the whole lookup stays within what clients wait for (10 s); and for a tier that is only
# asked whether it has another variant of what was found.
FIND_SECONDS, BESIDE_SECONDS = 5.0, 1.0
BARRED = 1024  # bad copies in tiers that can't be written, remembered


class ChainTier:
    """Several tiers as one Tier."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        write_policy: WritePolicy = "best_effort",
        required: Collection[str] = (),
        recorder: Recorder = ignore,
        write_back_seconds: float = FIRST_SECONDS,
        marks: LateMarks | None = None,
    ) -> None:
        """`required`: names of tiers. `write_back_seconds`: until the first late put; the pause doubles."""
        if not tiers:
            raise ConfigError(
                "a chain needs at least one store; for instance --store disk:///var/cache/coldstart"
            )
        if write_policy not in WRITE_POLICIES:
            raise ConfigError(
                f"write policy {write_policy!r} is not known; use one of {', '.join(WRITE_POLICIES)}"
            )
        self.tiers = tuple(tiers)
        self._write_policy = write_policy
        self._required = frozenset(required)
        self._recorder = recorder
        self._sharing = Sharing(tiers)
        self._asking = Asking(self.name, recorder)
        self._ask = self._asking.ask
        self._pointers = Pointers(tiers)
        self._backfill = BackFill(recorder, self._found_bad, self._pointers.add)
        self._authority = Authority(
            tiers,
            self._sharing,
            self._asking,
            recorder,
            marks=marks,
            first_seconds=write_back_seconds,
        )
        self._later = self._authority.later
        self.on_replaced = self._authority.on_replaced
        self._putting: set[tuple[str, str]] = set()  # key, digest
        self._resuming: asyncio.Task[None] | None = None
        self._barred: OrderedDict[tuple[int, str, str], None] = OrderedDict()  # tier, key, digest

    @property
    def name(self) -> str:
        return "chain"

    @property
    def writable(self) -> bool:
        return any(tier.writable for tier in self.tiers)

    async def find(self, key: str) -> tuple[Header, ...]:
        """The first tier that has a variant says which digest it has.

        Tiers below a hit are asked too where the key has variants: the caller's may be only there. A tier that is
        silent is waited for for 5 s, below a hit for 1 s.
        """
        return await self._find(key, frozenset())

    async def find_at_once(self, key: str) -> tuple[Header, ...]:
        """As `find`, without the tiers that failed when they were asked last: none found is no certain miss."""
        return await self._find(key, frozenset(self._asking.failing))

    async def _find(self, key: str, left_out: Collection[str]) -> tuple[Header, ...]:
        found: dict[str, Header] = {}
        failures: list[Exception] = []
        partial = False
        for at, tier in enumerate(self.tiers):
            if tier.name in left_out:
                continue
            seconds = BESIDE_SECONDS if found else FIND_SECONDS
            headers = await self._ask(tier, "find", find_within(seconds, tier, key), failures)
            partial = partial or (headers is not None and tier.writable)
            for header in headers or ():
                self._authority.seen_in(tier, header)
                if (at, key, header.digest) not in self._barred:
                    found.setdefault(header.variant, header)
            for header, lower in await self._pointers.said(at, key) if "" not in found else ():
                if (lower, key, header.digest) not in self._barred:
                    found.setdefault(header.variant, header)
            if "" in found:
                break
        if not found:
            raise_unknown("find", failures, partial=partial)
        return tuple(found.values())

    async def get(self, key: str, digest: str) -> Artifact | None:
        artifact, _ = await self._get(key, digest)
        return artifact

    async def get_with_source(
        self, key: str, digest: str, *, planned: bool = False
    ) -> tuple[Artifact, str] | None:
        """As `get`, with the name of the tier that had it (before back-filling). `planned`: a plan names it."""
        artifact, source = await self._get(key, digest, planned=planned)
        return None if artifact is None else (artifact, source)

    async def put(
        self,
        artifact: Artifact,
        record: KeyRecord | None,
        *,
        planned: bool = False,
        readable: Callable[[Header], Awaitable[None]] | None = None,
    ) -> Header:
        """As a tier's. `planned`: a plan names it, so it goes to every tier whatever its size.

        `readable` is told as soon as the first tier has it and no failure of another can undo the put. What the header
        is by then is provisional: a tier below may turn out to have another, which is returned, and replaces it here.
        """
        mine = artifact.header
        known = await self._known(mine)
        if known is not None and known.digest != mine.digest:
            if planned:
                await self.share(known)
            return known
        place = (mine.key, mine.digest)
        self._putting.add(place)
        try:
            return await self._put(artifact, record, self._targets(mine, planned), readable)
        finally:
            self._putting.discard(place)

    def _targets(self, mine: Header, planned: bool) -> list[Tier]:
        """Who is to be given it, in order. Raises TierError: nobody."""
        writable = [tier for tier in self.tiers if tier.writable]
        if not writable:
            raise TierError("chain: put refused, no tier of it can be written")
        targets = []
        for tier in writable:
            if self._sharing.wants(tier, mine, planned=planned):
                targets.append(tier)
            else:
                self._recorder(tier.name, "put", "too-small", 0.0)
        if not targets:
            refused = TierError(
                f"chain: put refused, {mine.compile_seconds:g} s of compiling is too small for every tier"
            )
            refused.lasting = True
            raise refused
        return targets[:1] if self._write_policy == "first" else targets

    def _must(self, tier: Tier) -> bool:
        return self._write_policy == "all" or tier.name in self._required

    async def _put(
        self,
        artifact: Artifact,
        record: KeyRecord | None,
        targets: list[Tier],
        readable: Callable[[Header], Awaitable[None]] | None,
    ) -> Header:
        mine = artifact.header
        stored = False
        too_small: list[Tier] = []  # for its bytes
        first: Exception | None = None
        for at, tier in enumerate(targets):
            must = not stored or self._must(tier)
            try:
                header = await tier.put(artifact, record)
            except FAILURES as exc:
                leave = isinstance(exc, TooLarge) and tier is not targets[-1]
                if must and not (leave and self._write_policy == "best_effort"):
                    if first is not None:
                        raise first from exc
                    raise
                first = first or exc
                self._asking.failed(tier, "put", exc)
                if isinstance(exc, TooLarge):
                    too_small.append(tier)
                if isinstance(exc, TierError) and not exc.lasting:
                    await self._later.add(tier, mine)
                continue
            if header.digest != mine.digest:  # somebody was first
                if stored:
                    await self._authority.replace(tier, mine, header)
                self._authority.seen_in(tier, header)
                return header
            stored = True
            self._authority.seen_in(tier, mine)
            artifact = await self._still_there(tier, artifact)
            for upper in too_small:
                await self._pointers.add(upper, mine, tier)
            too_small.clear()
            if readable is not None and not any(map(self._must, targets[at + 1 :])):
                await readable(mine)
                readable = None
        return mine

    async def share(self, header: Header) -> None:
        """A plan names what is stored here: the tiers that aren't given it for its size shall have it after all."""
        await self._authority.share(header)

    async def record(self, key: str) -> KeyRecord | None:
        failures: list[Exception] = []
        for tier in self.tiers:
            found = await self._ask(tier, "record", tier.record(key), failures)
            if found is not None:
                return found
        raise_unknown("record", failures)
        return None

    async def delete(self, key: str, digest: str) -> bool:
        """From every writable tier; a failure in one is raised once all were tried."""
        failures: list[Exception] = []
        removed = False
        for tier in self.tiers:
            if tier.writable:
                gone = await self._ask(tier, "delete", tier.delete(key, digest), failures)
                removed = bool(gone) or removed
        raise_unknown("delete", failures)
        return removed

    async def quarantine_everywhere(self, key: str, digest: str, reason: str) -> bool:
        """Its copies have been found bad more than once: none is given to another tier, and all are put aside."""
        await self.let_go(key, digest, BESIDE_SECONDS)
        gone = False
        for at, tier in enumerate(self.tiers):
            headers = await self._ask(tier, "find", tier.find(key), [])
            if any(header.digest == digest for header in headers or ()):
                gone = True
                if not await self._put_aside(tier, key, digest, reason):
                    self._bar(at, key, digest)
        return gone

    async def let_go(self, key: str, digest: str, seconds: float) -> None:
        """Nothing that goes on by itself shall bring it back: what is under way is waited for, that long at most."""
        ends = time.monotonic() + seconds
        await self._later.forget(key, digest, ends)
        await self._backfill.settle(max(0.0, ends - time.monotonic()))
        while (key, digest) in self._putting and time.monotonic() < ends:
            await asyncio.sleep(0.02)
        await self._later.forget(key, digest, ends)  # what that put came to owe

    def _bar(self, at: int, key: str, digest: str) -> None:
        self._barred[(at, key, digest)] = None
        if len(self._barred) > BARRED:
            self._barred.popitem(last=False)

    async def quarantine(self, key: str, digest: str, reason: str) -> bool:
        failures: list[Exception] = []
        for at, tier in enumerate(self.tiers):
            if (at, key, digest) in self._barred:
                continue
            headers = await self._ask(tier, "find", tier.find(key), failures)
            if not any(header.digest == digest for header in headers or ()):
                continue
            if await self._put_aside(tier, key, digest, reason):
                return True
            self._bar(at, key, digest)
            return True
        raise_unknown("quarantine", failures)
        return False

    async def scan(self) -> AsyncIterator[Kept]:
        """Each artifact once, as the first tier that has it tells it."""
        failures: list[Exception] = []
        told: set[tuple[str, str]] = set()
        for tier in self.tiers:
            try:
                async for stored in tier.scan():
                    place = (stored.header.key, stored.header.digest)
                    if place not in told:
                        told.add(place)
                        yield stored
            except FAILURES as exc:
                self._asking.failed(tier, "scan", exc)
                failures.append(exc)
        raise_unknown("scan", failures)

    def resume(self) -> None:
        """Go on with the puts that the process before this one had still to make. On the event loop, once."""
        self._resuming = asyncio.create_task(self._later.resume(self.tiers))

    async def settle(self) -> None:
        """Until what is being back-filled has been."""
        await self._backfill.settle()

    @property
    def late_puts(self) -> int:
        """Puts that a tier has still to be given."""
        return len(self._later)

    async def close(self) -> None:
        """Every tier is closed, whatever the others say; then the first trouble is raised."""
        if self._resuming is not None:
            self._resuming.cancel()
        await self._later.close()
        await self._backfill.close()
        failures: list[Exception] = []
        for tier in self.tiers:
            await self._ask(tier, "close", tier.close(), failures)
        raise_unknown("close", failures)

    async def _get(
        self, key: str, digest: str, *, planned: bool = False
    ) -> tuple[Artifact | None, str]:
        failures: list[Exception] = []
        missed: list[Tier] = []
        for at, tier in enumerate(self.tiers):
            if (at, key, digest) in self._barred:
                continue
            failed_before = len(failures)
            artifact = await self._ask(tier, "get", tier.get(key, digest), failures)
            if artifact is None:
                certain = len(failures) == failed_before
                put_aside = not certain and isinstance(failures[-1], ArtifactCorrupt)
                if (certain or put_aside) and tier.writable:
                    missed.append(tier)
                continue
            named = planned or self._sharing.planned_in(tier, artifact.header)
            self._fill(artifact, tier, missed, named)
            self._authority.seen_in(tier, artifact.header)
            if planned:
                await self._authority.share(artifact.header, tier)
            if (key, digest) not in self._putting:  # else the put itself finds out
                self._authority.check(artifact.header)
            return artifact, tier.name
        raise_unknown("get", failures, partial=bool(missed))
        await self._pointers.drop(key, digest)
        return None, ""

    def _fill(self, artifact: Artifact, source: Tier, missed: list[Tier], planned: bool) -> None:
        given = []
        for tier in missed:
            if self._sharing.wants(tier, artifact.header, planned=planned):
                given.append(tier)
            else:
                self._recorder(tier.name, "backfill", "too-small", 0.0)
        if given:
            self._backfill.start(artifact, source, given)

    async def _found_bad(self, source: Tier, artifact: Artifact, exc: Exception) -> None:
        """Copying showed that the source's bytes are bad. Whoever was handed them finds the same, and rejects them."""
        self._asking.failed(source, "get", exc)
        await self._put_aside(source, artifact.header.key, artifact.header.digest, "corrupt")

    async def _known(self, mine: Header) -> Header | None:
        """What some tier already has for that key and variant. A tier that can't say is no reason not to store."""
        for at, tier in enumerate(self.tiers):
            asked = find_within(BESIDE_SECONDS, tier, mine.key)  # its own put will tell, if later
            for header in await self._ask(tier, "find", asked, []) or ():
                barred = (at, mine.key, header.digest) in self._barred
                if header.variant == mine.variant and not barred:
                    return header
        return None

    async def _still_there(self, tier: Tier, artifact: Artifact) -> Artifact:
        """The artifact with a payload that can still be read: a tier may have taken a spooled file over."""
        payload = artifact.payload
        if not isinstance(payload, FilePayload) or payload.path.exists():
            return artifact
        header = artifact.header
        stored = await self._ask(tier, "get", tier.get(header.key, header.digest), [])
        return stored or artifact

    async def _put_aside(self, tier: Tier, key: str, digest: str, reason: str) -> bool:
        try:
            return await tier.quarantine(key, digest, reason)
        except FAILURES as exc:
            self._asking.failed(tier, "quarantine", exc)
            return False
