"""A rewrite: one edit of one attribute of a dead value, with its rule and reason; and what a rule must state.

An op is named by position: its function and its ordinal in a pre-order walk of that function's body. An input's
fragment is named by the entry function, the input's index and the attribute `fragment.offset`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the daemon handles rewrites without NumPy; its workers make them
    from coldstart.identity.descriptor import GraphDescriptor
    from coldstart.identity.liveness import Liveness

FRAGMENT_OFFSET = "fragment.offset"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One edit. `value` is the attribute's new text."""

    rule: str
    function: str
    op: int
    attribute: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One reviewed way in which facts leave the key."""

    name: str
    version: int
    reason: str  # why dropping it loses nothing
    proof: str  # what must hold for each application, and which test shows it
    changes_module: bool  # does the compiled module differ from the caller's?
    find: Callable[[GraphDescriptor, Liveness], Iterator[Rewrite]] | None = None
    """The edits of a rewriting rule; None for normal-form rules, which clients apply."""

    @property
    def id(self) -> str:
        return f"{self.name}@{self.version}"
