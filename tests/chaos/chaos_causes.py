"""Causes: why a key was compiled again, as narrowly as the log allows. None is what no fault explains.

A cause has to have been there at the time and to touch those who took part. That the store with the leases was away
explains compiles at two daemons, never two at one; that only one of both was away explains none of what was
acknowledged, as the other has the artifact too; that a store was slow explains nothing, as it answers within its
deadline; and no store's trouble explains that a client gives its daemon up, which is alive and says so. A process that
the machine kept waiting is as one that was frozen, and is called `starved`: that is no fault of ours, and no promise.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaos_history import MACHINES, Compile, Fault, History

NOTICED_SECONDS = 1.5  # after a fault: until its last effects on a call under way are over
BACK_SECONDS = 15.0  # until a client looks again whether its daemon is back: it backs off too
BOARD_SECONDS = 5.0  # until a Redis that is back is asked for leases again: a probe's longest pause and its own time
# Until what a store could not take is put there again, and its breaker lets callers through: both back off with the
# length of the fault.
SETTLE_SECONDS, SETTLE_FACTOR = 10.0, 2.0


def of(history: History, one: Compile, before: list[Compile]) -> str | None:
    """In a few words; None: no fault explains it.

    Args:
        before: the compiles of the same key that had begun by then.
    """
    frozen = history.faults_of_client(one.who, one.sent, one.begin)
    if frozen:
        return f"it was asleep: {_named(frozen[0])}"
    if not one.leased:
        return fallback(history, one)
    acked = [other for other in before if other.published < one.sent]
    if any(other.daemon == one.daemon and not other.adopted for other in acked):
        return None  # it lies on that daemon's own disk
    if acked:
        return _apart(history, acked, one)
    causes = [_not_held_up(history, one, other) for other in before]
    return None if None in causes else causes[-1]


def fallback(history: History, one: Compile) -> str | None:
    """Why a client compiled without a lease."""
    daemon = one.daemon
    if one.answer == "refused" or one.reason in ("tier-down", "breaker-open"):
        stores = _places("redis", daemon) + _places("gcs", daemon)
        found = troubles(history, stores, one.asked, one.begin)
        return f"a store away: {_named(found[0])}" if found else None
    if one.reason == "version":  # the daemon doesn't know the lookup any more
        found = history.faults_of([daemon], one.asked - NOTICED_SECONDS, one.begin)
        return f"forgotten by its daemon: {_named(found[0])}" if found else None
    if one.reason not in ("daemon-absent", "deadline"):
        return None
    at = None  # since when it doesn't ask: it says so again and again
    for event in history.of("down", "up"):
        if event.who == one.who and event.at <= one.begin:
            at = None if event.what == "up" else at or event.at
    if at is None:
        return None
    begin = min(at, one.asked) - NOTICED_SECONDS
    found = history.faults_of([daemon], begin, at)
    found += history.faults_of_client(one.who, begin, at)
    until = history.faults_of([daemon], begin, one.begin)
    until += history.faults_of_client(one.who, begin, one.begin)
    back = all(fault.end + BACK_SECONDS < one.asked for fault in until)
    return f"without its daemon: {_named(found[0])}" if found and not back else None


def _apart(history: History, acked: list[Compile], one: Compile) -> str | None:
    """It was acknowledged by another daemon, and this one could not find it: neither in Redis nor in the bucket."""
    found: list[Fault] = []
    for other in acked:
        since = other.end - NOTICED_SECONDS
        daemons = (other.daemon, one.daemon)
        redis = troubles(history, _places("redis", *daemons), since, one.answered)
        bucket = troubles(history, _places("gcs", *daemons), since, one.answered)
        if not redis or not bucket:
            return None
        found = [redis[0], bucket[0]]
    return f"published apart: {_named(found[0])} and {_named(found[1])}"


def _not_held_up(history: History, one: Compile, other: Compile) -> str | None:
    """Why `other`, which had begun and was not published yet, didn't keep `one` from its lease."""
    if not other.leased:
        cause = fallback(history, other)
        return None if cause is None else f"beside a fallback: {cause}"
    # From the call that was answered with the lease: what is noticed late counts too.
    begin, end = other.sent, one.answered
    found = history.faults_of_client(other.who, begin, end)
    if found:
        return f"after its holder: {_named(found[0])}"
    found = history.faults_of([other.daemon], begin - NOTICED_SECONDS, end)
    if found:
        return f"after its holder's daemon: {_named(found[0])}"
    if other.daemon == one.daemon:
        return None
    board = _places(history.leases, other.daemon, one.daemon)
    if history.leases == "redis":
        found = _while(history, board, begin - BOARD_SECONDS, end)
    else:  # asked again by a probe that backs off, as the bucket's own is
        found = troubles(history, board, begin, end)
    if (
        not found
    ):  # a call that was under way when its daemon fell asleep looks like a silent board to it
        asleep = history.faults_of([one.daemon], begin - BOARD_SECONDS, end)
        found = [fault for fault in asleep if fault.kind in ("freeze", *MACHINES)]
    return f"leases apart: {_named(found[0])}" if found else None


def unrewritten(history: History, who: str, begin: float, end: float) -> str | None:
    """Why a fragment that nobody reads was left where it is."""
    found = history.faults_of_client(who, begin, end)
    found += history.faults_of([history.daemon_of[who]], begin - NOTICED_SECONDS, end)
    return _named(found[0]) if found else None


def bucket_troubles(history: History, daemon: str, begin: float, end: float) -> list[Fault]:
    """What kept that daemon from putting something into the bucket."""
    found = troubles(history, _places("gcs", daemon), begin, end)
    return found + history.faults_of([daemon], begin, end)


def troubles(history: History, targets: Iterable[str], begin: float, end: float) -> list[Fault]:
    """Faults of stores, with the time that it takes until they are used again; the latest first."""
    found = [
        fault
        for fault in _while(history, targets, 0.0, end)
        if fault.end + SETTLE_SECONDS + SETTLE_FACTOR * (fault.end - fault.begin) >= begin
    ]
    return found


def _while(history: History, targets: Iterable[str], begin: float, end: float) -> list[Fault]:
    """Faults that were there; the latest first."""
    found = [fault for fault in history.faults_of(targets, begin, end) if fault.kind != "slow"]
    return sorted(found, key=lambda fault: -fault.begin)


def _places(store: str, *daemons: str) -> tuple[str, ...]:
    """Where a fault keeps those daemons from that store."""
    return (store, *(f"{store}-link:{daemon.partition(':')[2]}" for daemon in daemons))


def _named(fault: Fault) -> str:
    return f"{fault.target.partition(':')[0]} {fault.kind}"
