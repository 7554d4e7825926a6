"""Recognition: which key does a program have, in as few steps as can be trusted?

    raw digest → hit               this very program was asked for before and its artifact is here
               → rewrites          known; made on a clone, confirmed one by one
               → need_descriptor   not known: the descriptor goes out and rewrites come back, if a rule may find any
    then the key, made here, from the very module that is compiled

Only a hit by raw digest spares the hash of the normal form. The raw digest covers every byte of the caller's module
(locations aside) and all that the key depends on, and the record that comes with the hit must hold this process's own
options, target, flags and callbacks; before anything is compiled, the program is identified in full.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from coldstart import artifact, wire
from coldstart.client import jax_module
from coldstart.client.identify import Identity, Surroundings, identify, raw_digest, recalled
from coldstart.client.jax_internals import CompileRequest
from coldstart.client.lookup import Lookup
from coldstart.errors import ColdstartError, InvalidDescriptor
from coldstart.identity.descriptor import GraphDescriptor
from coldstart.rpc.v1 import cache_pb2 as pb

log = logging.getLogger("coldstart")

MAX_REMEMBERED = 10_000  # programs of this process whose rewritten module did not compile

Ask = Callable[[pb.LookupRequest], pb.LookupReply]
Question = Callable[..., pb.LookupRequest]


class Rewriting:
    """One process's dialogue about rewrites. Thread-safe."""

    def __init__(self, rules_off: tuple[str, ...]) -> None:
        self._rules_off = rules_off
        self._lock = threading.Lock()
        self._off: set[str] = set()  # raw digests

    def digest(self, request: CompileRequest, around: Surroundings, *, canonical: bool) -> str:
        """What to ask by; "" where the program is to be asked for by its record only."""
        raw = raw_digest(request, around, canonical=canonical)
        return "" if raw in self._off else raw

    def seek(
        self,
        lookup: Lookup,
        request: CompileRequest,
        around: Surroundings,
        ask: Ask,
        question: Question,
        *,
        canonical: bool,
        may_hit: bool,
    ) -> tuple[Identity, pb.LookupReply | None]:
        """The identity to go on with, and the answer where it was a hit by raw digest."""
        reply = ask(question(raw_digest=lookup.raw_digest, may_hit=may_hit))
        kind = reply.WhichOneof("answer")
        if kind == "hit":
            identity = _recall(request, around, reply)
            if identity is not None:
                return identity, reply
            log.info("%s: what the daemon remembers of it is another program", request.module_name)
            reply = ask(question(raw_digest=lookup.raw_digest))
            kind = reply.WhichOneof("answer")
        lookup.described = kind != "need_descriptor" or not canonical
        if not lookup.described and jax_module.may_rewrite(request.computation):
            descriptor = described(request)
            lookup.described = True  # or it can't be
            if descriptor is not None:
                reply = ask(question(descriptor=descriptor))
                kind = reply.WhichOneof("answer")
        # Rules don't see each other's edits, so those of a rule that is off here can simply be left out.
        rewrites = [
            wire.rewrite_from_pb(r)
            for r in (reply.rewrites.rewrites if kind == "rewrites" and canonical else ())
            if r.rule not in self._rules_off
        ]
        try:
            return identify(request, rewrites=rewrites, around=around), None
        except InvalidDescriptor as exc:  # the daemon's memory doesn't fit this module
            log.warning("%s: rewrites refused: %s", request.module_name, exc)
            self.forget(lookup.raw_digest)
            return identify(request, around=around), None

    def forget(self, raw: str) -> None:
        """No rewrites for this program any more: its rewritten module didn't fit or didn't compile."""
        with self._lock:
            if raw and len(self._off) < MAX_REMEMBERED:
                self._off.add(raw)


def described(request: CompileRequest) -> GraphDescriptor | None:
    """The request's descriptor; None: descriptors can't say this module."""
    try:
        return jax_module.describe(request.computation)
    except InvalidDescriptor as exc:
        log.info("%s is not described: %s", request.module_name, exc)
        return None


def _recall(
    request: CompileRequest, around: Surroundings, reply: pb.LookupReply
) -> Identity | None:
    """What the answer says that this program is; None where its parts don't fit each other or this process."""
    try:
        identity = recalled(request, around, wire.record_from_pb(reply.hit.record))
        header = artifact.decode_header(reply.hit.header)
    except ColdstartError:
        return None
    if identity is None or not reply.key == identity.key == header.key:
        return None
    return identity if header.module_digest == identity.record.module_digest else None
