"""Lookups: what the daemon answers, and why. The lookup table of the contract, in one object, without gRPC.

One lookup is one compile request of a client. It is open from its first call until Finish, or until it has been
silent for too long; either way it is counted exactly once. All state lives on one event loop: no locks, and
whatever was true before an `await` is looked at again after it.

    ask_raw, ask_descriptor -> what may be rewritten
    ask_record, ask_final   -> hit, lease, wait or refused (resolver.py); Await ends as hit, lease, refused, or waits on
    publish, fail, release  -> the end of a lease
    finish                  -> counted
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from coldstart.artifact import Artifact
from coldstart.config import DaemonConfig
from coldstart.errors import InvalidRequest, LeaseLost, TierError
from coldstart.identity.final import FinalParts
from coldstart.identity.key import KeyRecord, key_of
from coldstart.lease.board import End, LeaseBoard
from coldstart.outcomes import Outcome, Reason
from coldstart.server.activity import Compiling
from coldstart.server.answers import (
    Answer,
    Asker,
    Canonicalize,
    FinalAnswer,
    KeyAnswer,
    NeedDescriptor,
    NoRewrites,
    Refused,
    Rewritten,
    Waiting,
    least,
)
from coldstart.server.audit import Audit
from coldstart.server.frames import Job
from coldstart.server.holdings import Holdings
from coldstart.server.key_memory import KeyMemory
from coldstart.server.lease_book import LeaseBook
from coldstart.server.negatives import NegativeEntries
from coldstart.server.notary import Notary
from coldstart.server.open_lookups import OpenLookup, OpenLookups, check_lookup_id
from coldstart.server.program_memory import ProgramMemory, final_name
from coldstart.server.publisher import Publication, Published, Publisher
from coldstart.server.reason_sets import HOST_REASONS, NEGATIVE_REASONS, REJECT_REASONS
from coldstart.server.resolver import Resolver, choose
from coldstart.server.tally import Ending, Tally
from coldstart.store.names import check_digest, check_key
from coldstart.wire import KeyState, Mode

log = logging.getLogger("coldstart.server")

MAX_REJECTS = 3  # of one digest by one lookup: repaired copies are worth another look, not for ever
MAX_BATCH = 20_000
BATCH_AT_ONCE = 16  # keys of one batch: a remote tier takes its time for each
SILENT_LEASES = 4  # lease times without a word, after which a lookup that held one is given up


class Lookups:
    """The daemon's answers. Call from one event loop."""

    def __init__(
        self,
        config: DaemonConfig,
        holdings: Holdings,
        board: LeaseBoard,
        tally: Tally,
        *,
        canonicalize: Canonicalize | None = None,
        notary: Notary | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        notary = notary or Notary(Audit(tally))
        self._audit = notary.audit
        self._config = config
        self._holdings = holdings
        self._board = board
        self._tally = tally
        self._canonicalize = canonicalize or NoRewrites()
        self.programs = ProgramMemory()
        self._now = now
        self.mode = Mode(config.mode)
        self._negatives = NegativeEntries(config.negative_seconds, now)
        self._memory = KeyMemory(tally)
        holdings.tell_replaced(self._memory.see)
        self._open = OpenLookups(now)
        self._leases = LeaseBook(board, self._negatives, tally, config.lease_seconds, now)
        self._publisher = Publisher(
            config,
            holdings,
            self._open,
            self._leases,
            self._negatives,
            self._memory,
            tally,
            now,
            notary,
        )
        self._resolver = Resolver(
            config,
            holdings,
            self._leases,
            self._negatives,
            self._memory,
            self._publisher,
            tally,
            notary,
        )
        self._closing = asyncio.Event()
        self.waiting = 0  # calls that wait for somebody's compile now

    @property
    def open_lookups(self) -> int:
        return len(self._open)

    @property
    def open_leases(self) -> int:
        return len(self._leases)

    def compiling(self) -> Iterator[Compiling]:
        """What clients of this daemon compile under a lease now."""
        for lookup, seconds in self._leases.held():
            record = self.programs.record(lookup.key)
            known = self._memory.get(lookup.key)
            expected = known.compile_seconds if known else lookup.asker.estimate_seconds
            name = record.program_name if record else ""
            yield Compiling(lookup.key, name, lookup.asker.holder, seconds, expected)

    def close(self) -> None:
        """Send waiters home: they are answered `wait`, and compile when they find the daemon gone."""
        self._closing.set()

    # --- asking --------------------------------------------------------------------------------

    async def ask_raw(self, asker: Asker, raw_digest: str, *, may_hit: bool = False) -> Answer:
        """By raw digest: the artifact of what it came to before, the rewrites that are remembered, or: say more."""
        check_digest(raw_digest)
        lookup = await self._enter(asker)
        mode = least(self.mode, asker.mode)
        if (
            mode is asker.mode
        ):  # else it asks for what this daemon doesn't do: an alias of another mode
            lookup.raw_digest = raw_digest
            key = self.programs.key_of(raw_digest) if may_hit else ""
            record = self.programs.record(key) if key else None
            hit = await self._resolver.recall(lookup, key, record) if record else None
            if hit is not None:
                return hit
        if mode is not Mode.CANONICAL:
            return Rewritten(())
        known = self.programs.rewrites(raw_digest)
        if known is not None:
            return Rewritten(known)
        self._canonicalize.warm()
        return NeedDescriptor()

    async def ask_descriptor(self, asker: Asker, descriptor: bytes) -> Answer:
        """By descriptor: what may be rewritten before the program is keyed."""
        lookup = await self._enter(asker)
        if least(self.mode, asker.mode) is not Mode.CANONICAL:
            return Rewritten(())
        found = await self._canonicalize(descriptor)
        self._open.touch(lookup)
        if lookup.raw_digest:
            self.programs.remember(lookup.raw_digest, found)
        if found.abandoned:
            self._tally.event("not-canonicalized", f"{asker.holder}: {found.abandoned}")
        return Rewritten(found.rewrites)

    async def ask_final(self, asker: Asker, descriptor: bytes, parts: FinalParts) -> FinalAnswer:
        """By final descriptor: as by key record, with a record that is made here."""
        await self._enter(asker)
        exact = least(self.mode, asker.mode) is not Mode.CANONICAL
        found = await self._canonicalize(descriptor, Job.FINAL_EXACT if exact else Job.FINAL)
        if found.final is None:
            self._tally.event("not-canonicalized", f"{asker.holder}: {found.abandoned}")
            return FinalAnswer(Refused(found.reason, f"no key was made: {found.abandoned}"))
        record = parts.record(found.final)
        lookup = await self._enter(asker)  # it may have ended meanwhile
        # Never the name that a client chose: what a client says is the same program is not what makes it so here.
        lookup.raw_digest = final_name(key_of(record), found.final.raw_digest)
        self.programs.remember(lookup.raw_digest, found)
        return FinalAnswer(await self.ask_record(asker, record), record, found.rewrites)

    async def ask_record(self, asker: Asker, record: KeyRecord) -> Answer:
        """By key record: hit, lease, wait or refused."""
        key = key_of(record)
        lookup = await self._enter(asker)
        if lookup.by_alias and lookup.key != key:  # the alias was wrong; `link` puts it right
            await self._settle(lookup)
            lookup.key = ""
        if lookup.key not in ("", key):
            raise InvalidRequest(
                f"lookup {asker.lookup_id!r:.60} asked for {lookup.key[:16]} before, now for {key[:16]}; "
                "a new compile request takes a new lookup id"
            )
        lookup.key, lookup.by_alias = key, False
        if not asker.only_reads:  # who can't publish can't say either what others' programs come to
            self.programs.link(lookup.raw_digest, key, record)
        if asker.namespace != self._config.namespace:
            serves = f"the namespace {self._config.namespace}" if self._config.namespace else "none"
            return Refused(
                Reason.ROLE,
                f"this daemon serves {serves}, not {asker.namespace or 'none'!r}: set COLDSTART_NAMESPACE so",
                key,
            )
        return await self._resolver.resolve(lookup)

    async def wait(self, lookup_id: str, key: str, max_wait_seconds: float) -> Answer:
        """After `wait`: how it went on, no later than `max_wait_seconds`."""
        lookup = self._open.of_key(lookup_id, key)
        deadline = self._now() + max(0.0, min(max_wait_seconds, self._config.wait_seconds))
        lookup.waited = True
        self.waiting += 1
        try:
            return await self._waited(lookup, deadline)
        finally:
            self.waiting -= 1

    async def _waited(self, lookup: OpenLookup, deadline: float) -> Answer:
        while True:
            left = deadline - self._now()
            unchanged = lookup.looked_at == self._publisher.count  # since its key was looked for
            if left > 0 and unchanged and not self._closing.is_set():
                refused = await self._wait_for_end(lookup, left)
                if refused is not None:
                    return refused
            self._open.touch(lookup)
            answer = await self._resolver.resolve(lookup)
            if not isinstance(answer, Waiting):
                return answer
            if self._closing.is_set() or deadline - self._now() <= 0:
                return answer

    async def _wait_for_end(self, lookup: OpenLookup, seconds: float) -> Refused | None:
        """Until the lease on its key ends, the daemon closes, or `seconds` are over.

        Returns what there is to say where the holder failed; else the store is asked again.
        """
        ended = asyncio.ensure_future(self._board.wait(lookup.key, seconds))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({ended, closing}, return_when=asyncio.FIRST_COMPLETED)
            end = ended.result() if ended.done() else None
        finally:
            ended.cancel()
            closing.cancel()
        if end is None or end.why is not End.FAILED or end.failure is None:
            return None
        known = {reason.value: reason for reason in Reason}
        reason = known.get(end.failure.kind, Reason.NEGATIVE_COMPILE)  # a newer daemon's word
        if reason is Reason.TOO_SMALL and lookup.asker.planned:
            return None
        if self._negatives.get(lookup.key) is None:  # another daemon's
            if reason is Reason.TOO_SMALL:  # it stays there: each host compiles its own, at once
                self._leases.note_small(lookup.key, end.failure.message)
            if (
                reason not in NEGATIVE_REASONS
            ):  # about that host, say its full disk; here it may go well
                return None
            self._negatives.add(lookup.key, reason, end.failure.message)
        return Refused(reason, end.failure.message, lookup.key)

    async def reject(self, lookup_id: str, key: str, digest: str, reason: Reason) -> Answer:
        """A copy that was served is bad: out of the way with it, then the next answer."""
        lookup = self._open.of_key(lookup_id, key)
        if digest not in lookup.served:
            raise InvalidRequest("only a digest that this lookup was served can be rejected")
        if reason not in REJECT_REASONS:
            raise InvalidRequest(f"reason {reason.value} is not one that a copy is rejected for")
        lookup.rejected[digest] += 1
        # Of who only reads a word is no proof: others are still offered the copy, and check it themselves.
        own = reason in HOST_REASONS or bool(lookup.asker.only_reads)
        if own or lookup.rejected[digest] >= MAX_REJECTS:
            lookup.excluded.add(digest)
        if not own:
            self._resolver.unpin(lookup, digest)
            lookup.damage = reason  # if it is now missing everywhere, then for that
            await self._quarantine(lookup, digest, reason)
        return await self._resolver.resolve(lookup)

    async def fetch(self, lookup_id: str, key: str, digest: str) -> Artifact | None:
        """The artifact, for a stream; None: gone."""
        check_key(key)
        check_digest(digest)
        lookup = self._open.get(lookup_id)
        if lookup is not None:
            self._open.touch(lookup)
        found = await self._holdings.get(key, digest)
        return None if found is None else found.artifact

    async def _quarantine(self, lookup: OpenLookup, digest: str, reason: Reason) -> None:
        again = lookup.rejected[digest] > 1  # then the copies of other tiers are no better
        try:
            if await self._holdings.quarantine(lookup.key, digest, reason.value, everywhere=again):
                self._audit.bad(lookup.key, digest, reason.value, lookup.asker.holder)
        except TierError as exc:  # can't be put aside: at least this client isn't handed it again
            log.warning("bad copy of %s stays: %s", lookup.key[:16], exc)
            lookup.excluded.add(digest)

    # --- the life of a lease -------------------------------------------------------------------

    async def renew(self, lease_id: str) -> float:
        """Seconds that it lives on. Raises LeaseLost."""
        lookup = self._leases.holder(lease_id)
        seconds = await self._leases.renew(lease_id)
        if lookup is not None:
            self._open.touch(lookup)
        return seconds

    async def release(self, lease_id: str) -> None:
        """Not going to compile after all: a waiter takes over."""
        await self._leases.release(lease_id)

    async def fail(self, lease_id: str, reason: Reason, message: str) -> None:
        """The compile failed; waiters and late-comers are told, and compile by themselves."""
        if reason not in NEGATIVE_REASONS:
            raise InvalidRequest(
                f"a failed compile is one of the negative reasons, not {reason.value}"
            )
        lookup = self._leases.holder(lease_id)
        if lookup is None:
            raise LeaseLost("this lease is not known here; the failure was not recorded")
        await self._leases.let_loose(lookup, reason, message)

    async def publish(self, publication: Publication, chunks: AsyncIterator[bytes]) -> Published:
        """Take in an artifact: see `Publisher`."""
        if self.mode is Mode.OBSERVE:
            return Published(publication.header.digest, kept_local=Reason.MODE_OBSERVE)
        return await self._publisher.publish(publication, chunks)

    # --- ending --------------------------------------------------------------------------------

    def notice(self, reason: Reason, message: str) -> None:
        """What a client found out that is no lookup's end: an event, counted as such."""
        self._tally.event(reason, message)

    async def finish(self, lookup_id: str, key: str, ending: Ending) -> None:
        """Count a lookup, once. One that the daemon never heard of counts too: it may have been restarted."""
        check_lookup_id(lookup_id)
        if key:
            check_key(key)
        new, lookup = self._open.end(lookup_id)
        if not new:
            return
        if lookup is not None:
            await self._settle(lookup)
            if ending.outcome is Outcome.HIT and lookup.served:
                # What was saved and where it was found is what was served, whatever the client says.
                served = list(lookup.served.values())[-1]
                seconds = served.header.compile_seconds
                ending = replace(ending, compile_seconds=seconds, tier=served.tier)
                way = "path" if served.path else "stream"
                self._tally.served_bytes[way] += served.header.payload_bytes
        if ending.tier not in self._holdings.tier_names:
            ending = replace(ending, tier="")
        holder = lookup.asker.holder if lookup is not None else ""
        self._tally.end(replace(ending, key=key, holder=holder))

    async def sweep(self) -> None:
        """Give up lookups that have been silent for too long. Called now and then by the app."""
        await self._leases.sweep()
        for lookup in self._open.silent(self._patience):
            await self._give_up(lookup)

    def _patience(self, lookup: OpenLookup) -> float:
        if lookup.lease_id or lookup.lost:
            return min(self._config.lookup_seconds, SILENT_LEASES * self._config.lease_seconds)
        return self._config.lookup_seconds

    async def _give_up(self, lookup: OpenLookup) -> None:
        new, _ = self._open.end(lookup.asker.lookup_id)
        if not new:
            return
        await self._settle(lookup)
        self._tally.event(
            Reason.LEASE_LOST.value, f"no word from {lookup.asker.holder} about {lookup.key[:16]}"
        )
        ending = Ending(
            Outcome.ERROR, Reason.LEASE_LOST, key=lookup.key, holder=lookup.asker.holder
        )
        self._tally.end(ending)

    async def _enter(self, asker: Asker) -> OpenLookup:
        lookup = self._open.enter(asker)
        silent = self._open.overflow()
        if silent is not None:
            await self._give_up(silent)
        return lookup

    async def _settle(self, lookup: OpenLookup) -> None:
        for digest in tuple(lookup.pins):
            self._resolver.unpin(lookup, digest)
        if lookup.lease_id:
            await self.release(lookup.lease_id)

    # --- looking without taking ----------------------------------------------------------------

    async def batch(
        self, keys: Iterable[str], cpu_features: frozenset[str], *, planned: bool = False
    ) -> list[KeyAnswer]:
        """The state of each key, in order. Takes no lease. `planned`: a plan names them all."""
        asked = list(keys)
        if len(asked) > MAX_BATCH:
            raise InvalidRequest(f"a batch holds at most {MAX_BATCH} keys, this one {len(asked)}")
        for key in asked:
            check_key(key)
        turns = asyncio.Semaphore(BATCH_AT_ONCE)

        async def state(key: str) -> KeyAnswer:
            async with turns:
                return await self._state(key, cpu_features, planned)

        return list(await asyncio.gather(*map(state, asked)))

    async def _state(self, key: str, cpu_features: frozenset[str], planned: bool) -> KeyAnswer:
        header = choose(await self._holdings.find(key), cpu_features)
        if header is not None:
            if planned:
                await self._holdings.share(header)
            return KeyAnswer(key, KeyState.PRESENT, header.digest, header.compile_seconds)
        if self._negatives.get(key) is not None:
            return KeyAnswer(key, KeyState.NEGATIVE)
        if await self._board.current(key) is not None:
            return KeyAnswer(key, KeyState.LEASED)
        return KeyAnswer(key, KeyState.ABSENT)

    async def record(self, key: str) -> KeyRecord | None:
        """Of an artifact that is stored, else of a lookup that is remembered."""
        check_key(key)
        return await self._holdings.record(key) or self.programs.record(key)

    @property
    def negatives(self) -> int:
        return len(self._negatives)

    def forget_negatives(self, keys: Sequence[str]) -> int:
        """Negative entries of these keys, of all where none is named; how many there were."""
        return self._negatives.forget_many(keys)

    def purged(self, key: str) -> None:
        self._memory.replaced_on_purpose(key)
