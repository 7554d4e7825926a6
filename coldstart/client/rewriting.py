"""Rewriting: what the daemon says may change about a program's dead values, before the program is keyed.

The daemon is asked by raw digest first; it remembers rewrites under it. Only a program that it has not seen costs a
descriptor. Whatever it answers, the key is made here, from the rewritten module itself, so a wrong memory can cost a
miss and never a wrong hit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from coldstart import wire
from coldstart.client import jax_module
from coldstart.client.identify import Identity, identify, raw_digest
from coldstart.client.jax_internals import CompileRequest
from coldstart.client.lookup import Lookup
from coldstart.errors import InvalidDescriptor
from coldstart.rpc.v1 import cache_pb2 as pb

log = logging.getLogger("coldstart")

MAX_REMEMBERED = 10_000  # programs of this process whose rewritten module did not compile

Ask = Callable[[pb.LookupRequest], pb.LookupReply]


class Rewriting:
    """One process's dialogue about rewrites. Thread-safe."""

    def __init__(self, rules_off: tuple[str, ...]) -> None:
        self._rules_off = rules_off
        self._lock = threading.Lock()
        self._off: set[str] = set()  # exact keys

    def possible(self, identity: Identity, request: CompileRequest, mode: wire.Mode) -> bool:
        """Could any rule find something? Programs of several processes are never rewritten (I9)."""
        return (
            mode is wire.Mode.CANONICAL
            and not identity.multi_process
            and identity.key not in self._off
            and jax_module.may_rewrite(request.computation)
        )

    def seek(
        self,
        lookup: Lookup,
        request: CompileRequest,
        ask: Ask,
        question: Callable[..., pb.LookupRequest],
    ) -> Identity:
        """The identity to go on with: of the rewritten module, or the exact one where nothing may change."""
        exact = lookup.identity
        reply = ask(question(raw_digest=raw_digest(request, exact, self._rules_off)))
        if reply.WhichOneof("answer") == "need_descriptor":
            try:
                descriptor = jax_module.describe(request.computation)
            except InvalidDescriptor as exc:
                log.info("%s is not rewritten: %s", request.module_name, exc)
                return exact
            reply = ask(question(descriptor=descriptor))
        if reply.WhichOneof("answer") != "rewrites" or not reply.rewrites.rewrites:
            return exact
        # Rules don't see each other's edits, so those of a rule that is off here can simply be left out.
        rewrites = [
            wire.rewrite_from_pb(r)
            for r in reply.rewrites.rewrites
            if r.rule not in self._rules_off
        ]
        if not rewrites:
            return exact
        try:
            return identify(request, rewrites=rewrites, rules_off=self._rules_off)
        except InvalidDescriptor as exc:  # the daemon's memory doesn't fit this module
            log.warning("%s: rewrites refused: %s", request.module_name, exc)
            self.forget(exact)
            return exact

    def forget(self, exact: Identity) -> None:
        """No rewrites for this program any more: its rewritten module didn't fit or didn't compile."""
        with self._lock:
            if len(self._off) < MAX_REMEMBERED:
                self._off.add(exact.key)
