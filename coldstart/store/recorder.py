"""Recorder: how a tier tells what happened, without knowing who counts.

One call per event. `tier` is a tier's name; `op` is one of OPS; `outcome` one of OUTCOMES. No keys: the words
end as metric labels.
"""

from __future__ import annotations

from typing import Protocol

OPS = (
    "find",
    "get",
    "put",
    "record",
    "delete",
    "quarantine",
    "scan",  # a walk over all that is stored
    "backfill",  # a hit copied into a faster tier (chain)
    "evict",  # an artifact gone for want of room
    "oom",  # a write that a full Redis refused
    "heal",  # an index entry without a sound artifact behind it, taken away
    "retry",  # a call made once more; the outcome is what the one before came to
    "breaker",  # opened, or closed again
    "write-back",  # a put made later, as the tier couldn't take it at the time (chain)
)
OUTCOMES = (
    "ok",
    "hit",
    "miss",
    "adopted",
    "error",
    "timeout",
    "full",
    "too-large",
    "too-small",  # compiled too quickly to be given to a tier that hosts share (chain)
    "corrupt",
    "dropped",  # not tried: too much of it was under way
    "open",  # not tried: the breaker is open; of a breaker: it opened
    "closed",  # of a breaker
)


class Recorder(Protocol):
    """Counts one event of one tier."""

    def __call__(self, tier: str, op: str, outcome: str, seconds: float) -> None: ...


def ignore(tier: str, op: str, outcome: str, seconds: float) -> None:
    """A recorder for those who don't count."""
