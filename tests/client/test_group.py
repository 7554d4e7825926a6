"""What counts as a difference between members of a group, and what doesn't."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from coldstart.client import group
from coldstart.client.group import Comparison, Difference, Post, post_of
from coldstart.identity.key import Component, KeyRecord

NEVER = float("inf")


def post(program: str, name: str = "jit_step", **components: str) -> Post:
    values = {"options": "o", "target": '{"partitions": 8}', "flags": "", "callbacks": "0"}
    values |= components
    parts = tuple(Component(part, values.get(part, program)) for part in ("program", *values))
    return post_of(KeyRecord(parts, name, (("jax", "1"),)))


A, B, C = (post(word, f"jit_{word}") for word in "abc")


class Job:
    """Members that post to one another."""

    def __init__(self, *posted: Sequence[Post], grace: float = NEVER) -> None:
        self.posted = posted
        self.grace = grace
        self.members = [Comparison(rank, range(len(posted))) for rank in range(len(posted))]
        for member, posts in zip(self.members, posted, strict=True):
            for one in posts:
                member.add(one, 0.0)
            for rank, others in enumerate(posted):
                member.hear(rank, [other.mark for other in others], 0.0)

    def told(self, rank: int) -> list[Difference]:
        def detail(other: int, n: int) -> Post | None:
            return self.posted[other][n]

        return self.members[rank].differences(detail, before=self.grace)


def test_equal_programs_agree_and_nothing_is_told() -> None:
    job = Job([A, B], [A, B], [A, B])
    assert all(member.agreed for member in job.members)
    assert [job.told(rank) for rank in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    "posted",
    [
        ([A, B, C], [A]),  # behind
        ([A, C], [A, B, C]),  # one program more here
        ([A, B, C], [C, A, B]),  # another order
        ([A, B, C], []),  # never heard of
    ],
)
def test_what_is_no_difference(posted: tuple[list[Post], ...]) -> None:
    job = Job(*posted)
    assert [job.told(0), job.told(1)] == [[], []]


def test_both_sides_are_told_which_component_differs() -> None:
    mine, theirs = post("s"), post("s", target='{"partitions": 4}')
    job = Job([A, mine], [A, theirs])
    for rank, other in ((0, 1), (1, 0)):
        (told,) = job.told(rank)
        assert (told.ordinal, told.ranks, told.components) == (2, (other,), ("target",))
        words = told.in_words(rank, (0, 1))
        assert "program 2 over processes 0, 1 is jit_step" in words
        here, there = (8, 4) if rank == 0 else (4, 8)
        assert f"target: partitions {here} here, partitions {there} there" in words
        assert job.told(rank) == []  # once


def test_members_that_have_the_same_are_named_together_and_the_odd_one_is_told_of_all() -> None:
    right, odd = post("right"), post("odd")
    job = Job([right], [right], [odd], [right])
    (told,) = job.told(2)
    assert told.ranks == (0, 1, 3)
    for rank in (0, 1, 3):
        (told,) = job.told(rank)
        assert told.ranks == (2,) and told.theirs == odd


def test_a_program_more_on_one_side_hides_no_difference_and_shifts_none() -> None:
    mine, theirs = post("mine"), post("theirs")
    job = Job([A, C, mine, B], [A, theirs, B])
    assert [(t.mine.name, t.theirs.name) for t in job.told(0)] == [("jit_step", "jit_step")]


def test_counterparts_are_the_same_program_compiled_otherwise_before_any_other() -> None:
    extra, mine, theirs = post("extra"), post("p", options="fast"), post("p", options="exact")
    (told,) = Job([A, extra, mine], [A, theirs]).told(0)
    assert (told.ordinal, told.components) == (3, ("options",))


def test_counterparts_are_what_most_members_have() -> None:
    extra, right, odd = post("extra"), post("right"), post("odd")
    job = Job([A, extra, right], [A, right], [A, odd], [A, right])
    for rank in (0, 1, 3):
        assert [(told.mine, told.theirs) for told in job.told(rank)] == [(right, odd)]
    (told,) = job.told(2)
    assert (told.theirs, told.ranks) == (right, (0, 1, 3))


def test_programs_with_other_names_differ_where_they_stand_in_the_same_place() -> None:
    (told,) = Job([A, B], [A, C]).told(0)
    assert (told.ordinal, told.mine, told.theirs) == (2, B, C)
    assert told.components == ("program",)
    assert Job([B, A], [A, C]).told(0) == []  # each has one more, in places of their own


def test_nothing_is_told_before_the_others_had_time() -> None:
    job = Job([B], [C], grace=-1.0)
    assert job.told(0) == []
    job.grace = 0.0
    assert len(job.told(0)) == 1


def test_a_matter_of_order_is_taken_back() -> None:
    job = Job([A, B], [A, C])
    assert len(job.told(0)) == 1
    job.members[0].add(C, 1.0)
    assert job.members[0].taken_back() == []
    job.members[0].hear(1, [A.mark, C.mark, B.mark], 1.0)
    assert [back.mine for back in job.members[0].taken_back()] == [B]
    assert job.members[0].taken_back() == []


def test_what_is_counted_is_bounded_and_the_rest_is_not_compared() -> None:
    many = [post(str(n), f"jit_{n}") for n in range(group.MOST_PROGRAMS)]
    member = Comparison(0, (0, 1))
    assert all(member.add(one, 0.0) for one in many)
    assert not member.add(A, 0.0)
    member.hear(1, [A.mark], 0.0)
    assert member.differences(lambda rank, n: A, before=NEVER) == []


def test_a_post_survives_its_journey_and_long_values_stay_different() -> None:
    long = ["x" * 5000 + end for end in "ab"]
    left, right = (post("p", flags=text) for text in long)
    assert Post.from_json(left.to_json()) == left
    assert len(left.to_json()) < 3000
    assert Difference(1, left, right, (1,)).components == ("flags",)
    for text in ("", "[]", "{}", json.dumps({"key": "k", "name": "n", "parts": 3})):
        assert Post.from_json(text) is None


def test_values_are_shown_where_they_part() -> None:
    left, right = (post("p", flags="--same " * 20 + end) for end in ("--x=1", "--x=2"))
    words = Difference(1, left, right, (1,)).in_words(0, (0, 1))
    assert "--x=1 here" in words and "--x=2 there" in words
