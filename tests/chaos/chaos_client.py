"""A client process of the chaos run: the product's Session over gRPC, a compiler that sleeps, and a log.

    python chaos_client.py SETTINGS.json

It asks for keys out of a set that grows with time, new ones first, until its life is over; then it ends as any program
does. With `keys` in its settings it asks for those once, which somebody must have: what it compiles was lost.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import chaos_compiler
from chaos_log import Log
from chaos_programs import CompileRequest, Executable
from chaos_starvation import LOOK_SECONDS, Window, waited_seconds

settings = json.loads(Path(sys.argv[1]).read_text())
log = Log(Path(settings["log"]), settings["who"])
asking: dict[str, Any] = {}  # what is asked for now; one at a time
sent: dict[str, float] = {}  # lookup id -> when the last call about it was begun


def loaded(found: Executable, request: CompileRequest) -> None:
    log("loaded", ask=asking["ask"], key=asking["key"], named=found.key, nonce=found.nonce)


def misfit(request: CompileRequest, rewrites: Any) -> None:
    log("misfit", ask=asking["ask"], key=asking["key"], rewrites=str(rewrites)[:500])


chaos_compiler.install(loaded, misfit)

from coldstart import artifact, wire  # noqa: E402  (after what stands in the place of JAX)
from coldstart.client import client as client_module  # noqa: E402
from coldstart.client import link as link_module  # noqa: E402
from coldstart.client import session as session_module  # noqa: E402
from coldstart.config import ClientSettings  # noqa: E402
from coldstart.identity.key import key_of  # noqa: E402
from coldstart.outcomes import Outcome, Reason  # noqa: E402


class WatchedClient(client_module.CacheClient):
    """Logs what only the wire knows: what was acknowledged."""

    def lookup(self, request: Any, patience: float) -> Any:
        sent[request.lookup_id] = time.monotonic()
        reply = super().lookup(request, patience)
        if request.may_hit:
            self._note_recall(reply)
        return reply

    def _note_recall(self, reply: Any) -> None:
        """What the daemon says that this very program is, before anything of the client's looks at it."""
        facts: dict[str, Any] = {"kind": reply.WhichOneof("answer"), "key": asking["key"]}
        if facts["kind"] == "hit":
            header = artifact.decode_header(reply.hit.header)
            named = [reply.key, header.key, key_of(wire.record_from_pb(reply.hit.record))]
            facts |= {"named": named, "own": asking["keys"]}
        log("by-digest", ask=asking["ask"], **facts)

    def await_(self, request: Any, patience: float) -> Any:
        sent[request.lookup_id] = time.monotonic()
        return super().await_(request, patience)

    def reject(self, request: Any, patience: float) -> Any:
        log("rejected", lookup=request.lookup_id, key=request.key, digest=request.digest)
        sent[request.lookup_id] = time.monotonic()
        return super().reject(request, patience)

    def publish(self, start: Any, payload: Any, idle_seconds: float) -> Any:
        header = artifact.decode_header(start.header)
        about = {"lookup": start.lookup_id, "key": header.key, "mine": header.digest}
        log("sending", **about, nonce=nonces[start.lookup_id], leased=bool(start.lease_id))
        try:
            reply = super().publish(start, payload, idle_seconds)
        except Exception as exc:
            log("unpublished", **about, error=repr(exc))
            raise
        log("published", **about, digest=reply.digest, kept=int(reply.kept_local))
        return reply

    def finish(self, request: Any, seconds: float = 1.0) -> None:
        about = {"lookup": request.lookup_id, "outcome": int(request.outcome)}
        log("counting", **about)
        super().finish(request, seconds)
        log("counted", **about)


class WatchedLink(link_module.Link):
    """Logs when this process gives its daemon up, and when it has it back."""

    def mark_down(self, error: Any, lost_seconds: float) -> None:
        log("down", error=repr(error)[:300], lost=lost_seconds)
        super().mark_down(error, lost_seconds)

    def _connect(self, *, patience: float | None = None) -> Any:
        found = super()._connect(patience=patience)
        log("up")
        return found


