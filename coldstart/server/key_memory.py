"""KeyMemory: what was once seen of a key. Tells "evicted" from "cold", and how long a compile takes. Bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from coldstart.artifact import Header
from coldstart.server.tally import Tally

MAX_KEYS = 100_000


@dataclass(frozen=True, slots=True)
class Known:
    """The latest artifact that was seen of a key."""

    digest: str
    variant: str
    compile_seconds: float


class KeyMemory:
    """By key, least recently seen first."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._known: OrderedDict[str, Known] = OrderedDict()

    def get(self, key: str) -> Known | None:
        return self._known.get(key)

    def replaced_on_purpose(self, key: str) -> None:
        """What was known of it was purged: another digest is no surprise."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = replace(known, digest="")

    def see(self, header: Header) -> None:
        """An artifact was served or stored. Another digest than before is an event: somebody replaced it."""
        before = self._known.pop(header.key, None)
        known = Known(header.digest, header.variant, header.compile_seconds)
        if (
            before is not None
            and before.variant == known.variant
            and before.digest not in ("", known.digest)
        ):
            self._tally.event(
                "replaced", f"{header.key[:16]}: {before.digest[:12]} by {known.digest[:12]}"
            )
        self._known[header.key] = known
        while len(self._known) > MAX_KEYS:
            self._known.popitem(last=False)
