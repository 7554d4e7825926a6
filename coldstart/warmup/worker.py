"""A warm-up worker: a process that lowers entries and gets them stored, told what to do line by line.

    in   {"plan": …, "target": …}                first line; the address is in COLDSTART_ADDRESS
         {"do": "lower", "entry": 3}
         {"do": "obtain", "entry": 3, "key": …}  lookup → lease → compile → publish
         end of file                             nothing more: give leases back, go
    out  ready | misuse                          entries and devices; or why this plan and target don't go together
         lowered | unlowered
         waiting                                 somebody else compiles this one: the next can be sent
         compiling, compiled                     under the lease; then the next can be sent while this is published
         settled                                 how an entry ended: compiled, reused, failed, refused, unshareable

An entry is settled as compiled once the daemon has it, so a run that is killed at any line leaves nothing half done:
the next one finds what is stored and compiles the rest. When the parent dies, its end of the pipe closes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from coldstart.client.fallback import FromCompiler
from coldstart.client.lookup import Answered
from coldstart.client.session import Session
from coldstart.config import client_settings
from coldstart.errors import ColdstartError, ConfigError
from coldstart.outcomes import Reason
from coldstart.warmup import compile as compiling
from coldstart.warmup.compile import Lowered, Workshop
from coldstart.warmup.plan import Plan
from coldstart.warmup.targets import parse_target

FLUSH_SECONDS = 600.0  # of publishing one artifact, while the daemon answers
FAREWELL_SECONDS = 5.0
ANSWER_SECONDS = 2.0  # for lookups that are on their way when the end comes

# Refusals that say what a program is; the others say what the service thinks of it now.
_UNSHAREABLE = frozenset(
    (Reason.CALLBACKS, Reason.POINTER, Reason.PGLE, Reason.UNSHAREABLE, Reason.DEVICE_COORDINATES)
)


class Worker:
    """One process's work. Orders come on the main thread; every `obtain` has a thread of its own."""

    def __init__(self, workshop: Workshop, session: Session, channel: Channel) -> None:
        self._workshop = workshop
        self._session = session
        self._say = channel.say
        self._lowered: dict[int, Lowered] = {}
        self._lock = threading.Lock()
        # Under the lock: entry -> lease, until its artifact is stored; entries whose answer is on its way.
        self._leases: dict[int, str] = {}
        self._asking: set[int] = set()

    def lower(self, entry: int) -> None:
        try:
            found = self._lowered[entry] = self._workshop.lower(
                entry, self._session.settings.rules_off
            )
        except Exception as exc:
            self._say("unlowered", entry, message=f"{type(exc).__name__}: {words(exc)}")
            return
        identity = found.identity
        self._say(
            "lowered",
            entry,
            key=identity.key,
            refusal=str(identity.refusal or ""),
            message=identity.refusal_detail,
            module_bytes=found.module_bytes,
            trace_seconds=found.trace_seconds,
            identify_seconds=found.identify_seconds,
        )

    def obtain(self, entry: int, key: str) -> None:
        """Start getting an entry stored; lowers it first where another process had done that."""
        if entry not in self._lowered:
            self.lower(entry)
        lowered = self._lowered.pop(entry, None)
        if lowered is None or lowered.identity.key != key:
            message = "lowering it once more gave another program; something in it is not fixed"
            self._say("settled", entry, outcome="failed", message=message)
            return
        with self._lock:
            self._asking.add(entry)
        threading.Thread(target=self._obtain, args=(entry, lowered), name=f"obtain-{entry}").start()

    def _obtain(self, entry: int, lowered: Lowered) -> None:
        settled = self._settle(entry, lowered)
        with self._lock:
            self._asking.discard(entry)
            self._leases.pop(entry, None)
        self._say("settled", entry, **settled)

    def _settle(self, entry: int, lowered: Lowered) -> dict[str, Any]:
        compiled: list[float] = []
        last = Answered("")

        def answered(answer: Answered) -> None:
            nonlocal last
            last = answer
            with self._lock:
                self._asking.discard(entry)
                if answer.kind == "lease":
                    self._leases[entry] = answer.lease_id
            if answer.kind == "wait":
                self._say("waiting", entry)

        def compile_module(module: Any) -> Any:
            if last.kind == "refused":  # serving would compile; here it is something to report
                raise FromCompiler(_Refused())
            self._say("compiling", entry, lease_id=last.lease_id)
            began = time.monotonic()
            try:
                executable = compiling.compile_module(lowered.request, module)
            except BaseException as exc:
                raise FromCompiler(exc) from exc
            compiled.append(time.monotonic() - began)
            return executable

        try:
            self._session.obtain(
                lowered.request,
                lambda: compile_module(lowered.request.computation),
                load=False,
                planned=True,
                compile_module=compile_module,
                answered=answered,
            )
        except FromCompiler as exc:
            if not isinstance(exc.error, _Refused):
                return {"outcome": "failed", "message": f"the compiler says: {words(exc.error)}"}
            outcome = "unshareable" if last.reason in _UNSHAREABLE else "refused"
            return {"outcome": outcome, "message": f"{last.reason}: {last.message}".rstrip(": ")}
        except ColdstartError as exc:
            return {"outcome": "failed", "message": words(exc)}
        except Exception as exc:
            return {"outcome": "failed", "message": f"{type(exc).__name__}: {words(exc)}"}
        key = last.key or lowered.identity.key
        if not compiled:
            return {"outcome": "reused", "key": key}
        self._say("compiled", entry)
        began = time.monotonic()
        sent = self._session.outbox.flush(FLUSH_SECONDS)
        facts = {
            "key": key,
            "compile_seconds": compiled[0],
            "publish_seconds": time.monotonic() - began,
        }
        if not sent:
            return {"outcome": "failed", "message": "compiled, but not published", **facts}
        return {"outcome": "compiled", **facts}

    def farewell(self) -> None:
        """Publish what is compiled, give the other leases back."""
        self._session.outbox.flush(FAREWELL_SECONDS)
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._asking and time.monotonic() < deadline:
            time.sleep(0.01)  # the answer may be a lease, and nobody would know of it
        with self._lock:
            leases = list(self._leases.values())
        for lease in leases:
            with suppress(ColdstartError):
                self._session.link.client().release(lease)