class WatchedSession(session_module.Session):
    """Logs how each lookup ended."""

    def _finish(self, lookup: Any, outcome: Outcome, reason: Reason, *, tier: str = "") -> None:
        compiled = lookup.seconds["compile"]
        log(
            "ended",
            ask=asking["ask"],
            lookup=lookup.id,
            key=asking["key"],
            outcome=outcome.value,
            reason=reason.value,
            tier=tier,
            compiled=compiled,
            waited=lookup.seconds["wait"],
        )
        super()._finish(lookup, outcome, reason, tier=tier)

    def _identify(self, lookup: Any, request: Any, **how: Any) -> Any:
        asking["lookup"] = lookup.id
        lookup.answered = lambda answer: log(
            "answered",
            ask=asking["ask"],
            lookup=lookup.id,
            key=asking["key"],
            kind=answer.kind,
            reason=answer.reason.value if answer.reason else "",
            sent=sent[lookup.id],
        )
        found = super()._identify(lookup, request, **how)
        key = lookup.identity.key
        if asking["key"] != key in asking["keys"]:  # it was not rewritten: then it is another one
            log("unrewritten", ask=asking["ask"], key=asking["key"], to=key)
            asking["key"] = key
        return found


link_module.CacheClient = WatchedClient  # type: ignore[misc]
session_module.Link = WatchedLink  # type: ignore[misc]
nonces: dict[str, str] = {}  # lookup id -> of what was compiled for it
dice = random.Random(settings["who"] + str(settings["seed"]))


def compile_it() -> Executable:
    key = asking["key"]
    nonce = f"{settings['who']}/{asking['ask']}"
    nonces[asking["lookup"]] = nonce
    log("compiling", ask=asking["ask"], key=key, nonce=nonce)
    time.sleep(dice.uniform(0.15, 0.9))
    log("compiled", ask=asking["ask"], key=key, nonce=nonce)
    return Executable(key, nonce)


def ask(session: WatchedSession, number: int) -> None:
    request = CompileRequest(number, settings["rank"])
    key = key_of(request.record)
    asking.update(ask=asking.get("ask", 0) + 1, key=key, keys=request.keys)
    log("asked", ask=asking["ask"], key=key)
    try:
        got = session.obtain(
            request, compile_it, planned=True, compile_module=lambda module: compile_it()
        )
    except Exception as exc:
        log("failed", ask=asking["ask"], key=asking["key"], error=repr(exc))
        return
    if got.key != asking["key"]:
        log("failed", ask=asking["ask"], key=asking["key"], error=f"got {got.key}")


def watch_for_stalls() -> None:
    """A machine that doesn't run us is nobody's fault, and may cost a lease."""
    before, window = time.monotonic(), Window()
    while True:
        time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        since = before if now - before > 1.0 else None
        since = window.look(os.getpid(), now, waited_seconds(os.getpid())) or since
        if since is not None:
            log("stalled", since=since)
        before = now


def live(session: WatchedSession) -> None:
    births, began = settings["births"], settings["began"]
    known = 0  # keys that this process has asked for, of those born last
    while time.monotonic() < settings["until"]:
        born = sum(birth <= time.monotonic() - began for birth in births)
        if known == 0:
            known = max(0, born - 1)  # a process that starts late finds most of them made
        if known < born:
            ask(session, known)
            known += 1
        else:
            ask(session, dice.randrange(born))
        time.sleep(dice.uniform(0.02, 0.15))


def main() -> None:
    root = Path(settings["volume_root"]) if settings["volume_root"] else None
    session = WatchedSession(ClientSettings(address=settings["address"], volume_root=root))
    log("started", daemon=settings["daemon"])
    threading.Thread(target=watch_for_stalls, daemon=True).start()
    if settings["keys"] is None:
        live(session)
    else:
        for number in settings["keys"]:
            ask(session, number)
    session.outbox.flush()
    report = session.report()
    log(
        "bye",
        asked=asking.get("ask", 0),
        ended=sum(report.lookups.values()),
        hook=report.hook_seconds,
        lost=report.lost_seconds,
        dropped=session.outbox.dropped,
    )


if __name__ == "__main__":
    main()
