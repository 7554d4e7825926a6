"""Accounts: what `coldstart explain` says, as plain data that goes into JSON as it is.

An account has a left side and maybe a right one. A side is a key or a file: its record, and the raw programs that came
to it. Two sides are compared by component, and their raw programs down to node and attribute.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from coldstart.identity import rules
from coldstart.identity.difference import MAX_DIFFERENCES, differences
from coldstart.identity.explain import Program
from coldstart.identity.key import KeyRecord, diff, key_of

_REASONS = {rule.name: rule.reason for rule in rules.RULES}
BLIND_SPOT = (
    "the descriptors are equal although the module digests are not: the modules differ in something that descriptors "
    "don't hold (an extractor's blind spot, which costs a miss and never a wrong hit); please report it"
)
NOT_REWRITTEN = (
    "a rule strips every difference that was found, and yet the module digests differ: one side was not rewritten "
    "(exact mode, several processes, a rule that is off, or rewrites that its module refused), or normal form kept "
    "something"
)
OTHER_RULES = (
    "a rule that is off for one side (COLDSTART_RULES, exact mode, a program of several processes), or that another "
    "version knows, leaves in one key what it takes out of the other"
)
COORDINATES = (
    "device-coordinates: the two are for other chips of one topology; a TPU executable checks the coordinates of its "
    "own chip, so they can't share"
)


def program_account(
    program: Program | None, *, raw_digest: str = "", abandoned: str = ""
) -> dict[str, Any]:
    """One raw program; None: its descriptor is not there."""
    d = program.descriptor if program is not None else None
    return {
        "raw_digest": raw_digest,
        "described": d is not None,
        "abandoned": abandoned,
        "framework": d.framework if d is not None else "",
        "nodes": d.nodes if d is not None else 0,
        "functions": len(d.function_node) if d is not None else 0,
        "stripped": [
            {**asdict(edit), "rule_reason": _REASONS.get(edit.rule, "")}
            for edit in (program.edits if program is not None else ())
        ],
        "kernels": [asdict(kernel) for kernel in (program.kernels if program is not None else ())],
    }


def side_account(
    name: str,
    *,
    record: KeyRecord | None = None,
    program_digest: str = "",
    programs: Sequence[dict[str, Any]] = (),
    remembered: int = 0,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """A key or a file."""
    return {
        "name": name,
        "record": json.loads(record.to_json()) if record is not None else None,
        "program": record.module_digest if record is not None else program_digest,
        "programs": list(programs),
        "remembered": remembered,
        "notes": list(notes),
    }


def difference_account(left: Program, right: Program, limit: int) -> dict[str, Any]:
    """Where two raw programs differ."""
    found = differences(left, right)
    return {
        "count": len(found),
        "all": len(found) < MAX_DIFFERENCES,
        "stripped": sum(bool(d.rule) for d in found),
        "shown": [asdict(d) for d in found[:limit]],
    }


def account(
    left: dict[str, Any],
    right: dict[str, Any] | None = None,
    difference: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole of it. `difference` is between raw programs of the two sides, or of the only one."""
    same, components, notes = None, [], []
    if right is not None:
        same = left["program"] == right["program"]
        if left["record"] is not None and right["record"] is not None:
            one, other = (KeyRecord.from_json(json.dumps(s["record"])) for s in (left, right))
            same = key_of(one) == key_of(other)
            components = list(_components(one, other))
        notes = list(_notes(left, right, components, difference))
    return {
        "left": left,
        "right": right,
        "same": same,
        "first": components[0]["name"] if components else "",
        "components": components,
        "difference": difference,
        "notes": notes,
    }


def _components(left: KeyRecord, right: KeyRecord) -> Iterator[dict[str, Any]]:
    for found in diff(left, right):
        yield {
            "name": found.name,
            "left": found.left.value,
            "right": found.right.value,
            "left_detail": found.left.detail,
            "right_detail": found.right.detail,
            "parts": [
                {"path": path, "left": a, "right": b}
                for path, a, b in _parts(found.left.value, found.right.value)
            ],
        }


def _parts(left: str, right: str) -> Iterator[tuple[str, str, str]]:
    """Inside of values that have parts: JSON objects by name, flags by token."""
    try:
        one, other = json.loads(left), json.loads(right)
    except ValueError:
        one = other = None
    if isinstance(one, dict) and isinstance(other, dict):
        yield from _json_parts("", one, other)
    elif left.startswith("-") or right.startswith("-"):
        tokens, others = left.split(), right.split()
        if sorted(tokens) == sorted(others):
            yield "order", left, right
            return
        for token in tokens:
            if token not in others:
                yield token.partition("=")[0], token, ""
        for token in others:
            if token not in tokens:
                yield token.partition("=")[0], "", token


def _json_parts(path: str, left: Any, right: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys()):
            inner = f"{path}.{name}" if path else name
            yield from _json_parts(inner, left.get(name), right.get(name))
    elif left != right:
        yield path, json.dumps(left), json.dumps(right)


def _notes(
    left: dict[str, Any],
    right: dict[str, Any],
    components: list[dict[str, Any]],
    difference: dict[str, Any] | None,
) -> Iterator[str]:
    for component in components:
        if component["name"] == "target" and [p["path"] for p in component["parts"]] == ["devices"]:
            yield COORDINATES
    if left["program"] == right["program"]:
        return
    if only := list(_rules_of_one_side(left, right)):
        yield f"made under other rules: {'; '.join(only)}; {OTHER_RULES}"
    if difference is None:
        missing = [
            s["name"] for s in (left, right) if not any(p["described"] for p in s["programs"])
        ]
        if missing:
            yield (
                f"no descriptor is remembered of {' and '.join(missing)}, so the programs can't be compared node by "
                "node (a daemon keeps them in memory, and only of programs that might be rewritten or took half a "
                "second to compile); dump both modules with lowered.as_text() and compare the files"
            )
    elif only:
        return
    elif not difference["count"]:
        yield BLIND_SPOT
    elif difference["count"] == difference["stripped"]:
        yield NOT_REWRITTEN


def _rules_of_one_side(left: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    """What was in force for one of two records and not for the other."""
    listed = [(s["record"] or {"versions": {}})["versions"].get("rules", "") for s in (left, right)]
    if not all(listed):  # nothing is known of one of them
        return
    one, other = ([rule for rule in text.split() if rule != "none"] for text in listed)
    for side, ours, theirs in (("left", one, other), ("right", other, one)):
        if extra := [rule for rule in ours if rule not in theirs]:
            yield f"{side} only {', '.join(extra)}"
