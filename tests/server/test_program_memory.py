"""What the memory of programs counts as its size is what clients can make large."""

from __future__ import annotations

import pytest

from coldstart.identity.key import COMPONENTS, Component, KeyRecord
from coldstart.server.answers import Canonicalized
from coldstart.server.program_memory import Bounded, ProgramMemory

LARGE = "x" * 10_000


@pytest.mark.parametrize(
    "about",
    [
        {"program_name": LARGE},
        {"versions": ((LARGE, ""),)},
        {"versions": (("", LARGE),)},
        {"notes": (LARGE,)},
    ],
)
def test_records_give_way_by_their_whole_size(about: dict) -> None:
    memory = ProgramMemory(record_bytes=50_000)
    components = tuple(Component(name, "v") for name in COMPONENTS)
    for k in range(20):
        memory.link("", f"key {k}", KeyRecord(components, **about))
    kept = [k for k in range(20) if memory.record(f"key {k}") is not None]
    assert kept == [16, 17, 18, 19]


def test_memory_is_bounded_by_count_and_bytes() -> None:
    kept = Bounded(3, 100)
    assert [kept.put(name, name, 10) for name in "abc"] == [[], [], []]
    kept.get("a")
    assert kept.put("d", "d", 10) == [("b", "b")]
    assert kept.put("e", "e", 85) == [("c", "c"), ("a", "a")]
    assert kept.put("e", "e", 5) == [] and kept.bytes == 15
    assert kept.put("f", "f", 101) == [("d", "d"), ("e", "e"), ("f", "f")] and kept.bytes == 0


def test_a_forgotten_alias_leaves_nothing_behind(made) -> None:
    memory = ProgramMemory(most=2, descriptor_bytes=1200)
    record = made.record("p")
    for digest in ("1", "2", "3"):
        memory.remember(digest, Canonicalized((), b"x" * 300))
        memory.link(digest, "key", record)
    assert [p.raw_digest for p in memory.programs("key")] == ["3", "2"]
    assert memory.rewrites("1") is None and memory.rewrites("3") == ()
    memory.remember("4", Canonicalized((), b"x" * 300))
    memory.remember("5", Canonicalized((), b"x" * 300))
    assert memory.programs("key") == [] and memory._by_key == {}


def test_what_was_abandoned_is_asked_for_again(made) -> None:
    memory = ProgramMemory()
    memory.remember("1", Canonicalized(abandoned="slow"))
    assert memory.rewrites("1") is None
    memory.link("1", "key", made.record("p"))
    assert memory.programs("key")[0].alias.abandoned == "slow"
