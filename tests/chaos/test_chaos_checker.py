"""The checker catches what it is there to catch: a hand-made log for each promise broken, beside one that keeps all.

`Story` writes what processes would have logged; each test tells one and says what must be found.
"""

from __future__ import annotations

import pytest
from chaos_story import KEY, MISS, OTHER, Story


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


@pytest.mark.parametrize(("daemon", "kind"), [(2, "freeze"), (2, "restart"), (3, "freeze")])
def test_a_daemon_that_wakes_up_may_not_trust_its_board(
    story: Story, daemon: int, kind: str
) -> None:
    """What it had asked before it fell asleep got no answer in time. Only being asleep explains that."""
    story.fault(5.0, 9.0, f"daemon:{daemon}", kind)
    story.make(10.0, "1.1")
    story.make(10.2, "2.1", digest="of 1.1/1")
    story.settle()
    assert (story.verdict() == []) == (daemon == 2 and kind == "freeze")


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


@pytest.mark.parametrize("away", [True, False])
def test_what_a_daemon_only_adopted_it_has_from_the_stores(story: Story, away: bool) -> None:
    """Its own disk has nothing of it, if nobody asked since."""
    story.make(10.0, "1.1")
    story.fault(10.9, 11.9, "redis", "kill")
    if away:
        story.fault(10.9, 11.9, "gcs", "kill")
    story.make(11.0, "2.1", digest="of 1.1/1")
    story.make(12.5, "2.1", digest="of 1.1/1")
    story.settle()
    assert (story.verdict() == []) == away


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


@pytest.mark.parametrize(("asked", "explained"), [(16.0, True), (28.0, True), (31.0, False)])
def test_a_client_comes_back_to_a_daemon_that_is_back(
    story: Story, asked: float, explained: bool
) -> None:
    """It says with each call that it has none; what counts is when it went, and how long the daemon has been there."""
    story.make(10.0, "1.1")
    story.fault(12.0, 15.0, "daemon:2", "freeze")
    for at in (14.0, 15.5, 20.0, asked - 0.1):
        story.down(at, "2.1")
    story.ask(asked, "2.1", "")
    story.compile(asked, "2.1", "error", "daemon-absent")
    story.settle()
    assert (story.verdict() == []) == explained


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
