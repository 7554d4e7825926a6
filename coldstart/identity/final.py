"""Final descriptors: the key record of a program that is its own descriptor.

    program = final:<rules>:<digest>      what the daemon makes of the descriptor
              rules   ids of the rewriting rules in force, joined by commas; "exact" where none may be used
              digest  sha256 (hex) of the descriptor after its rewrites (`canonical.digest_of`)

The sender gives all other components. A JAX program's component is 64 hex digits and nothing else, so no final program
has a JAX program's key. The rules stand in the value because nobody else sees the rewritten program: who compiles it
answers for having compiled that. When a rule turns out wrong, its next version keeps away from all that it has shared.
Pure, and without NumPy: a daemon uses it on its event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldstart.errors import InvalidRequest
from coldstart.identity.key import COMPONENTS, FINAL, Component, KeyRecord

BESIDE = COMPONENTS[1:]  # what the sender says
EXACT = "exact"
MAX_NOTES = 20  # rewrites that a record tells of; `explain` tells of all
MAX_SHOWN = 256  # characters of a sender's text in a line of ours


@dataclass(frozen=True, slots=True)
class Described:
    """What canonicalization made of one final descriptor."""

    digest: str  # sha256 (hex), after the rewrites
    rules: tuple[str, ...]  # ids in force; empty: exact
    raw_digest: str  # sha256 (hex) of the message as it came: only names it in the daemon's memory
    framework: str = ""  # this and what follows: fit to be shown
    program_name: str = ""
    nodes: int = 0
    rewritten: int = 0  # facts
    reasons: tuple[str, ...] = ()  # a line for each of the first of them

    @property
    def program(self) -> str:
        """The program component's value."""
        return f"{FINAL}{','.join(self.rules) or EXACT}:{self.digest}"


@dataclass(frozen=True, slots=True)
class FinalParts:
    """A final program's key record without its program. Raises InvalidRequest where that is not what it is."""

    components: tuple[Component, ...]
    scheme: str
    program_name: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = tuple(component.name for component in self.components)
        if COMPONENTS[0] in names:
            raise InvalidRequest(
                f"the {COMPONENTS[0]} of a final program is made from its descriptor; leave the component out"
            )
        if names != BESIDE:
            raise InvalidRequest(
                f"a final program's record has the components {', '.join(BESIDE)} in this order, not: "
                f"{', '.join(map(shown, names)) or 'none'}"
            )
        if not self.components[BESIDE.index("target")].value:
            raise InvalidRequest(
                "target is empty; it says what is compiled for and with which build of the compiler"
            )

    def record(self, described: Described) -> KeyRecord:
        """The whole record. Raises InvalidRequest for another scheme."""
        framework = described.framework
        reasons = described.reasons
        if described.rewritten > len(reasons):
            reasons += (f"and {described.rewritten - len(reasons)} more rewrites",)
        program = Component(
            COMPONENTS[0],
            described.program,
            f"final descriptor of {framework or 'a framework without a name'}: {described.nodes} ops, "
            f"{described.rewritten} rewritten",
        )
        versions = dict(self.versions) | {
            "framework": framework,
            "rules": " ".join(described.rules) or "none",
        }
        return KeyRecord(
            (program, *self.components),
            shown(self.program_name or described.program_name),
            tuple(sorted(versions.items())),
            self.notes + reasons,
            self.scheme,
        )


def shown(text: str) -> str:
    """A stranger's text, fit to stand in one line."""
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return "".join(c if c.isprintable() else " " for c in cut)
