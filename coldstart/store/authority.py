"""Authority: the lowest tier of a chain decides which digest a key has (I2), and what the others had is taken back.

What a tier could not take when it was put, is owed to it (write_back.py); what lies above the lowest tier is compared
with it once (agreement.py). Either may find that somebody else was first there: then that one replaces ours, and
whoever asked to be told of it is. On one event loop.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from coldstart.artifact import Artifact, Header
from coldstart.errors import ArtifactError, TierError
from coldstart.identity.key import KeyRecord
from coldstart.store.agreement import BELIEVED_SECONDS, Agreement
from coldstart.store.asking import Asking
from coldstart.store.late_marks import LateMarks
from coldstart.store.recorder import Recorder
from coldstart.store.sharing import Sharing
from coldstart.store.tier import Tier
from coldstart.store.write_back import WriteBack

log = logging.getLogger(__name__)

REMEMBERED_SHARES = 16_384


class Authority:
    """One chain's."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        sharing: Sharing,
        asking: Asking,
        recorder: Recorder,
        *,
        marks: LateMarks | None,
        first_seconds: float,
    ) -> None:
        """`first_seconds`: until the first late put; the pause doubles."""
        self._tiers = tuple(tiers)
        self._sharing = sharing
        self._asking = asking
        self._recorder = recorder
        self.on_replaced: list[Callable[[Header], None]] = []  # told what came for another digest
        self.later = WriteBack(
            recorder,
            self._still_elsewhere,
            self._take_back,
            wanted=sharing.wants,
            settled=self._settled,
            marks=marks,
            first_seconds=first_seconds,
        )
        self._agreement = Agreement()
        # key, digest -> until when that is believed
        self._shared: OrderedDict[tuple[str, str], float] = OrderedDict()

    def seen_in(self, tier: Tier, header: Header) -> None:
        """`tier` has that."""
        if tier is self._tiers[-1]:
            self._agreement.note(header)

    def check(self, header: Header) -> None:
        """What a tier has was handed out: compared with the lowest, in the background, unless it was before."""
        if not self._agreement.holds(header):
            self.later.compare(self._tiers[-1], header)

    async def share(self, header: Header, source: Tier | None = None) -> None:
        """A plan names what is stored here: the tiers that aren't given it for its size shall have it after all.

        `source` is where it was found: what a plan has put into a tier that hosts share, it has put everywhere.
        """
        place = (header.key, header.digest)
        left_out = [
            tier for tier in self._tiers if tier.writable and not self._sharing.wants(tier, header)
        ]
        if not left_out or time.monotonic() < self._shared.get(place, 0.0):
            return
        self._shared[place] = time.monotonic() + BELIEVED_SECONDS
        self._shared.move_to_end(place)
        if len(self._shared) > REMEMBERED_SHARES:
            self._shared.popitem(last=False)
        if source is not None and self._sharing.planned_in(source, header):
            return
        for tier in left_out:
            if not await self.later.add(tier, header):  # too much waits: when it is asked for again
                self._shared.pop(place, None)

    async def replace(self, decides: Tier, mine: Header, theirs: Header) -> None:
        """`decides` has another digest than the tiers above it: that one goes there, now or as soon as it can."""
        try:
            await self._take_back(decides, mine, theirs)
        except TierError as exc:
            self._asking.failed(decides, "get", exc)
            self.later.compare(decides, mine)

    async def _take_back(self, decides: Tier, mine: Header, theirs: Header) -> None:
        """One digest for a key: what `decides` has replaces what the tiers above took meanwhile.

        Raises TierError where it can't be had now. Until it is here ours stays: one of the two can always be found.
        """
        ask = self._asking.ask
        try:
            artifact = await decides.get(theirs.key, theirs.digest)
        except ArtifactError as exc:  # put aside by now
            self._asking.failed(decides, "get", exc)
            return
        if artifact is None:
            return
        log.warning(
            "chain: %s has %s for %s, not %s, which is taken back",
            decides.name,
            theirs.digest[:12],
            mine.key,
            mine.digest[:12],
        )
        record = await ask(decides, "record", decides.record(theirs.key), [])
        named = self._sharing.planned_in(decides, theirs)
        for tier in self._tiers[: self._tiers.index(decides)]:
            if not tier.writable:
                continue
            if await ask(tier, "delete", tier.delete(mine.key, mine.digest), []):
                self._recorder(tier.name, "put", "adopted", 0.0)
            if self._sharing.wants(tier, theirs, planned=named):
                await ask(tier, "put", tier.put(artifact, record), [])
        for tell in self.on_replaced:
            tell(theirs)

    async def _still_elsewhere(
        self, tier: Tier, header: Header
    ) -> tuple[Artifact, KeyRecord | None] | None:
        """The artifact and its record, from another tier; those above are the faster ones."""
        ask = self._asking.ask
        failures: list[Exception] = []
        for other in self._tiers:
            if other is tier:
                continue
            got = await ask(other, "get", other.get(header.key, header.digest), failures)
            if got is not None:
                return got, await ask(other, "record", other.record(header.key), failures)
        return None

    def _settled(self, tier: Tier, header: Header, there: bool) -> None:
        if there:
            self.seen_in(tier, header)
        elif tier is self._tiers[-1]:  # until a plan names it: then it may be given another
            self._agreement.note_absent(header)
