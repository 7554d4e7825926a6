"""Key records and the key made of them: framing, JSON, the golden key."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.errors import InvalidRequest
from coldstart.identity.key import (
    COMPONENTS,
    Component,
    ComponentDiff,
    KeyRecord,
    diff,
    is_key,
    key_of,
)

VALUES = {
    "program": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "options": "num_partitions=16",
    "target": "cpu:16",
    "flags": "",
    "callbacks": "0",
}
# Scheme cs1, as it was when it was first published. A change that moves it needs a new scheme.
GOLDEN = "cs1-96d7484dc5cf3cee6e5169fddc4fc0438728dd2921891c2f5e048df61feafdd7"


def record(**values: str) -> KeyRecord:
    return KeyRecord(
        tuple(Component(name, (VALUES | values)[name], f"why {name}") for name in COMPONENTS),
        program_name="demo.decode",
        versions=(("extractor", "1"), ("jax", "0.10.2")),
        notes=("3 locations dropped",),
    )


def test_golden_key() -> None:
    assert key_of(record()) == GOLDEN


def test_the_key_is_what_its_grammar_says() -> None:
    framed = b"".join(
        len(part).to_bytes(8, "big") + part
        for name in COMPONENTS
        for part in (name.encode(), VALUES[name].encode())
    )
    assert key_of(record()) == "cs1-" + hashlib.sha256(framed).hexdigest()


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_moves_the_key(name: str) -> None:
    changed = record(**{name: VALUES[name] + "x"})
    assert key_of(changed) != key_of(record())
    assert diff(record(), changed) == (ComponentDiff(name, record()[name], changed[name]),)


@pytest.mark.parametrize(
    "left, right",
    [
        # a byte that moves from one component to the next
        ({"options": "ab", "target": "c"}, {"options": "a", "target": "bc"}),
        ({"flags": "a", "callbacks": ""}, {"flags": "", "callbacks": "a"}),
        ({"program": "p", "options": ""}, {"program": "", "options": "p"}),
        # values that spell out the framing of the next component
        ({"options": "x", "target": "y"}, {"options": "xtarget", "target": "y"}),
        (
            {"options": "", "target": ""},
            {"options": "\x00" * 7 + "\x06target" + "\x00" * 8, "target": ""},
        ),
        # values that look alike
        ({"callbacks": "1"}, {"callbacks": "01"}),
        ({"flags": "a b"}, {"flags": "a  b"}),
        ({"flags": "a\nb"}, {"flags": "a\\nb"}),
        ({"target": "é"}, {"target": "e\u0301"}),
        ({"target": "cpu:16"}, {"target": "CPU:16"}),
        # two values swapped
        ({"options": "1", "callbacks": "2"}, {"options": "2", "callbacks": "1"}),
    ],
)
def test_must_differ(left: dict[str, str], right: dict[str, str]) -> None:
    assert key_of(record(**left)) != key_of(record(**right))


def test_must_be_the_same() -> None:
    """What explains, and what is for people, is never hashed."""
    same = KeyRecord(
        tuple(Component(name, VALUES[name], "told otherwise") for name in COMPONENTS),
        program_name="renamed",
        versions=(("rules", "2"),),
    )
    assert key_of(same) == key_of(record()) == GOLDEN and diff(same, record()) == ()


@given(
    st.tuples(*[st.text(alphabet="ab\x00", max_size=3)] * len(COMPONENTS)),
    st.tuples(*[st.text(alphabet="ab\x00", max_size=3)] * len(COMPONENTS)),
)
def test_keys_are_equal_exactly_when_all_values_are(
    left: tuple[str, ...], right: tuple[str, ...]
) -> None:
    one, other = (record(**dict(zip(COMPONENTS, v, strict=True))) for v in (left, right))
    assert (key_of(one) == key_of(other)) == (left == right) == (not diff(one, other))


@pytest.mark.parametrize(
    "names",
    [
        (),
        COMPONENTS[:-1],
        (*COMPONENTS, "more"),
        (COMPONENTS[1], COMPONENTS[0], *COMPONENTS[2:]),
        (*COMPONENTS[:-1], COMPONENTS[0]),
    ],
)
def test_a_record_has_all_components_in_order(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="program, options, target, flags, callbacks"):
        KeyRecord(tuple(Component(name, "x") for name in names))


def test_another_scheme_has_no_key_here() -> None:
    with pytest.raises(InvalidRequest, match="'cs2'"):
        key_of(dataclasses.replace(record(), scheme="cs2"))


def test_json_round_trip_and_the_key_in_it() -> None:
    text = record().to_json()
    assert "\n" not in text
    assert KeyRecord.from_json(text) == record()
    assert json.loads(text)["key"] == GOLDEN


@given(st.text(), st.text(), st.lists(st.text(), max_size=3))
def test_any_text_survives_json(value: str, detail: str, notes: list[str]) -> None:
    made = KeyRecord(
        tuple(Component(name, value, detail) for name in COMPONENTS), notes=tuple(notes)
    )
    try:
        key = key_of(made)
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    again = KeyRecord.from_json(made.to_json())
    assert again == made and key_of(again) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"components": 3, "scheme": "cs1"}',
        '{"components": [], "scheme": "cs1"}',
        '{"components": [{"name": "program"}], "scheme": "cs1"}',
        "{" * 500,
    ],
)
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        KeyRecord.from_json(text)


@pytest.mark.parametrize(
    "text, good",
    [
        (GOLDEN, True),
        ("cs2-" + "0" * 64, True),
        ("", False),
        ("cs1", False),
        ("cs1-", False),
        ("-" + "0" * 64, False),
        ("cs1-" + "0" * 63, False),
        ("cs1-" + "0" * 65, False),
        ("cs1-" + "A" * 64, False),
        ("cs1-" + "0" * 63 + "/", False),
        ("../-" + "0" * 64, False),
        ("a/b-" + "0" * 64, False),
        (GOLDEN + "\n", False),
    ],
)
def test_what_may_become_a_file_name(text: str, good: bool) -> None:
    assert is_key(text) is good
