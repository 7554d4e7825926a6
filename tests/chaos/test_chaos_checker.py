"""The checker catches what it is there to catch: a hand-made log for each promise broken, beside one that keeps all.

`Story` writes what processes would have logged; each test tells one and says what must be found.
"""

from __future__ import annotations

from typing import Any

import chaos_checker
import chaos_history
import pytest
from chaos_log import Event

KEY, OTHER = "cs1-" + "a" * 64, "cs1-" + "b" * 64
HIT, MISS = 1, 2  # as Finish says it


class Story:
    """A log, told in order. Clients `1.1`, `2.1` and `3.1` are of the daemons of their numbers."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.asks: dict[str, int] = {}
        self.settled_at = 100.0
        self.say(0.0, "harness", "begun", seed=0, seconds=60.0)
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
        """The violations. `bye`: every client that isn't said to be gone comes to its end."""
        ended: dict[str, int] = {}
        for event in self.events:
            if event.what == "ended":
                ended[event.who] = ended.get(event.who, 0) + 1
        for number in (1, 2, 3) if bye else ():
            who = f"{number}.1"
            count = {"asked": self.asks.get(who, 0), "ended": ended.get(who, 0)}
            self.say(90.0, who, "bye", **count, hook=0.0, lost=0.0, dropped=0)
        events = sorted(self.events, key=lambda event: event.at)
        return chaos_checker.check(chaos_history.read(events)).violations


@pytest.fixture
def story() -> Story:
    return Story()


def only(violations: list[str], law: str) -> None:
    """Something was found, and nothing of another kind."""
    assert violations and all(words.startswith(f"{law}:") for words in violations), violations


def test_a_run_that_keeps_its_promises(story: Story) -> None:
    story.make(10.0, "1.1")
    story.load(12.0, "2.1", "1.1/1")
    story.settle()
    assert story.verdict() == []


# --- I2 ------------------------------------------------------------------------------------------


def test_two_digests_at_the_end(story: Story) -> None:
    story.make(10.0, "1.1")
    story.settle(_2="of somebody")
    only(story.verdict(), "I2")


def test_what_was_acknowledged_while_the_bucket_was_well_is_replaced(story: Story) -> None:
    story.make(10.0, "1.1")
    story.settle(all="of somebody")
    only(story.verdict(), "I2")


def test_what_was_acknowledged_without_the_bucket_may_be_replaced(story: Story) -> None:
    story.fault(9.0, 14.0, "gcs", "kill")
    story.make(10.0, "1.1")
    story.settle(all="of somebody")
    assert story.verdict() == []


# --- I3, I4 --------------------------------------------------------------------------------------


def test_bytes_of_another_key(story: Story) -> None:
    story.make(10.0, "1.1")
    story.load(12.0, "2.1", "1.1/1", named=OTHER)
    story.settle()
    only(story.verdict(), "I3")


def test_bytes_that_nobody_compiled(story: Story) -> None:
    story.make(10.0, "1.1")
    story.load(12.0, "2.1", "9.9/9")
    story.settle()
    only(story.verdict(), "I3")


def test_bytes_that_nobody_sent(story: Story) -> None:
    story.ask(10.0, "1.1")
    story.compile(10.1, "1.1")
    story.load(12.0, "2.1", "1.1/1")
    only(story.verdict(), "I4")


def test_one_daemon_has_lost_it(story: Story) -> None:
    story.make(10.0, "1.1")
    story.settle(_3="")
    only(story.verdict(), "I4")


def test_everybody_has_lost_it(story: Story) -> None:
    story.make(10.0, "1.1")
    story.settle(all="")
    only(story.verdict(), "I4")


def test_a_reader_has_to_compile_at_the_end(story: Story) -> None:
    story.make(10.0, "1.1")
    story.settle()
    story.ask(101.0, "2.1", "lease")
    story.compile(101.1, "2.1")
    found = story.verdict()
    assert any(words.startswith("I4:") for words in found), found


# --- I5 ------------------------------------------------------------------------------------------


