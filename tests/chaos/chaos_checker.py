"""Checker: whether a run kept the promises, by everything that was seen. Pure.

I1  who asks by raw digest is told the key and the record of its own program, or nothing; so are its rewrites
I2  from some point on every reader gets one digest; one that was acknowledged while the bucket was well is final
I3  what is loaded is, to the byte, what somebody compiled under that key
I4  nothing that was acknowledged is lost: at the end each daemon has it
I5  no client call failed, none went on for ever, every process ended by itself or was killed by us
I6  a second compile of a key has a cause, which chaos_causes.py names; else it is a violation
I8  each lookup is counted once: here, and by the daemon
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

import chaos_causes
from chaos_history import MACHINES, NEVER, Ack, History
from chaos_log import Event

MOST_ASK_SECONDS = 45.0  # for one lookup, its own compile and being frozen aside
OUTCOMES = ("hit", "miss", "error", "timeout", "refused")


@dataclass
class Verdict:
    """What was found."""

    violations: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.figures.items()]
        return "\n".join([*lines, *(f"VIOLATION {words}" for words in self.violations)])


def check(history: History) -> Verdict:
    """All of it."""
    verdict = Verdict()
    finals = one_digest(history, verdict)
    own_program(history, verdict)
    right_bytes(history, verdict)
    nothing_lost(history, finals, verdict)
    nobody_failed(history, verdict)
    compiled_once(history, verdict)
    counted_once(history, verdict)
    figures(history, verdict)
    return verdict


def one_digest(history: History, verdict: Verdict) -> dict[str, str]:
    """I2. Returns the digest of each key at the end."""
    finals: dict[str, str] = {}
    for event in history.of("settled"):
        known = finals.setdefault(event.key, event.digest)
        if known != event.digest:
            verdict.violations.append(
                f"I2: {event.key[:12]} is {event.digest[:12]} at {event.daemon}, elsewhere {known[:12]}"
            )
    for key, acks in history.acks.items():
        for ack in acks:
            final = finals.get(key, ack.digest)
            if ack.digest != final and not _bucket_was_away(history, ack):
                verdict.violations.append(
                    f"I2: {key[:12]}: {ack.daemon} acknowledged {ack.digest[:12]} at {ack.at:.3f}, "
                    f"the bucket being well; at the end it is {final[:12]}"
                )
    return finals


def _bucket_was_away(history: History, ack: Ack) -> bool:
    return bool(chaos_causes.bucket_troubles(history, ack.daemon, ack.sending, ack.at))


def own_program(history: History, verdict: Verdict) -> None:
    """I1: by the daemon's word, before the client's own gates."""
    for event in history.of("by-digest"):
        if event.kind == "hit" and (len(set(event.named)) != 1 or event.named[0] not in event.own):
            named = ", ".join(key[:12] for key in event.named)
            verdict.violations.append(
                f"I1: {event.who} asked for {event.key[:12]} by raw digest and was told {named} (reply, header, record)"
            )
    for event in history.of("misfit"):
        verdict.violations.append(
            f"I1: {event.who} asked for {event.key[:12]} and was told to rewrite {event.rewrites}"
        )


def right_bytes(history: History, verdict: Verdict) -> None:
    """I3."""
    made = {one.nonce: one.key for compiles in history.compiles.values() for one in compiles}
    for event in history.of("loaded"):
        if event.named != event.key or made.get(event.nonce) != event.key:
            verdict.violations.append(
                f"I3: {event.who} asked for {event.key[:12]} and loaded {event.named[:12]} by {event.nonce}"
            )
        elif event.nonce not in history.digests:
            verdict.violations.append(
                f"I4: {event.who} loaded {event.nonce}, which nobody had sent"
            )


def nothing_lost(history: History, finals: dict[str, str], verdict: Verdict) -> None:
    """I4: what was acknowledged is there at the end, as bytes of some compile that was acknowledged or adopted."""
    for event in history.of("lost"):
        if event.key in history.acks:
            verdict.violations.append(
                f"I4: {event.key[:12]} was acknowledged, and at the end {event.daemon} says {event.state}"
            )
    for key in history.acks:
        if history.over < NEVER and key not in finals:
            verdict.violations.append(
                f"I4: {key[:12]} was acknowledged, and nobody has it at the end"
            )
    for event in history.of("compiling"):
        if event.at > history.over:
            verdict.violations.append(f"I4: {event.who} had to compile {event.key[:12]} at the end")


def nobody_failed(history: History, verdict: Verdict) -> None:
    """I5."""
    asked: dict[tuple[str, int], Event] = {}
    bye = {event.who for event in history.of("bye")}
    slowest = 0.0
    for event in history.of("asked", "ended", "failed"):
        place = (event.who, event.ask)
        if event.what == "asked":
            asked[place] = event
            continue
        if event.what == "failed":
            verdict.violations.append(f"I5: {event.who} {event.key[:12]}: {event.error}")
        began = asked.pop(place, None)
        if began is None or event.what == "failed":
            continue
        frozen = sum(
            min(fault.end, event.at) - max(fault.begin, began.at)
            for fault in history.faults_of_client(event.who, began.at, event.at)
        )
        took = event.at - began.at - event.compiled - frozen
        slowest = max(slowest, took)
        if took > MOST_ASK_SECONDS:
            verdict.violations.append(f"I5: {event.who} {event.key[:12]}: took {took:.1f} s")
    for event in history.of("stuck"):
        verdict.violations.append(f"I5: {event.daemon} was told to end, and did not")
    for who in history.daemon_of:
        killed = any(fault.kind == "kill" for fault in history.faults_of_client(who, 0.0, NEVER))
        if who not in bye and not killed:
            verdict.violations.append(f"I5: {who} did not come to its end")
        if history.gone.get(who, 0) != 0 and not killed:
            verdict.violations.append(f"I5: {who} ended with {history.gone[who]}")
    verdict.figures["longest lookup, s"] = round(slowest, 2)


def compiled_once(history: History, verdict: Verdict) -> None:
    """I6."""
    causes: Counter[str] = Counter()
    once = 0
    unrewritten(history, causes, verdict)
    for compiles in history.compiles.values():
        once += len(compiles) == 1
        for at, one in enumerate(compiles):
            if at == 0:
                continue
            cause = chaos_causes.of(history, one, compiles[:at])
            if cause is None:
                others = "; ".join(map(str, compiles[:at]))
                verdict.violations.append(f"I6: {one.key[:12]} again: {one}; before: {others}")
            else:
                causes[cause] += 1
    verdict.figures["keys compiled"] = len(history.compiles)
    verdict.figures["keys compiled once"] = once
    verdict.figures["compiles"] = sum(map(len, history.compiles.values()))
    verdict.figures["compiled again"] = dict(causes.most_common())
    machines = sum(n for words, n in causes.items() if words.split()[-1] in MACHINES)
    verdict.figures["of these for want of a core"] = machines


def unrewritten(history: History, causes: Counter[str], verdict: Verdict) -> None:
    """A program that keeps its own offset is one that nobody shares: it takes a cause as a second compile does."""
    asked: dict[tuple[str, int], float] = {}
    recalled: set[tuple[str, int]] = set()
    for event in history.of("asked", "by-digest", "unrewritten"):
        place = (event.who, event.ask)
        if event.what == "asked":
            asked[place] = event.at
        elif event.what == "by-digest":
            if event.kind == "hit":  # of what it came to, by a cause, before
                recalled.add(place)
        elif place not in recalled:
            cause = chaos_causes.unrewritten(history, event.who, asked[place], event.at)
            if cause is None:
                verdict.violations.append(f"I6: {event.who} {event.key[:12]} was not rewritten")
            else:
                causes[f"not rewritten: {cause}"] += 1


def counted_once(history: History, verdict: Verdict) -> None:
    """I8: by each client of its own, and by each daemon process that was asked for its numbers."""
    tried: dict[str, Event] = {}
    for event in history.of("counting"):
        if event.lookup in tried:
            verdict.violations.append(f"I8: {event.who} counted {event.lookup} twice")
        tried[event.lookup] = event
    for event in history.of("bye"):
        if event.asked != event.ended:
            verdict.violations.append(
                f"I8: {event.who} asked {event.asked} times, and {event.ended} lookups ended"
            )
    born = {(event.daemon, event.pid): event.at for event in history.of("daemon-up")}
    for stats in history.of("stats"):
        since = born[stats.daemon, stats.pid]
        _compare(history, stats, since, verdict)


def _compare(history: History, stats: Event, since: float, verdict: Verdict) -> None:
    """At least what it acknowledged; at most that, what may have reached it, and lookups that it gave up itself."""
    sure: Counter[int] = Counter()
    perhaps: Counter[int] = Counter()
    before: dict[str, float] = {}
    for event in history.of("counting", "counted"):
        if history.daemon_of.get(event.who) != stats.daemon or event.at > stats.at:
            continue
        if event.what == "counting":
            before[event.lookup] = event.at
            if event.at >= since - 30.0:  # it may have waited for the daemon to come back
                perhaps[event.outcome] += 1
        elif before[event.lookup] >= since:
            sure[event.outcome] += 1
    for number, outcome in enumerate(OUTCOMES, start=1):
        count = stats.counts.get(outcome, 0)
        given_up = stats.given_up if outcome == "error" else 0
        if not sure[number] <= count <= perhaps[number] + given_up:
            verdict.violations.append(
                f"I8: {stats.daemon} counts {count} x {outcome}; {sure[number]} were acknowledged, "
                f"{perhaps[number]} sent, {given_up} given up by it"
            )


def figures(history: History, verdict: Verdict) -> None:
    """What a run came to."""
    outcomes = Counter(f"{event.outcome} {event.reason}" for event in history.of("ended"))
    faults = Counter(f"{fault.target.partition(':')[0]} {fault.kind}" for fault in history.faults)
    lost = [event.lost for event in history.of("bye")]
    by_digest = Counter(str(event.kind) for event in history.of("by-digest"))
    replaced = sum(len({ack.digest for ack in acks}) > 1 for acks in history.acks.values())
    verdict.figures |= {
        "events": len(history.events),
        "client processes": len(history.daemon_of),
        "lookups": outcomes.total(),
        "outcomes": dict(outcomes.most_common()),
        "asked by raw digest": dict(by_digest.most_common()),
        "faults": dict(faults.most_common()),
        "acknowledged keys": len(history.acks),
        "keys acknowledged under two digests": replaced,
        "seconds lost to daemons, most by one process": round(max(lost, default=0.0), 2),
        "the same, median": round(statistics.median(lost or [0.0]), 2),
        "seconds to settle": [round(e.seconds, 1) for e in history.of("all-settled")],
    }
