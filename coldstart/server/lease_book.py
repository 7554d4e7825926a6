"""LeaseBook: which open lookup holds which lease. The board decides; this remembers for whom, and tells waiters."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from coldstart.errors import LeaseLost
from coldstart.lease.board import Busy, Failure, LeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.outcomes import Reason
from coldstart.server.negatives import NegativeEntries
from coldstart.server.open_lookups import OpenLookup
from coldstart.server.tally import Tally

SMALL_SECONDS = 60.0  # that a key is known to be one whose artifact no host gives to others


@dataclass(slots=True)
class Held:
    """One lease and its holder."""

    lease_id: str
    key: str
    lookup: OpenLookup
    since: float  # on the clock of this book
    done: bool = False  # for this daemon's waiters; others may still wait


class LeaseBook:
    """Leases of this daemon's clients."""

    def __init__(
        self,
        board: LeaseBoard,
        negatives: NegativeEntries,
        tally: Tally,
        lease_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._board = board
        self._negatives = negatives
        self._tally = tally
        self._lease_seconds = lease_seconds
        self._now = now
        self._small = NegativeEntries(SMALL_SECONDS, now)
        self._by_id: dict[str, Held] = {}
        self._by_key: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def held(self) -> Iterator[tuple[OpenLookup, float]]:
        """Who compiles now, and for how many seconds."""
        now = self._now()
        return ((held.lookup, now - held.since) for held in self._by_id.values() if not held.done)

    @property
    def shared(self) -> bool:
        """Whether other daemons' clients take leases from the same board."""
        return isinstance(self._board, FleetLeaseBoard)

    def holder(self, lease_id: str) -> OpenLookup | None:
        """The lookup that holds it; None: unknown or over."""
        held = self._by_id.get(lease_id)
        return None if held is None else held.lookup

    async def current(self, key: str) -> Busy | None:
        """Who compiles it now, for somebody who isn't going to."""
        return await self._board.current(key)

    async def acquire(self, lookup: OpenLookup) -> Busy | None:
        """A lease on the lookup's key, noted in `lookup.lease_id`; or who has it."""
        asker, alone = lookup.asker, {}
        if isinstance(self._board, FleetLeaseBoard):
            small = self._small.get(lookup.key) is not None
            alone = {"alone": small and not asker.planned}
        acquired = await self._board.acquire(
            lookup.key, asker.holder, self._lease_seconds, asker.estimate_seconds, **alone
        )
        if isinstance(acquired, Busy):
            return acquired
        before = self._by_key.get(lookup.key)
        if before is not None:  # nobody gave it back: the board took it from a silent holder
            self._lose(before)
            self._tally.takeovers += 1
        held = Held(acquired.lease.id, lookup.key, lookup, self._now())
        self._by_id[held.lease_id] = self._by_key[held.key] = held
        lookup.lease_id, lookup.lost = held.lease_id, False
        return None

    async def renew(self, lease_id: str) -> float:
        """Seconds that it lives on. Raises LeaseLost."""
        held = self._by_id.get(lease_id)
        if held is not None and held.done and not self.shared:
            return self._lease_seconds  # nobody waits for it any more
        try:
            return await self._board.renew(lease_id)
        except LeaseLost:
            if lease_id in self._by_id:
                self._lose(self._by_id[lease_id])
            raise

    async def done_here(self, lease_id: str) -> None:
        """What was compiled can be read here: wake this daemon's waiters. Others' wait until `release`."""
        held = self._by_id.get(lease_id)
        if held is None or held.done:
            return
        held.done = True
        if self._by_key.get(held.key) is held:  # the next holder of the key takes nothing over
            del self._by_key[held.key]
        with contextlib.suppress(LeaseLost):
            if isinstance(self._board, FleetLeaseBoard):
                await self._board.done_here(lease_id)
            else:
                await self._board.release(lease_id)

    async def stays_here(self, lease_id: str, key: str, message: str) -> None:
        """As `release`, of a small program's: other daemons' waiters are told that it isn't coming."""
        self.note_small(key, message)
        self._forget(lease_id)
        with contextlib.suppress(LeaseLost):
            if isinstance(self._board, FleetLeaseBoard):
                await self._board.release(lease_id, Failure(Reason.TOO_SMALL.value, message))
            else:
                await self._board.release(lease_id)

    def note_small(self, key: str, message: str) -> None:
        """No host gives it to others: each compiles it once, and needs no lease of the fleet's for a while."""
        self._small.add(key, Reason.TOO_SMALL, message)

    async def release(self, lease_id: str) -> None:
        """Give it back; a waiter takes over. One that is over already is none of our business."""
        self._forget(lease_id)
        with contextlib.suppress(LeaseLost):
            await self._board.release(lease_id)

    async def let_loose(self, lookup: OpenLookup, reason: Reason, message: str) -> None:
        """Nothing will be published under this lease: tell the waiters why, so that all go on at once."""
        self._negatives.add(lookup.key, reason, message)
        lease_id = lookup.lease_id
        self._forget(lease_id)
        with contextlib.suppress(LeaseLost):
            await self._board.fail(lease_id, Failure(reason.value, message))

    async def sweep(self) -> None:
        """Note the leases that the board let go."""
        for held in tuple(self._by_id.values()):
            if held.done:
                continue
            if not await self._board.holds(held.lease_id) and held.lease_id in self._by_id:
                self._lose(held)

    def _lose(self, held: Held) -> None:
        held.lookup.lost = True
        self._tally.event("lease-expired", f"{held.lookup.asker.holder}: {held.key[:16]}")
        self._forget(held.lease_id)

    def _forget(self, lease_id: str) -> None:
        held = self._by_id.pop(lease_id, None)
        if held is None:
            return
        if self._by_key.get(held.key) is held:
            del self._by_key[held.key]
        if held.lookup.lease_id == lease_id:
            held.lookup.lease_id = ""