def test_a_call_that_raises(story: Story) -> None:
    story.ask(10.0, "1.1")
    story.say(10.1, "1.1", "failed", ask=1, key=KEY, error="KeyError()")
    found = story.verdict()
    assert any(words.startswith("I5:") for words in found), found


def test_a_lookup_that_takes_for_ever(story: Story) -> None:
    story.ask(10.0, "1.1", "wait")
    story.end(80.0, "1.1", "hit", "waited")
    only(story.verdict(), "I5")


def test_a_client_that_was_asleep_took_no_longer(story: Story) -> None:
    story.fault(11.0, 79.0, "client:1", "freeze", client="1.1")
    story.ask(10.0, "1.1", "wait")
    story.end(80.0, "1.1", "hit", "waited")
    assert story.verdict() == []


@pytest.mark.parametrize("client", ["", "2.1"])
def test_a_client_that_vanishes(story: Story, client: str) -> None:
    """Unless it was that one that was killed."""
    story.fault(10.0, 11.0, "client:2", "kill", client=client)
    for who in ("1.1", "3.1"):
        story.say(90.0, who, "bye", asked=0, ended=0, hook=0.0, lost=0.0, dropped=0)
    found = story.verdict(bye=False)
    assert (found == []) == bool(client), found


def test_a_client_that_ends_badly(story: Story) -> None:
    story.say(91.0, "harness", "client-gone", client="1.1", code=-11)
    only(story.verdict(), "I5")


def test_a_daemon_that_does_not_end(story: Story) -> None:
    story.say(50.0, "harness", "stuck", daemon="daemon:1")
    only(story.verdict(), "I5")


# --- I6 ------------------------------------------------------------------------------------------


def test_two_leases_at_once(story: Story) -> None:
    story.make(10.0, "1.1")
    story.make(10.2, "2.1", digest="of 1.1/1")
    story.settle()
    only(story.verdict(), "I6")


def test_redis_was_away_explains_leases_at_two_daemons(story: Story) -> None:
    story.fault(9.0, 11.0, "redis", "kill")
    story.make(10.0, "1.1")
    story.make(10.2, "2.1", digest="of 1.1/1")
    story.settle()
    assert story.verdict() == []


def test_redis_was_away_explains_no_leases_at_one_daemon(story: Story) -> None:
    story.say(0.0, "4.1", "started", daemon="daemon:1")
    story.say(90.0, "4.1", "bye", asked=1, ended=1, hook=0.0, lost=0.0, dropped=0)
    story.fault(9.0, 11.0, "redis", "kill")
    story.make(10.0, "1.1")
    story.make(10.2, "4.1", digest="of 1.1/1")
    story.settle()
    only(story.verdict(), "I6")


def test_another_daemons_link_explains_nothing(story: Story) -> None:
    story.fault(9.0, 11.0, "redis-link:3", "refuse")
    story.make(10.0, "1.1")
    story.make(10.2, "2.1", digest="of 1.1/1")
    story.settle()
    only(story.verdict(), "I6")


def test_a_store_that_was_slow_explains_nothing(story: Story) -> None:
    for target in ("redis-link:1", "redis-link:2", "gcs-link:1"):
        story.fault(9.0, 11.0, target, "slow")
    story.make(10.0, "1.1")
    story.make(10.2, "2.1", digest="of 1.1/1")
    story.settle()
    only(story.verdict(), "I6")


def test_a_fault_that_is_long_over_explains_nothing(story: Story) -> None:
    story.fault(1.0, 2.0, "redis", "kill")
    story.make(10.0, "1.1")
    story.make(10.2, "2.1", digest="of 1.1/1")
    story.settle()
    only(story.verdict(), "I6")


@pytest.mark.parametrize(
    ("target", "kind", "client"), [("client:1", "freeze", "1.1"), ("daemon:1", "freeze", "")]
)
def test_a_frozen_holder_is_taken_over(story: Story, target: str, kind: str, client: str) -> None:
    story.ask(10.0, "1.1")
    story.fault(10.2, 16.0, target, kind, client=client)
    story.compile(10.1, "1.1")
    story.make(13.5, "2.1")
    story.publish(16.1, "1.1", digest="of 2.1/1")
    story.settle(all="of 2.1/1")
    assert story.verdict() == []


