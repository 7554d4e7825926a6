"""Group: do the members of a job compile the same programs? What they post, and what follows from it.

The members of a group are the processes that a program's devices belong to. Each posts the programs that it meets, in
order. Two members differ where *both* have a program that the other lacks; which of these are counterparts is guessed
from names, components and places. So a member that is behind, or compiles a program more than the others, raises no
alarm, and neither does another order: the order of compiles is not the order of runs. Pure: no clock, no store, no JAX.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coldstart.identity.key import KeyRecord, key_of

MOST_PROGRAMS = 256  # of a group, and characters of
MOST_CHARACTERS = (
    600  # a component's value that are posted; more than these are not compared or shown
)
SHOWN_CHARACTERS = 48
MOST_UNMATCHED = 16  # of a member, that are looked at as counterparts at a time


@dataclass(frozen=True, slots=True)
class Post:
    """One program of several processes, as a member tells the others of it."""

    key: str
    name: str  # the module's, for people
    parts: tuple[tuple[str, str], ...]  # components, then versions: name and value, cut where long

    @property
    def mark(self) -> str:
        """The key in short; what members compare."""
        return self.key.partition("-")[2][:16]

    def to_json(self) -> str:
        return json.dumps({"key": self.key, "name": self.name, "parts": dict(self.parts)})

    @classmethod
    def from_json(cls, text: str) -> Post | None:
        """None for what is no post: the store is everybody's."""
        try:
            data = json.loads(text)
            parts = tuple((str(name), str(value)) for name, value in data["parts"].items())
            return cls(str(data["key"]), str(data["name"]), parts)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def post_of(record: KeyRecord) -> Post:
    """What is posted of a key record."""
    parts = [(component.name, _cut(component.value)) for component in record.components]
    parts += [(f"version of {name}", _cut(value)) for name, value in record.versions]
    return Post(key_of(record), record.program_name[:MOST_CHARACTERS], tuple(parts))


