"""Selection: which artifacts are meant, by what their headers and key records say. For purges and lists.

All that is given must hold; within one field any of its values will do. An empty selection means everything, so whoever
deletes by one asks first whether it is `empty`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from coldstart.artifact import Header
from coldstart.identity.key import KeyRecord
from coldstart.identity.used_rules import used_rules
from coldstart.store.kept import Kept


@dataclass(frozen=True, slots=True)
class Selection:
    """Empty fields ask for nothing."""

    keys: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()  # patterns with * and ?
    programs: tuple[str, ...] = ()  # patterns of program names
    platforms: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()  # text that is in the compiler's build, or in the target
    rules: tuple[str, ...] = ()  # that took something out of the program, by its key record
    made_before_unix: float = 0.0  # by the publisher's clock
    made_after_unix: float = 0.0
    unused_since_unix: float = 0.0  # last used before; where a tier doesn't know, made before

    @property
    def empty(self) -> bool:
        """True: it means everything."""
        return not any(getattr(self, field.name) for field in fields(self))

    @property
    def needs_record(self) -> bool:
        return bool(self.rules)

    def means(self, kept: Kept, record: KeyRecord | None) -> bool:
        """`record` is looked at only where `needs_record`; without one, no rule is known to have been used."""
        header = kept.header
        if self.keys and header.key not in self.keys:
            return False
        if self.digests and header.digest not in self.digests:
            return False
        if self.platforms and header.platform not in self.platforms:
            return False
        if self.producers and not any(
            _any_like(name, self.producers) for name in _producers(header)
        ):
            return False
        if self.programs and not _any_like(header.program_name, self.programs):
            return False
        if self.compilers and not any(
            text in header.compiler or text in header.target for text in self.compilers
        ):
            return False
        if self.made_before_unix and header.created_unix >= self.made_before_unix:
            return False
        if self.made_after_unix and header.created_unix <= self.made_after_unix:
            return False
        used_unix = kept.used_unix or header.created_unix
        if self.unused_since_unix and used_unix >= self.unused_since_unix:
            return False
        if self.rules:
            return record is not None and not used_rules(record).isdisjoint(self.rules)
        return True


def _producers(header: Header) -> tuple[str, ...]:
    """Who published it: as the client called itself, and as a signature says, which nobody has checked here."""
    try:
        signed = json.loads(header.signature or b"{}").get("producer", "")
    except (ValueError, AttributeError, RecursionError):
        signed = ""
    return (header.producer, *([signed] if isinstance(signed, str) and signed else []))


def _any_like(text: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
