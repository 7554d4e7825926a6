"""Story: a log of a chaos run made by hand, as its processes would have written it; for tests of the checker."""

from __future__ import annotations

from typing import Any

import chaos_checker
import chaos_history
from chaos_log import Event

KEY, OTHER = "cs1-" + "a" * 64, "cs1-" + "b" * 64
HIT, MISS = 1, 2  # as Finish says it


class Story:
    """A log, told in order. Clients `1.1`, `2.1` and `3.1` are of the daemons of their numbers."""

    def __init__(self, leases: str = "redis") -> None:
        self.events: list[Event] = []
        self.asks: dict[str, int] = {}
        self.settled_at = 100.0
        self.say(0.0, "harness", "begun", seed=0, seconds=60.0, leases=leases)
        for number in (1, 2, 3):
            self.say(0.0, "harness", "daemon-up", daemon=f"daemon:{number}", pid=number)
            self.say(0.0, f"{number}.1", "started", daemon=f"daemon:{number}")

    def say(self, at: float, who: str, what: str, **facts: Any) -> None:
        self.events.append(Event(at, who, what, facts))

    def ask(self, at: float, who: str, kind: str = "lease", key: str = KEY, **more: Any) -> None:
        """Asked and answered; `kind=""`: never answered."""
        self.asks[who] = ask = self.asks.get(who, 0) + 1
        self.say(at, who, "asked", ask=ask, key=key)
        if kind:
            facts = {"kind": kind, "reason": "", "sent": at} | more
            self.say(at + 0.01, who, "answered", ask=ask, key=key, lookup=self.lookup(who), **facts)

    def lookup(self, who: str) -> str:
        return f"{who}/{self.asks[who]}"

    def compile(
        self, at: float, who: str, outcome: str = "miss", reason: str = "cold", key: str = KEY
    ) -> None:
        """For half a second."""
        about = {"ask": self.asks[who], "key": key, "nonce": self.lookup(who)}
        self.say(at, who, "compiling", **about)
        self.say(at + 0.5, who, "compiled", **about)
        self.end(at + 0.5, who, outcome, reason, key=key, compiled=0.5)

    def end(self, at: float, who: str, outcome: str, reason: str, **more: Any) -> None:
        facts = {"key": KEY, "compiled": 0.0, "waited": 0.0, "tier": ""} | more
        about = {"ask": self.asks[who], "lookup": self.lookup(who)}
        self.say(at, who, "ended", outcome=outcome, reason=reason, **about, **facts)

    def publish(self, at: float, who: str, digest: str = "", key: str = KEY) -> None:
        """What was compiled for the last ask; `digest`: the authoritative one, where it is another."""
        about = {"lookup": self.lookup(who), "key": key, "mine": f"of {self.lookup(who)}"}
        self.say(at, who, "sending", **about, nonce=self.lookup(who), leased=True)
        self.say(at + 0.1, who, "published", **about, digest=digest or about["mine"], kept=0)

    def load(self, at: float, who: str, nonce: str, named: str = KEY) -> None:
        self.ask(at, who, "hit")
        about = {"ask": self.asks[who], "key": KEY}
        self.say(at + 0.02, who, "loaded", **about, named=named, nonce=nonce)
        self.end(at + 0.03, who, "hit", "ok")

    def make(self, at: float, who: str, digest: str = "") -> None:
        """Lease, compile, publish: what every compile should be."""
        self.ask(at, who)
        self.compile(at + 0.1, who)
        self.publish(at + 0.7, who, digest)

    def fault(self, begin: float, end: float, target: str, kind: str, client: str = "") -> None:
        number = len(self.events)
        facts = {"number": number, "target": target, "kind": kind}
        if client:
            facts["client"] = client
        self.say(begin, "harness", "fault", **facts)
        self.say(end, "harness", "healed", **facts)

    def down(self, at: float, who: str) -> None:
        self.say(at, who, "down", error="", lost=0.0)

    def settle(self, **digests: str) -> None:
        """What the daemons have at the end, one digest for all unless told by number: _2="another"."""
        self.say(self.settled_at - 1, "harness", "over")
        final = digests.pop("all", "of 1.1/1")
        for number in (1, 2, 3):
            digest = digests.get(f"_{number}", final)
            where = {"daemon": f"daemon:{number}", "key": KEY}
            if digest:
                self.say(self.settled_at, "harness", "settled", digest=digest, **where)
            else:
                self.say(self.settled_at, "harness", "lost", state="absent", **where)

    def verdict(self, *, bye: bool = True) -> list[str]:
        """The violations."""
        return self.judged(bye=bye).violations

    def judged(self, *, bye: bool = True) -> chaos_checker.Verdict:
        """`bye`: every client that isn't said to be gone comes to its end."""
        ended: dict[str, int] = {}
        for event in self.events:
            if event.what == "ended":
                ended[event.who] = ended.get(event.who, 0) + 1
        for number in (1, 2, 3) if bye else ():
            who = f"{number}.1"
            count = {"asked": self.asks.get(who, 0), "ended": ended.get(who, 0)}
            self.say(90.0, who, "bye", **count, hook=0.0, lost=0.0, dropped=0)
        events = sorted(self.events, key=lambda event: event.at)
        return chaos_checker.check(chaos_history.read(events))