def _cut(value: str) -> str:
    if len(value) <= MOST_CHARACTERS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"{value[:MOST_CHARACTERS]}... sha256 {digest}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A program of this member, and another one that other members have in its place."""

    ordinal: int  # of this member's program, from 1
    mine: Post
    theirs: Post
    ranks: tuple[int, ...]  # who has `theirs`; process numbers

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the parts that differ, in hashing order."""
        left, right = dict(self.mine.parts), dict(self.theirs.parts)
        return tuple(
            name for name in dict.fromkeys((*left, *right)) if left.get(name) != right.get(name)
        )

    def in_words(self, me: int, members: Sequence[int]) -> str:
        """One line: which program, which components with both values, what it means."""
        left, right = dict(self.mine.parts), dict(self.theirs.parts)
        there = _processes(self.ranks)
        differing = "; ".join(
            f"{name}: {a} here, {b} there"
            for name in self.components
            for a, b in [_shortened(left.get(name, ""), right.get(name, ""))]
        )
        return (
            f"group-mismatch: program {self.ordinal} over {_processes(members)} is {self.mine.name} on process {me}, "
            f"and another one, {self.theirs.name}, on {there}; {differing}. If these run together, collectives may "
            f"give wrong numbers or hang. More: coldstart explain {self.mine.key} {self.theirs.key}"
        )


def _processes(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"process {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"processes {ranks[0]} to {ranks[-1]}"
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"processes {shown}"


def _shortened(left: str, right: str) -> tuple[str, str]:
    """Two values that differ, cut to where they do."""
    try:
        a, b = json.loads(left), json.loads(right)
    except ValueError:
        a = b = None
    if isinstance(a, dict) and isinstance(b, dict):
        names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]
        left, right = (", ".join(f"{n} {d.get(n)}" for n in names) for d in (a, b))
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    start = 0 if max(len(left), len(right)) <= SHOWN_CHARACTERS else max(0, start - 8)
    return _shown(left, start), _shown(right, start)


def _shown(value: str, start: int) -> str:
    end = start + (16 if len(value) == 64 and value.isalnum() else SHOWN_CHARACTERS)
    text = value[start:end]
    return ("..." if start else "") + (text or "nothing") + ("..." if end < len(value) else "")


@dataclass(slots=True)
class _Member:
    """Another member, as far as it was heard of."""

    marks: tuple[str, ...] = ()
    first_seen: dict[str, float] = field(
        default_factory=dict
    )  # by mark; seconds of the caller's clock


class Comparison:
    """One member's view of its group."""

    def __init__(self, me: int, members: Iterable[int]) -> None:
        self.me = me
        self.members = tuple(sorted(members))
        self.posts: list[Post] = []
        self._added: dict[str, float] = {}  # by mark
        self._others = {rank: _Member() for rank in self.members if rank != me}
        self._told: dict[str, Difference] = {}  # by mark of ours

    @property
    def marks(self) -> tuple[str, ...]:
        """What this member posts, in order."""
        return tuple(self._added)

    def add(self, post: Post, now: float) -> bool:
        """A program of this member. False where it is known already, or there are too many."""
        if post.mark in self._added or len(self.posts) >= MOST_PROGRAMS:
            return False
        self.posts.append(post)
        self._added[post.mark] = now
        return True

    def hear(self, rank: int, marks: Iterable[str], now: float) -> bool:
        """All that a member has posted so far. True where that is news."""
        member = self._others.get(rank)
        if member is None:
            return False
        found = tuple(dict.fromkeys(marks))[:MOST_PROGRAMS]
        if found == member.marks:
            return False
        member.marks = found
        for mark in found:
            member.first_seen.setdefault(mark, now)
        return True

    @property
    def agreed(self) -> bool:
        """Every member has exactly the programs that this one has."""
        mine = set(self._added)
        return all(set(member.marks) == mine for member in self._others.values())

    def differences(
        self, details: Callable[[int, int], Post | None], *, before: float
    ) -> list[Difference]:
        """What must be told now: each program of ours once, in order.

        Args:
            details: a member's n-th post, from 0, or None while it can't be had.
            before: only what both sides had posted by then: others may just be slower.
        """
        found: dict[str, Difference] = {}
        for rank, member in self._others.items():
            if max(len(member.marks), len(self.posts)) >= MOST_PROGRAMS:
                continue  # one of us has stopped counting: what lacks may be among the rest
            for ours, theirs in self._counterparts(rank, member, details):
                late = max(self._added[ours.mark], member.first_seen[theirs.mark]) > before
                if late or ours.mark in self._told:
                    continue
                known = found.get(ours.mark)
                if known is None:
                    ordinal = self.posts.index(ours) + 1
                    found[ours.mark] = Difference(ordinal, ours, theirs, (rank,))
                elif known.theirs.mark == theirs.mark:
                    ranks = (*known.ranks, rank)
                    found[ours.mark] = Difference(known.ordinal, ours, theirs, ranks)
        self._told |= found
        return sorted(found.values(), key=lambda difference: difference.ordinal)

    def taken_back(self) -> list[Difference]:
        """Differences that were told and turned out to be of order: each member has the other's by now."""
        back = [
            told
            for told in self._told.values()
            if told.theirs.mark in self._added
            and all(told.mine.mark in self._others[rank].marks for rank in told.ranks)
        ]
        for told in back:
            del self._told[told.mine.mark]
        return back

    def _counterparts(
        self, rank: int, member: _Member, details: Callable[[int, int], Post | None]
    ) -> list[tuple[Post, Post]]:
        """Programs that only we have, each with the one that only the other member has in its place."""
        common = set(member.marks) & set(self._added)
        only_mine = [n for n, post in enumerate(self.posts) if post.mark not in common]
        only_theirs = [n for n, mark in enumerate(member.marks) if mark not in common]
        if not only_mine or not only_theirs:
            return []
        posts = {n: details(rank, n) for n in only_theirs[:MOST_UNMATCHED]}
        likeness: list[tuple[tuple[int, ...], int, int]] = []
        for mine in only_mine[:MOST_UNMATCHED]:
            place = _matched_before(self.marks, mine, common)
            for theirs, post in posts.items():
                if post is not None:
                    apart = abs(place - _matched_before(member.marks, theirs, common))
                    found = self._likeness(self.posts[mine], post, apart)
                    likeness += [(found, mine, theirs)] if found is not None else []
        pairs: dict[int, Post] = {}
        taken: set[int] = set()
        for _, mine, theirs in sorted(likeness):
            other = posts[theirs]
            if mine not in pairs and theirs not in taken and other is not None:
                pairs[mine] = other
                taken.add(theirs)
        return [(self.posts[mine], theirs) for mine, theirs in pairs.items()]

    def _likeness(self, mine: Post, theirs: Post, apart: int) -> tuple[int, ...] | None:
        """How much two programs look like each other's counterparts, the least the most; None: not at all.

        One of another name is it only in the very place. Else the same program that is compiled otherwise comes first,
        then what differs in little, what many members have, and what stands near.
        """
        if mine.name != theirs.name and apart:
            return None
        differing = Difference(0, mine, theirs, ()).components
        having = sum(
            mark in other.marks
            for mark in (mine.mark, theirs.mark)
            for other in self._others.values()
        )
        return (
            mine.name != theirs.name,
            "program" in differing,
            len(differing),
            -having,
            apart,
        )


def _matched_before(marks: Sequence[str], position: int, common: set[str]) -> int:
    """How many programs that both have stand before a position."""
    return sum(mark in common for mark in marks[:position])
