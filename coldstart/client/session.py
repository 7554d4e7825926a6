"""Session: what happens between JAX asking for a compile and JAX getting its executable.

    identify → Lookup ─┬ hit ──→ fetch → check → load                       → Finish(hit)
                       ├ lease → compile under heartbeats → publish later   → Finish(miss)
                       ├ wait ─→ Await … → hit, lease, refused, or give up
                       └ refused → compile                                  → Finish(refused)

Whatever goes wrong on the way ends in an ordinary compile (I5); in strict mode it is raised instead. The caller's
module is never edited: where rewrites apply, a clone is rewritten, hashed and compiled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from coldstart import artifact, wire
from coldstart.artifact import Header
from coldstart.client import host, jax_internals
from coldstart.client.client import CacheClient
from coldstart.client.fallback import Fallback, FromCompiler, of_daemon
from coldstart.client.group_watch import GroupWatch, teller
from coldstart.client.heartbeat import Heartbeat
from coldstart.client.identify import identify, surroundings
from coldstart.client.jax_internals import CompileRequest
from coldstart.client.link import Link
from coldstart.client.loader import BadCopy, DeviceFull, take
from coldstart.client.lookup import Answered, Lookup
from coldstart.client.outbox import Outbox
from coldstart.client.publisher import Publisher, in_words
from coldstart.client.report import Report, Tally
from coldstart.client.rewriting import Rewriting
from coldstart.client.trusting import checker
from coldstart.config import ClientSettings
from coldstart.errors import ArtifactError, ColdstartError
from coldstart.outcomes import TROUBLE, Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

log = logging.getLogger("coldstart")

AWAIT_SECONDS = 0.5  # one slice of a wait; a silent daemon is noticed after this and a call
# Whatever a daemon says, nobody waits for another's compile for longer.
MOST_WAIT_SECONDS = 2 * 3600.0
# An artifact that is known to exist is waited for, for as long as a quarter of its compile, within these.
FETCH_SHARE = 0.25
LEAST_FETCH_SECONDS, MOST_FETCH_SECONDS = 5.0, 120.0
LEAST_HEARTBEAT_SECONDS, MOST_HEARTBEAT_SECONDS = 0.01, 600.0
HEARTBEAT_SECONDS = 5.0  # where a daemon asks for none, or for what makes no sense
MAX_ANSWERS = 8  # of one lookup, rejects included: then compile


class Session:
    """One process's use of one daemon. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        if settings.address is None:
            raise ValueError("a session needs an address")
        self.settings = settings
        self.link = Link(settings.address, holder=host.holder(), volume_root=settings.volume_root)
        self.outbox = Outbox(self.link)
        self.heartbeat = Heartbeat()
        self.rewriting = Rewriting(settings.rules_off)
        self._tally = Tally()
        self.publisher = Publisher(
            self.outbox, self.heartbeat, self._warn, self._tally.add_not_stored
        )
        telling = teller(self._tally, self.outbox, self.link)
        self.group = GroupWatch(telling, strict=settings.strict)
        self._warned = threading.Event()
        self._check = checker(settings, self._warn)

    def report(self) -> Report:
        return self._tally.report(lost_seconds=self.link.lost_seconds)

    def obtain(
        self,
        request: CompileRequest,
        compile: Callable[[], Any],
        *,
        load: bool = True,
        planned: bool = False,
        compile_module: Callable[[Any], Any] | None = None,
        answered: Callable[[Answered], None] | None = None,
    ) -> Any:
        """The executable for `request`: loaded from the cache, or made by `compile`.

        Args:
            compile: an ordinary compile of the request; what it raises goes to the caller as it is.
            load: False for machines that can't load what they compile: a hit then gives `Present`.
            planned: the request is an entry of a plan, stored whatever its size.
            compile_module: a compile of another module with the request's options; without it nothing is rewritten.
            answered: told of every answer of the daemon before it is acted on.

        Raises:
            ColdstartError: in strict mode only, where it would otherwise have compiled.
        """
        lookup = Lookup(request.module_name, request.platform, planned, load, answered=answered)
        try:
            try:
                reply = self._identify(lookup, request, rewriting=compile_module is not None)
            except (Fallback, FromCompiler):
                raise
            except Exception as exc:
                if self.settings.strict:
                    raise
                self._warn(f"{request.module_name} can't be identified: {exc!r}")
                return self._compile(lookup, compile, Outcome.ERROR, Reason.UNSHAREABLE)
            if reply is not None:
                found = self._recall(lookup, request, reply)
                if found is not None:
                    return found
                self._identify(lookup, request, rewriting=compile_module is not None, afresh=True)
            identity = lookup.identity
            if load:
                self.group.note(request, identity)
            if identity.refusal is not None:
                log.info("%s is not shared: %s", request.module_name, identity.refusal_detail)
                return self._compile(lookup, compile, Outcome.REFUSED, identity.refusal)
            if identity.module is not None and compile_module is not None:
                rewritten = partial(compile_module, identity.module)
                return self._ask(lookup, request, self._or_raw(lookup, rewritten, compile))
            return self._ask(lookup, request, compile)
        except Fallback as fallback:
            if self.settings.strict:
                raise fallback.error from fallback.error.__cause__
            self._warn(f"{fallback.error}; compiling without the cache")
            return self._compile(lookup, compile, fallback.outcome, fallback.reason)

    def skip(self, reason: Reason) -> None:
        """Count a compile that was not even looked up."""
        self._tally.add(Outcome.REFUSED, reason)

    # --- recognising ---------------------------------------------------------------------------

    def _identify(
        self, lookup: Lookup, request: CompileRequest, *, rewriting: bool, afresh: bool = False
    ) -> pb.LookupReply | None:
        """Find out what the request is asked for by. Returns the answer where that was a hit already.

        Args:
            rewriting: a rewritten module can be compiled here.
            afresh: what the daemon remembers of the key was of no use.
        """
        began = time.monotonic()
        try:
            around = surroundings(request, rules_off=self.settings.rules_off)
            mode = self._wanted_mode()
            alone = around.refusal is None and not around.multi_process  # several are exact (I9)
            canonical = alone and rewriting and mode is wire.Mode.CANONICAL
            # What is only described can't be loaded here, and whoever observes wants no answer.
            may_hit = alone and lookup.load and not request.compile_only and not afresh
            if canonical or (may_hit and mode is not wire.Mode.OBSERVE):
                lookup.raw_digest = self.rewriting.digest(request, around, canonical=canonical)
            if not lookup.raw_digest:
                lookup.identified = identify(request, around=around)
                return None
            client = of_daemon(self.link.client)
            ask = partial(self._lookup, client)
            lookup.identified, reply = self.rewriting.seek(
                lookup,
                request,
                around,
                ask,
                self._question(lookup),
                canonical=canonical,
                may_hit=may_hit,
            )
            return reply
        finally:
            lookup.seconds["identify"] += time.monotonic() - began

    def _recall(self, lookup: Lookup, request: CompileRequest, reply: pb.LookupReply) -> Any:
        """The executable of a hit by raw digest; None where the copy is bad, or may not be loaded: then ask in full."""
        if self._mode(reply) is wire.Mode.OBSERVE:
            return None
        lookup.tell(reply)
        client = of_daemon(self.link.client)
        try:
            return self._take(lookup, request, client, reply.hit)
        except BadCopy as bad:
            lookup.trouble = bad.reason
            self._reject(lookup, client, reply, bad)
            return None

    def _or_raw(
        self,
        lookup: Lookup,
        rewritten: Callable[[], Any],
        raw: Callable[[], Any],
    ) -> Callable[[], Any]:
        """A compile of the rewritten module; if the compiler refuses that, of the caller's own, once."""

        def compile() -> Any:
            try:
                return rewritten()
            except FromCompiler as refused:
                if not isinstance(refused.error, Exception):
                    raise
                executable = raw()  # what this raises is the caller's
                self._warn(
                    f"{lookup.program_name}: the compiler refuses the rewritten module "
                    f"({in_words(refused.error)[:200]}); compiled as it was, rules off for it"
                )
                self.rewriting.forget(lookup.raw_digest)
                lookup.unpublishable = True
                return executable

        return compile

    def _question(self, lookup: Lookup) -> Callable[..., pb.LookupRequest]:
        return partial(
            lookup.question,
            namespace=self.settings.namespace,
            mode=self._wanted_mode(),
            volume_proof=self.link.volume_proof,
        )

    # --- the lookup ----------------------------------------------------------------------------

    def _ask(self, lookup: Lookup, request: CompileRequest, compile: Callable[[], Any]) -> Any:
        client = of_daemon(self.link.client)
        reply = self._lookup(client, self._question(lookup)())
        for _ in range(MAX_ANSWERS):
            lookup.tell(reply)
            kind = reply.WhichOneof("answer")
            if kind == "hit":
                if self._mode(reply) is wire.Mode.OBSERVE:
                    return self._compile(lookup, compile, Outcome.REFUSED, Reason.MODE_OBSERVE)
                if (
                    request.compile_only and lookup.load
                ):  # described devices: nothing can load it here
                    return self._compile(lookup, compile, Outcome.REFUSED, Reason.UNSHAREABLE)
                try:
                    return self._take(lookup, request, client, reply.hit)
                except BadCopy as bad:
                    lookup.trouble = lookup.trouble or bad.reason
                    reply = self._reject(lookup, client, reply, bad)
            elif kind == "lease":
                return self._lead(lookup, request, compile, client, reply.lease)
            elif kind == "wait":
                waited = self._wait(lookup, client, reply)
                if waited is None:
                    log.info("%s: not waiting any longer", request.module_name)
                    return self._compile(
                        lookup, compile, Outcome.TIMEOUT, Reason.DEADLINE, publish=(client, request)
                    )
                reply = waited
            elif kind == "refused":
                reason = wire.reason_from_pb(reply.refused.reason)
                log.info("%s: refused: %s %s", request.module_name, reason, reply.refused.message)
                outcome = TROUBLE.get(reason, Outcome.REFUSED)
                return self._compile(lookup, compile, outcome, reason)
            else:
                break
        if lookup.trouble is not None:
            return self._compile(lookup, compile, Outcome.ERROR, lookup.trouble)
        return self._compile(lookup, compile, Outcome.ERROR, Reason.VERSION)

    def _wanted_mode(self) -> wire.Mode:
        return wire.Mode(self.settings.mode or "canonical")

    def _mode(self, reply: pb.LookupReply) -> wire.Mode:
        """The lesser of what the fleet allows and what this process wants."""
        order = list(wire.Mode)
        return min(wire.mode_from_pb(reply.mode), self._wanted_mode(), key=order.index)

    def _foreground(self, call: Callable[[], Any]) -> Any:
        """A call on the caller's time. A failure is a fallback; silence counts as time-out."""
        return of_daemon(lambda: self.link.foreground(call))

    def _lookup(self, client: CacheClient, question: pb.LookupRequest) -> pb.LookupReply:
        reply: pb.LookupReply = self._foreground(
            lambda: client.lookup(question, self.link.patience)
        )
        return reply

    def _wait(self, lookup: Lookup, client: CacheClient, reply: pb.LookupReply) -> Any:
        """The reply that ends the wait, or None when waiting longer is worse than compiling."""
        lookup.waited = True
        began = time.monotonic()
        most = min(reply.wait.max_wait_seconds, MOST_WAIT_SECONDS)  # in this order NaN stays NaN
        try:
            while True:
                left = most - (time.monotonic() - began)
                if not left > 0:
                    return None
                slice_seconds = min(AWAIT_SECONDS, left)
                asked = time.monotonic()
                request = pb.AwaitRequest(
                    lookup_id=lookup.id, key=lookup.identity.key, max_wait_seconds=slice_seconds
                )
                answer = self._foreground(partial(client.await_, request, self.link.patience))
                if answer.WhichOneof("answer") != "wait":
                    return answer
                if time.monotonic() - asked < slice_seconds / 2:
                    time.sleep(slice_seconds / 10)  # it doesn't wait, so we do
        finally:
            lookup.seconds["wait"] += time.monotonic() - began

    # --- a hit ---------------------------------------------------------------------------------

    def _take(
        self, lookup: Lookup, request: CompileRequest, client: CacheClient, hit: pb.Hit
    ) -> Any:
        def fetch(wanted: pb.FetchRequest, header: Header) -> bytes:
            # Waiting for it beats compiling up to here.
            worth = header.compile_seconds * FETCH_SHARE
            data: bytes = self._foreground(
                lambda: client.fetch(
                    wanted,
                    self.link.patience,
                    most_bytes=len(header.prefix()) + header.payload_bytes,
                    most_seconds=min(MOST_FETCH_SECONDS, max(LEAST_FETCH_SECONDS, worth)),
                )
            )
            return data

        try:
            found = take(
                lookup, request, hit, root=self.link.volume, fetch=fetch, check=self._check
            )
        except DeviceFull as exc:
            raise Fallback(Outcome.ERROR, Reason.UNSHAREABLE, ColdstartError(str(exc))) from exc
        self._finish(lookup, Outcome.HIT, lookup.hit_reason(hit), tier=hit.tier)
        return found

    def _reject(
        self, lookup: Lookup, client: CacheClient, reply: pb.LookupReply, bad: BadCopy
    ) -> pb.LookupReply:
        self._warn(f"a stored copy of {lookup.program_name} is refused: {bad}")
        try:
            digest = artifact.decode_header(reply.hit.header).digest
        except ArtifactError:
            digest = ""  # the daemon knows which one it offered
        request = pb.RejectRequest(
            lookup_id=lookup.id,
            key=lookup.identity.key,
            digest=digest,
            reason=wire.reason_to_pb(bad.reason),
        )
        answer: pb.LookupReply = self._foreground(
            lambda: client.reject(request, self.link.patience)
        )
        return answer

    # --- a miss --------------------------------------------------------------------------------

    def _lead(
        self,
        lookup: Lookup,
        request: CompileRequest,
        compile: Callable[[], Any],
        client: CacheClient,
        lease: pb.Lease,
    ) -> Any:
        """Compile under the lease and publish."""
        every = self.link.hello.heartbeat_seconds
        if not LEAST_HEARTBEAT_SECONDS <= every <= MOST_HEARTBEAT_SECONDS:  # nor is NaN
            every = HEARTBEAT_SECONDS
        began = time.monotonic()
        try:
            self.heartbeat.start(client, lease.lease_id, every)
            with jax_internals.stock_cache_watch() as from_stock_cache:
                executable = compile()
                stock = from_stock_cache()
        except BaseException as exc:
            error = exc.error if isinstance(exc, FromCompiler) else exc
            if isinstance(error, Exception):
                self.publisher.report_failure(client, lease.lease_id, error)
                self._finish(lookup, Outcome.MISS, lookup.trouble or Reason.COLD)
            else:  # interrupted: nothing was learnt about the program
                self.publisher.release(client, lease.lease_id)
            raise
        lookup.seconds["compile"] = time.monotonic() - began
        reason = lookup.trouble or wire.reason_from_pb(lease.reason)
        missed = reason in (Reason.COLD, Reason.EVICTED)
        outcome = TROUBLE.get(reason, Outcome.MISS if missed else Outcome.ERROR)
        try:
            if stock or lookup.unpublishable:
                # JAX's own cache checks neither digest nor features: good for its owner, not for others.
                # And what was compiled raw is never published under a canonical key.
                self.publisher.release(client, lease.lease_id)
            else:
                self.publisher.publish(lookup, request, executable, client, lease.lease_id)
                self.publisher.describe(lookup, request, client, self._question(lookup))
        except BaseException:
            # Interrupted too: the process may live on, and everybody would wait for us until its end.
            self.publisher.release(client, lease.lease_id)
            raise
        self._finish(lookup, outcome, reason)
        return executable

    def _compile(
        self,
        lookup: Lookup,
        compile: Callable[[], Any],
        outcome: Outcome,
        reason: Reason,
        *,
        publish: tuple[CacheClient, CompileRequest] | None = None,
    ) -> Any:
        """An ordinary compile, counted; published without a lease where `publish` says so."""
        began = time.monotonic()
        try:
            with jax_internals.stock_cache_watch() as from_stock_cache:
                executable = compile()
                stock = from_stock_cache()
        except BaseException:  # it has ended all the same, and every lookup is counted
            self._finish(lookup, outcome, reason)
            raise
        lookup.seconds["compile"] = time.monotonic() - began
        if publish is not None and not stock and not lookup.unpublishable:
            client, request = publish
            self.publisher.publish(lookup, request, executable, client, "")
        self._finish(lookup, outcome, reason)
        return executable

    # --- the end -------------------------------------------------------------------------------

    def _finish(self, lookup: Lookup, outcome: Outcome, reason: Reason, *, tier: str = "") -> None:
        """Count this lookup here at once, and at the daemon when there is time."""
        spent = time.monotonic() - lookup.began
        seconds = lookup.seconds
        self._tally.add(outcome, reason, hook=max(0.0, spent - seconds["compile"]), **seconds)
        key = lookup.identified.key if lookup.identified is not None else "no key"
        log.debug("%s: %s: %s %s", lookup.program_name, key, outcome, reason)
        request = lookup.ending(outcome, reason, tier)
        if reason is Reason.DAEMON_ABSENT:
            return  # nobody to tell

        def tell() -> None:
            self.link.client().finish(request)

        self.outbox.put(f"finish {lookup.program_name}", tell)

    def _warn(self, message: str) -> None:
        """The first trouble of a process is a warning; what follows is for those who look for it."""
        if self._warned.is_set():
            log.info("%s", message)
        else:
            self._warned.set()
            log.warning("%s", message)
