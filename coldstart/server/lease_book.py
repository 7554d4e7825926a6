"""LeaseBook: which open lookup holds which lease. The board decides; this remembers for whom, and tells waiters."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from coldstart.errors import LeaseLost
from coldstart.lease.board import Busy, Failure, LeaseBoard
from coldstart.lease.fleet import FleetLeaseBoard
from coldstart.outcomes import Reason
from coldstart.server.negatives import NegativeEntries
from coldstart.server.open_lookups import OpenLookup
from coldstart.server.tally import Tally


@dataclass(frozen=True, slots=True)
class Held:
    """One lease and its holder."""

    lease_id: str
    key: str
    lookup: OpenLookup


class LeaseBook:
    """Leases of this daemon's clients."""

    def __init__(
        self, board: LeaseBoard, negatives: NegativeEntries, tally: Tally, lease_seconds: float
    ) -> None:
        self._board = board
        self._negatives = negatives
        self._tally = tally
        self._lease_seconds = lease_seconds
        self._by_id: dict[str, Held] = {}
        self._by_key: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def shared(self) -> bool:
        """Whether other daemons' clients take leases from the same board."""
        return isinstance(self._board, FleetLeaseBoard)

    def holder(self, lease_id: str) -> OpenLookup | None:
        """The lookup that holds it; None: unknown or over."""
        held = self._by_id.get(lease_id)
        return None if held is None else held.lookup

    async def acquire(self, lookup: OpenLookup) -> Busy | None:
        """A lease on the lookup's key, noted in `lookup.lease_id`; or who has it."""
        acquired = await self._board.acquire(
            lookup.key, lookup.asker.holder, self._lease_seconds, lookup.asker.estimate_seconds
        )
        if isinstance(acquired, Busy):
            return acquired
        before = self._by_key.get(lookup.key)
        if before is not None:  # nobody gave it back: the board took it from a silent holder
            self._lose(before)
            self._tally.takeovers += 1
        held = Held(acquired.lease.id, lookup.key, lookup)
        self._by_id[held.lease_id] = self._by_key[held.key] = held
        lookup.lease_id, lookup.lost = held.lease_id, False
        return None

    async def renew(self, lease_id: str) -> float:
        """Seconds that it lives on. Raises LeaseLost."""
        try:
            return await self._board.renew(lease_id)
        except LeaseLost:
            if lease_id in self._by_id:
                self._lose(self._by_id[lease_id])
            raise

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
