"""What the memory of programs counts as its size is what clients can make large."""

from __future__ import annotations

import pytest

from coldstart.identity.key import COMPONENTS, Component, KeyRecord
from coldstart.server.program_memory import ProgramMemory

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
