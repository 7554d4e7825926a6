"""Kept: one artifact as a tier's inventory tells it."""

from __future__ import annotations

from dataclasses import dataclass

from coldstart.artifact import Header


@dataclass(frozen=True, slots=True)
class Kept:
    """What lies in one tier. Said by its header, which may be wrong about the payload: nobody has read that."""

    header: Header
    bytes: int  # that it takes there, header and payload
    used_unix: float = 0.0  # its last use; 0: this tier doesn't know
