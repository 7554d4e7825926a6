"""Key records of final descriptors: whose key they can't have, what moves it, what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from coldstart.errors import InvalidRequest
from coldstart.identity.final import BESIDE, MAX_SHOWN, Described, FinalParts, shown
from coldstart.identity.key import COMPONENTS, SCHEME, Component, KeyRecord, key_of

DESCRIBED = Described("a" * 64, ("r@1", "s@2"), "b" * 64, "views", "step", 5, 1, ("r: input 0",))
GIVEN = tuple(Component(name, f"the {name}") for name in BESIDE)
PARTS = FinalParts(GIVEN, SCHEME, notes=("theirs",), versions=(("rules", "mine"), ("views", "1")))


def test_the_record_tells_what_it_is_of() -> None:
    record = PARTS.record(DESCRIBED)
    program = record["program"]
    assert program.value == f"final:r@1,s@2:{'a' * 64}"
    assert program.detail == "final descriptor of views: 5 ops, 1 rewritten"
    assert record.module_digest == "a" * 64 and record.program_name == "step"
    assert dict(record.versions) == {"framework": "views", "rules": "r@1 s@2", "views": "1"}
    assert record.notes == ("theirs", "r: input 0")
    assert KeyRecord.from_json(record.to_json()) == record


def test_it_has_no_other_program_s_key() -> None:
    """The digest alone, as a JAX module's, makes another key; so do other rules, and none."""
    record = PARTS.record(DESCRIBED)
    module = dataclasses.replace(
        record, components=(Component("program", DESCRIBED.digest), *record.components[1:])
    )
    others = [
        PARTS.record(dataclasses.replace(DESCRIBED, **changed))
        for changed in ({"rules": ()}, {"rules": ("r@2", "s@2")}, {"digest": "c" * 64})
    ]
    assert len({key_of(r) for r in (record, module, *others)}) == 5
    assert others[0]["program"].value == f"final:exact:{'a' * 64}"
    assert dict(others[0].versions)["rules"] == "none"


def test_what_only_people_read_moves_no_key() -> None:
    key = key_of(PARTS.record(DESCRIBED))
    for changed in (
        {"raw_digest": "d"},
        {"framework": "x"},  # it is in the digest
        {"program_name": "x"},
        {"nodes": 6},
        {"rewritten": 0, "reasons": ()},
    ):
        assert key_of(PARTS.record(dataclasses.replace(DESCRIBED, **changed))) == key


@pytest.mark.parametrize("name", BESIDE)
def test_every_component_moves_the_key(name: str) -> None:
    given = tuple(Component(c.name, c.value + ("!" if c.name == name else "")) for c in GIVEN)
    moved = dataclasses.replace(PARTS, components=given).record(DESCRIBED)
    assert key_of(moved) != key_of(PARTS.record(DESCRIBED))


@pytest.mark.parametrize(
    "given",
    [
        (),
        GIVEN[:-1],
        GIVEN[::-1],
        (*GIVEN, GIVEN[0]),
        (Component("program", "a" * 64), *GIVEN),
        (*GIVEN, Component(COMPONENTS[0], "")),
        tuple(Component(c.name, "") for c in GIVEN),
    ],
)
def test_what_is_no_such_record_is_refused(given: tuple[Component, ...]) -> None:
    with pytest.raises(InvalidRequest):
        FinalParts(given, SCHEME)


def test_another_scheme_has_no_key_here() -> None:
    with pytest.raises(InvalidRequest):
        key_of(dataclasses.replace(PARTS, scheme="cs9").record(DESCRIBED))


def test_a_stranger_s_text_stays_in_its_line() -> None:
    assert shown("a\nb\x1b[2Jc") == "a b [2Jc"
    assert len(shown("x" * 10_000)) == MAX_SHOWN + 3
