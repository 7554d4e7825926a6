"""Key records: the named components of one compile, and the canonical key made of them.

    key = "cs1-" + sha256( for each component, in the order of COMPONENTS:
                             len(name) name len(value) value )         lengths are 8 bytes, big endian

A component's `value` is what is hashed; its `detail` explains the value and is never hashed. Pure: no clock,
no environment, no JAX.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from coldstart.errors import InvalidRequest

SCHEME = "cs1"
_KEY = re.compile(r"[A-Za-z0-9]+-[0-9a-f]{64}", re.ASCII)

# The components of a JAX program's key, in hashing order. Adding, dropping or reordering one is a new scheme.
COMPONENTS = ("program", "options", "target", "flags", "callbacks")
# Begins the program component of final descriptors (final.py), and of nothing else.
FINAL = "final:"


@dataclass(frozen=True, slots=True)
class Component:
    """One named part of a key record."""

    name: str  # one of COMPONENTS
    value: str  # hashed
    detail: str = ""  # explains the value to people; not hashed


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Everything that a key was made of, in full; stored beside the artifact so that a miss can be explained."""

    components: tuple[Component, ...]
    program_name: str = ""  # for people: the module's name; not hashed
    versions: tuple[tuple[str, str], ...] = ()  # extractor, rules, jax: recorded, not hashed
    notes: tuple[str, ...] = ()  # what normal form and rewrites dropped, in words; not hashed
    scheme: str = SCHEME
    _by_name: Mapping[str, Component] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        by_name = {component.name: component for component in self.components}
        if tuple(component.name for component in self.components) != COMPONENTS:
            names = ", ".join(component.name for component in self.components)
            raise InvalidRequest(
                f"a {SCHEME} key record has the components {', '.join(COMPONENTS)} in this order, "
                f"not: {names or 'none'}"
            )
        object.__setattr__(self, "_by_name", by_name)

    def __getitem__(self, name: str) -> Component:
        return self._by_name[name]

    @property
    def module_digest(self) -> str:
        """sha256 (hex) of the normal form of the module that is handed to the compiler, or of a final descriptor."""
        value = self["program"].value
        return value.rpartition(":")[2] if value.startswith(FINAL) else value

    def to_json(self) -> str:
        """One line of JSON with sorted names; `from_json` reads it back."""
        return json.dumps(
            {
                "scheme": self.scheme,
                "key": key_of(self),
                "program_name": self.program_name,
                "components": [
                    {"name": c.name, "value": c.value, "detail": c.detail} for c in self.components
                ],
                "versions": dict(self.versions),
                "notes": list(self.notes),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> KeyRecord:
        """Read `to_json`'s line. Raises InvalidRequest where it is not one."""
        try:
            data = json.loads(text)
            return cls(
                components=tuple(
                    Component(str(c["name"]), str(c["value"]), str(c.get("detail", "")))
                    for c in data["components"]
                ),
                program_name=str(data.get("program_name", "")),
                versions=tuple(
                    sorted((str(k), str(v)) for k, v in data.get("versions", {}).items())
                ),
                notes=tuple(str(n) for n in data.get("notes", ())),
                scheme=str(data["scheme"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise InvalidRequest(f"not a key record: {exc}") from exc


def key_of(record: KeyRecord) -> str:
    """The canonical key of a record: scheme, dash, 64 hex digits."""
    if record.scheme != SCHEME:
        raise InvalidRequest(f"key scheme {record.scheme!r} is not known here; this is {SCHEME}")
    digest = hashlib.sha256()
    for component in record.components:
        for part in (component.name.encode(), component.value.encode()):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return f"{record.scheme}-{digest.hexdigest()}"


def is_key(text: str) -> bool:
    """True for text of the form `<scheme>-<64 hex digits>`; what a store may use as a file name."""
    return _KEY.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class ComponentDiff:
    """One component in which two records differ."""

    name: str
    left: Component
    right: Component


def diff(left: KeyRecord, right: KeyRecord) -> tuple[ComponentDiff, ...]:
    """The components whose values differ, in hashing order; empty exactly when the keys are equal."""
    return tuple(
        ComponentDiff(name, left[name], right[name])
        for name in COMPONENTS
        if left[name].value != right[name].value
    )
