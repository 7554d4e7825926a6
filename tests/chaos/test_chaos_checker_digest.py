"""The checker on what is asked by raw digest, on the board in a bucket, and on a machine that has no time."""

from __future__ import annotations

import os
from typing import Any

import pytest
from chaos_programs import CompileRequest, describe, fits
from chaos_starvation import LOOK_SECONDS, SHARE, Window, waited_seconds
from chaos_story import KEY, OTHER, Story

from coldstart.identity import canonical
from coldstart.identity.key import key_of


@pytest.fixture
def story() -> Story:
    return Story()


def recall(story: Story, at: float, who: str, named: list[str], kind: str = "hit") -> None:
    """A question by raw digest for KEY's program, and what the answer named: itself, header, record."""
    facts: dict[str, Any] = {"named": named, "own": [KEY, "cs1-of-it-unrewritten"]}
    story.ask(at, who, "hit")
    about = {"ask": story.asks[who], "key": KEY, "kind": kind}
    story.say(at + 0.005, who, "by-digest", **about, **(facts if kind == "hit" else {}))
    story.end(at + 0.02, who, "hit", "ok")


@pytest.mark.parametrize(
    ("named", "fine"),
    [
        ([KEY] * 3, True),
        (["cs1-of-it-unrewritten"] * 3, True),
        ([OTHER] * 3, False),
        ([KEY, KEY, OTHER], False),
        ([KEY, OTHER, KEY], False),
        ([OTHER, KEY, KEY], False),
    ],
)
def test_a_hit_by_raw_digest_comes_with_the_programs_own_record(
    story: Story, named: list[str], fine: bool
) -> None:
    story.make(10.0, "1.1")
    recall(story, 12.0, "1.1", named)
    story.settle()
    found = story.verdict()
    assert (found == []) == fine and all(words.startswith("I1:") for words in found), found


def test_an_answer_that_is_no_hit_says_nothing(story: Story) -> None:
    story.make(10.0, "1.1")
    recall(story, 12.0, "1.1", [], kind="need_descriptor")
    story.settle()
    assert story.verdict() == []


def test_rewrites_of_another_program(story: Story) -> None:
    story.say(10.0, "1.1", "misfit", ask=1, key=KEY, rewrites="[]")
    (found,) = story.verdict()
    assert found.startswith("I1:")


@pytest.mark.parametrize(
    ("target", "client", "explained"),
    [("", "", False), ("daemon:1", "", True), ("daemon:2", "", False), ("client:1", "1.1", True)],
)
def test_a_fragment_that_is_left_where_it_is_takes_a_cause(
    story: Story, target: str, client: str, explained: bool
) -> None:
    if target:
        story.fault(10.0, 11.0, target, "freeze", client=client)
    story.ask(10.2, "1.1", "")
    story.say(10.3, "1.1", "unrewritten", ask=1, key=KEY, to=OTHER)
    story.compile(10.4, "1.1", "error", "daemon-absent", key=OTHER)
    found = story.verdict()
    assert (found == []) == explained and all(words.startswith("I6:") for words in found), found


def test_what_was_left_so_is_remembered_so(story: Story) -> None:
    story.ask(10.2, "1.1", "hit")
    story.say(10.25, "1.1", "by-digest", ask=1, key=KEY, kind="hit", named=[OTHER] * 3, own=[OTHER])
    story.say(10.3, "1.1", "unrewritten", ask=1, key=KEY, to=OTHER)
    story.end(10.4, "1.1", "hit", "ok")
    assert story.verdict() == []


@pytest.mark.parametrize(
    ("leases", "away", "explained"),
    [
        ("redis", "redis", True),
        ("redis", "gcs", False),
        ("gcs", "gcs", True),
        ("gcs", "redis", False),
        ("gcs", "gcs-link:2", True),
        ("gcs", "gcs-link:3", False),
    ],
)
def test_only_the_store_with_the_leases_explains_leases_apart(
    leases: str, away: str, explained: bool
) -> None:
    story = Story(leases=leases)
    story.fault(9.0, 11.0, away, "kill")
    story.make(10.0, "1.1")
    story.make(10.2, "2.1", digest="of 1.1/1")
    story.settle()
    assert (story.verdict() == []) == explained


@pytest.mark.parametrize("target", ["daemon:2", "daemon:1", ""])
def test_a_daemon_that_the_machine_kept_waiting_is_as_a_frozen_one(
    story: Story, target: str
) -> None:
    story.make(10.0, "1.1")
    if target:
        story.say(12.6, "harness", "starved", target=target, since=11.8)
    story.ask(12.5, "2.1", "")
    story.down(12.5, "2.1")
    story.compile(12.6, "2.1", "error", "daemon-absent")
    story.settle()
    judged = story.judged()
    assert (judged.violations == []) == (target == "daemon:2")
    assert judged.figures["of these for want of a core"] == (target == "daemon:2")


def test_what_was_done_on_purpose_explains_first(story: Story) -> None:
    story.make(10.0, "1.1")
    story.say(12.6, "harness", "starved", target="daemon:2", since=11.8)
    story.fault(12.0, 14.0, "daemon:2", "kill")
    story.ask(12.5, "2.1", "")
    story.down(12.5, "2.1")
    story.compile(12.6, "2.1", "error", "daemon-absent")
    story.settle()
    figures = story.judged().figures
    assert figures["compiled again"] == {"without its daemon: daemon kill": 1}
    assert figures["of these for want of a core"] == 0


def test_a_window_sees_a_second_in_which_a_process_did_not_run() -> None:
    window = Window()
    times = [n * LOOK_SECONDS for n in range(12)]
    waited = [0.01 * n for n in range(6)] + [0.05 + SHARE + 0.01] * 6
    idle = {8: 0.0, 9: 0.001}
    seen = [
        window.look(7, at, {**idle, 7: so_far}) for at, so_far in zip(times, waited, strict=True)
    ]
    assert [since is not None for since in seen] == [False] * 6 + [True] * 4 + [False] * 2
    assert seen[6] == times[2]


def test_a_window_is_of_one_process() -> None:
    window = Window()
    window.look(7, 0.0, {7: 0.0})
    assert window.look(8, 0.25, {8: 50.0}) is None


def test_what_the_kernel_counts_is_there_to_be_read() -> None:
    """Else nothing would ever be called starved."""
    waited = waited_seconds(os.getpid())
    assert waited.keys() >= {os.getpid()} and waited[os.getpid()] > 0.0
    assert waited_seconds(2**22) == {}


# --- the programs --------------------------------------------------------------------------------


def test_participants_ask_by_other_digests_and_come_to_one_key() -> None:
    kinds = {
        number: {CompileRequest(number, rank).raw_digest for rank in range(6)}
        for number in range(4)
    }
    assert [len(digests) for digests in kinds.values()] == [6, 1, 3, 1]
    assert len(set().union(*kinds.values())) == 11
    for number in range(4):
        assert len({CompileRequest(number, rank).keys[0] for rank in range(6)}) == 1
    assert key_of(CompileRequest(0).own_record) != key_of(CompileRequest(0).record)
    assert key_of(CompileRequest(1).own_record) == key_of(CompileRequest(1).record)


@pytest.mark.parametrize("number", range(4))
def test_the_products_own_rules_make_them_one(number: int) -> None:
    """What the descriptor comes to is what the stand-in for the client's rewriting takes, and nothing else is."""
    request = CompileRequest(number, 2)
    rewrites = canonical.canonicalize(describe(request)).rewrites
    assert fits(request, rewrites)
    assert bool(rewrites) == request.has_fragment
    assert not fits(request, rewrites[:-1]) or not rewrites
