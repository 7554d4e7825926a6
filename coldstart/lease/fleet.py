"""FleetLeaseBoard: the fleet's leases while its board can be asked, else those of this daemon alone.

Each lease of this daemon's clients is on two boards: the fleet's, and a local one under whose id clients know it. So a
fleet board that goes away costs duplicate compiles between daemons, never within one. When it comes back, a lease that
it has forgotten is taken there again at the next heartbeat; one that somebody else has by then is lost, if it was the
fleet's before, and goes on locally if it was given during the outage: no living holder is robbed for that.

Waiters of this daemon can read what is published sooner than those of others: `done_here` wakes them, and the fleet's
lease goes on until `release`. What will never be published to the others is said to them as a failure (`elsewhere`);
and where that is known of a key, a lease of this daemon `alone` does: hosts needn't take turns.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from coldstart.errors import LeaseLost, TierError
from coldstart.identity.key import SCHEME
from coldstart.lease.board import (
    Busy,
    End,
    Ended,
    Failure,
    Granted,
    Lease,
    LeaseBoard,
    MemoryLeaseBoard,
)

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks whether the fleet's board answers again
NOBODYS_KEY = f"{SCHEME}-{'0' * 64}"


@dataclass(slots=True)
class _Held:
    """A lease of a client of this daemon."""

    key: str
    holder: str
    ttl_seconds: float
    estimate_seconds: float
    fleet_id: str  # "": given while the fleet's board could not be asked
    alone: bool = False  # never the fleet's
    done: bool = False  # over here; only the fleet's goes on


class FleetLeaseBoard:
    """Leases for the clients of one daemon of a fleet. On one event loop."""

    def __init__(
        self,
        fleet: LeaseBoard,
        local: MemoryLeaseBoard,
        *,
        on_change: Callable[[str], None] = lambda words: None,
    ) -> None:
        """`on_change` is told why leases are this daemon's alone from now on, and "" when they are the fleet's."""
        self._fleet = fleet
        self._local = local
        self._on_change = on_change
        self._held: dict[str, _Held] = {}  # by the local id
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.trouble = ""  # why leases are this daemon's alone; "": they are the fleet's
        self._looking: asyncio.Task[None] | None = None  # whether the fleet's board answers again

    def __len__(self) -> int:
        """Live leases of this daemon's clients."""
        return len(self._local)

    async def acquire(
        self,
        key: str,
        holder: str,
        ttl_seconds: float,
        estimate_seconds: float,
        *,
        alone: bool = False,
    ) -> Granted | Busy:
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with (
            turn
        ):  # one question to the fleet at a time; the others then find its answer here
            busy = await self._local.current(key)
            if busy is not None:
                return busy
            wanted = _Held(key, holder, ttl_seconds, estimate_seconds, "", alone)
            fleets = None if alone else await self._ask(wanted)
            if isinstance(fleets, Busy):
                return fleets
            mine = await self._local.acquire(key, holder, ttl_seconds, estimate_seconds)
            assert isinstance(mine, Granted)  # nobody else asks in this key's turn
            await self._prune()
            self._held[mine.lease.id] = wanted
            if fleets is None:
                return mine
            return Granted(replace(mine.lease, fence=fleets.fence))

    async def current(self, key: str) -> Busy | None:
        busy = await self._local.current(key)
        if busy is not None:
            return busy
        try:
            return await self._fleet.current(key)
        except TierError as exc:
            self._alone(exc)
            return None

    async def holds(self, lease_id: str) -> bool:
        held = self._held.get(lease_id)
        return (held is not None and held.done) or await self._local.holds(lease_id)

    async def renew(self, lease_id: str) -> float:
        held = self._held.get(lease_id)
        if held is not None and held.done:
            seconds = held.ttl_seconds
        else:
            seconds = await self._local.renew(lease_id)
            held = self._held.get(lease_id)
        if held is None or held.alone:  # None: ended meanwhile
            return seconds
        try:
            if held.fleet_id:
                await self._fleet.renew(held.fleet_id)
                self._together()
                return seconds
        except TierError as exc:
            self._alone(exc)
            return seconds
        except LeaseLost:
            pass
        before, held.fleet_id = held.fleet_id, ""
        taken = await self._ask(held)  # forgotten there, or given here during an outage
        if isinstance(taken, Busy) and before:
            if not held.done:
                await self._local.release(lease_id)
            self._held.pop(lease_id, None)
            raise LeaseLost(f"the lease went to {taken.holder} meanwhile")
        return seconds

    async def done_here(self, lease_id: str) -> None:
        """Wakes this daemon's waiters. The others' wait until `release`, and the lease is still to be renewed."""
        await self._local.release(lease_id)
        held = self._held.get(lease_id)
        if held is not None:
            held.done = True

    async def release(self, lease_id: str, elsewhere: Failure | None = None) -> None:
        """Done. `elsewhere`: what other daemons' waiters are told, where they won't find what they wait for."""

        async def there(fleet_id: str) -> None:
            if elsewhere is None:
                await self._fleet.release(fleet_id)
            else:
                await self._fleet.fail(fleet_id, elsewhere)

        await self._end(lease_id, self._local.release, there)

    async def fail(self, lease_id: str, failure: Failure) -> None:
        await self._end(
            lease_id,
            lambda id: self._local.fail(id, failure),
            lambda id: self._fleet.fail(id, failure),
        )

    async def wait(self, key: str, max_seconds: float) -> Ended:
        if await self._local.current(key) is not None:
            return await self._local.wait(key, max_seconds)
        try:
            return await self._fleet.wait(key, max_seconds)
        except TierError as exc:
            self._alone(exc)
            return Ended(End.RELEASED)  # ask again: then somebody here gets it

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._local.close()
        self._held.clear()
        await self._fleet.close()

    # --- the fleet's board ---------------------------------------------------------------------

    async def _ask(self, held: _Held) -> Lease | Busy | None:
        """The fleet's lease, noted in `held`; or who has it; None: it can't be asked."""
        try:
            answer = await self._fleet.acquire(
                held.key, held.holder, held.ttl_seconds, held.estimate_seconds
            )
        except TierError as exc:
            self._alone(exc)
            return None
        self._together()
        if isinstance(answer, Busy):
            return answer
        held.fleet_id = answer.lease.id
        return answer.lease

    async def _end(
        self,
        lease_id: str,
        here: Callable[[str], Awaitable[None]],
        there: Callable[[str], Awaitable[None]],
    ) -> None:
        held = self._held.pop(lease_id, None)
        try:
            if held is None or not held.done:
                await here(lease_id)
        finally:  # even where it ran out here: others may still be waiting there
            if held is not None and held.fleet_id:
                with suppress(LeaseLost):
                    try:
                        await there(held.fleet_id)
                        self._together()
                    except TierError as exc:
                        self._alone(exc)

    async def _prune(self) -> None:
        """Forget leases that ran out and that nobody asked about since."""
        if len(self._held) > 2 * len(self._local) + 64:
            for lease_id in tuple(self._held):
                if not await self.holds(lease_id):
                    self._held.pop(lease_id, None)

    def _alone(self, exc: TierError) -> None:
        if not self.trouble:
            log.warning("leases are this daemon's alone: %s", exc)
            self.trouble = str(exc)
            self._on_change(self.trouble)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Until it answers: a warm fleet asks for no lease, and would be said to be alone for ever."""
        while self.trouble:
            await asyncio.sleep(LOOK_SECONDS * random.uniform(0.8, 1.2))
            with suppress(TierError):
                await self._fleet.current(NOBODYS_KEY)
                self._together()

    def _together(self) -> None:
        if self.trouble:
            log.warning("leases are the fleet's again")
            self.trouble = ""
            self._on_change("")