def test_a_live_holder_is_not_robbed(story: Story) -> None:
    story.ask(10.0, "1.1")
    story.fault(10.2, 16.0, "client:3", "freeze", client="3.1")
    story.compile(10.1, "1.1")
    story.make(13.5, "2.1")
    story.publish(16.1, "1.1", digest="of 2.1/1")
    story.settle(all="of 2.1/1")
    only(story.verdict(), "I6")


@pytest.mark.parametrize(
    ("faults", "explained"),
    [((), False), (("redis",), False), (("gcs",), False), (("redis", "gcs"), True)],
)
def test_what_another_daemon_has_is_found_unless_both_stores_were_away(
    story: Story, faults: tuple[str, ...], explained: bool
) -> None:
    story.make(10.0, "1.1")
    for target in faults:
        story.fault(10.4, 12.0, target, "kill")
    story.make(12.5, "2.1", digest="of 1.1/1")
    story.settle()
    assert (story.verdict() == []) == explained


def test_nothing_explains_a_compile_of_what_its_own_daemon_has(story: Story) -> None:
    for target in ("redis", "gcs", "daemon:1"):
        story.fault(11.0, 12.0, target, "kill")
    story.make(10.0, "1.1")
    story.make(12.5, "1.1", digest="of 1.1/1")
    story.settle()
    only(story.verdict(), "I6")


@pytest.mark.parametrize("target", ["daemon:2", "daemon:1", ""])
def test_a_client_that_gave_its_daemon_up(story: Story, target: str) -> None:
    """Only a fault of that very daemon explains it."""
    story.make(10.0, "1.1")
    if target:
        story.fault(12.0, 14.0, target, "kill")
    story.ask(12.5, "2.1", "")
    story.down(12.5, "2.1")
    story.compile(12.6, "2.1", "error", "daemon-absent")
    story.settle()
    assert (story.verdict() == []) == (target == "daemon:2")


def test_a_client_that_gives_up_waiting(story: Story) -> None:
    story.make(10.0, "1.1")
    story.ask(10.2, "2.1", "wait")
    story.compile(10.4, "2.1", "timeout", "deadline")
    story.settle()
    only(story.verdict(), "I6")


# --- I8 ------------------------------------------------------------------------------------------


def counting(story: Story, *, acknowledged: bool = True) -> None:
    story.make(10.0, "1.1")
    story.say(11.0, "1.1", "counting", lookup="1.1/1", outcome=MISS)
    if acknowledged:
        story.say(11.1, "1.1", "counted", lookup="1.1/1", outcome=MISS)
    story.settle()


def stats(story: Story, **counts: int) -> None:
    numbers = {"daemon": "daemon:1", "pid": 1, "given_up": 0}
    story.say(95.0, "harness", "stats", counts=counts, **numbers)


@pytest.mark.parametrize(("count", "fine"), [(0, False), (1, True), (2, False)])
def test_a_daemon_counts_each_lookup_once(story: Story, count: int, fine: bool) -> None:
    counting(story)
    stats(story, miss=count)
    assert (story.verdict() == []) == fine


@pytest.mark.parametrize(("count", "fine"), [(0, True), (1, True), (2, False)])
def test_a_lost_reply_may_have_been_counted(story: Story, count: int, fine: bool) -> None:
    counting(story, acknowledged=False)
    stats(story, miss=count)
    assert (story.verdict() == []) == fine


def test_a_lookup_counted_under_another_outcome(story: Story) -> None:
    counting(story)
    stats(story, hit=1)
    only(story.verdict(), "I8")


def test_a_client_that_tells_twice(story: Story) -> None:
    counting(story)
    story.say(12.0, "1.1", "counting", lookup="1.1/1", outcome=MISS)
    only(story.verdict(), "I8")


def test_a_client_whose_own_count_is_wrong(story: Story) -> None:
    story.make(10.0, "1.1")
    story.say(80.0, "1.1", "bye", asked=1, ended=2, hook=0.0, lost=0.0, dropped=0)
    story.settle()
    only(story.verdict(), "I8")