class _Refused(BaseException):
    """The daemon refuses this program. No Exception: nothing was wrong with a compile."""


class Channel:
    """Lines to the parent. Takes standard output for itself: what programs print goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def say(self, event: str, entry: int | None = None, **facts: Any) -> None:
        line = json.dumps({"event": event, "entry": entry, **facts})
        with self._lock, suppress(BrokenPipeError):  # the parent is gone; end of file says so too
            self._out.write(line + "\n")
            self._out.flush()


def words(exc: BaseException) -> str:
    """A compiler's text in one line."""
    return " ".join(str(exc).split())[:500] or type(exc).__name__


def plan_from(table: dict[str, Any]) -> Plan:
    """A plan that came through JSON."""
    return Plan(
        name=table["name"],
        source=table["source"],
        model=table["model"],
        programs=table["programs"],
        arguments=tuple((name, value) for name, value in table["arguments"]),
        mesh=tuple((axis, size) for axis, size in table["mesh"]),
        buckets=tuple((phase, tuple(sizes)) for phase, sizes in table["buckets"]),
    )


def main() -> None:
    """Run until standard input ends."""
    channel = Channel()
    job = json.loads(sys.stdin.readline())
    try:
        workshop = Workshop(plan_from(job["plan"]), parse_target(job["target"]))
    except ConfigError as exc:
        channel.say("misuse", message=str(exc))
        return
    # Strict: without the daemon nothing would be stored, so nothing is worth compiling.
    settings = client_settings({**os.environ, "COLDSTART_STRICT": "1"})
    worker = Worker(workshop, Session(settings), channel)
    channel.say(
        "ready",
        entries=[[entry.program, entry.bucket] for entry in workshop.entries],
        devices=len(workshop.devices),
    )
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "lower":
            worker.lower(order["entry"])
        else:
            worker.obtain(order["entry"], order["key"])
    worker.farewell()
    sys.stderr.flush()
    os._exit(0)  # a compile that is going on can't be stopped otherwise


if __name__ == "__main__":
    main()
