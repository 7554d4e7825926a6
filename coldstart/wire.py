"""protobuf ↔ domain, both directions, for client and server. No policy, no I/O.

Enums travel by name: `Reason.NEGATIVE_OOM` is `REASON_NEGATIVE_OOM`. A word of a newer peer that is not known here
becomes `Outcome.ERROR` / `Reason.VERSION`, which is what it is.
"""

from __future__ import annotations

from enum import StrEnum

from coldstart.errors import InvalidRequest
from coldstart.identity.final import FinalParts
from coldstart.identity.key import Component, KeyRecord
from coldstart.identity.rewrite import Rewrite
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb


class Mode(StrEnum):
    """What a client does with the cache; ordered from the least to the most."""

    OBSERVE = "observe"  # key and record, never load
    EXACT = "exact"  # no rewrites
    CANONICAL = "canonical"  # rewrites where a rule proves them


class KeyState(StrEnum):
    """What a batch lookup says of one key."""

    ABSENT = "absent"
    PRESENT = "present"
    LEASED = "leased"
    NEGATIVE = "negative"


def outcome_to_pb(outcome: Outcome) -> pb.Outcome:
    value: pb.Outcome = getattr(pb, f"OUTCOME_{outcome.name}")
    return value


def outcome_from_pb(value: int) -> Outcome:
    name = _name(pb.Outcome, value).removeprefix("OUTCOME_")
    return Outcome[name] if name in Outcome.__members__ else Outcome.ERROR


def reason_to_pb(reason: Reason) -> pb.Reason:
    value: pb.Reason = getattr(pb, f"REASON_{reason.name}")
    return value


def reason_from_pb(value: int) -> Reason:
    name = _name(pb.Reason, value).removeprefix("REASON_")
    return Reason[name] if name in Reason.__members__ else Reason.VERSION


def mode_to_pb(mode: Mode) -> pb.Mode:
    value: pb.Mode = getattr(pb, f"MODE_{mode.name}")
    return value


def mode_from_pb(value: int) -> Mode:
    """Unspecified or unknown reads as observe: the least."""
    name = _name(pb.Mode, value).removeprefix("MODE_")
    return Mode[name] if name in Mode.__members__ else Mode.OBSERVE


def key_state_to_pb(state: KeyState) -> pb.KeyState:
    value: pb.KeyState = getattr(pb, f"KEY_STATE_{state.name}")
    return value


def key_state_from_pb(value: int) -> KeyState:
    name = _name(pb.KeyState, value).removeprefix("KEY_STATE_")
    return KeyState[name] if name in KeyState.__members__ else KeyState.ABSENT


def record_to_pb(record: KeyRecord) -> pb.KeyRecord:
    return pb.KeyRecord(
        scheme=record.scheme,
        components=[
            pb.Component(name=c.name, value=c.value, detail=c.detail) for c in record.components
        ],
        program_name=record.program_name,
        versions=dict(record.versions),
        notes=record.notes,
    )


def record_from_pb(message: pb.KeyRecord) -> KeyRecord:
    """Raises InvalidRequest where the components are not those of the scheme."""
    if not message.scheme:
        raise InvalidRequest("a key record names its scheme")
    return KeyRecord(
        components=tuple(Component(c.name, c.value, c.detail) for c in message.components),
        program_name=message.program_name,
        versions=tuple(sorted(message.versions.items())),
        notes=tuple(message.notes),
        scheme=message.scheme,
    )


def final_parts_from_pb(message: pb.KeyRecord) -> FinalParts:
    """A final program's record without its program. Raises InvalidRequest."""
    if not message.scheme:
        raise InvalidRequest("a key record names its scheme")
    return FinalParts(
        components=tuple(Component(c.name, c.value, c.detail) for c in message.components),
        scheme=message.scheme,
        program_name=message.program_name,
        versions=tuple(sorted(message.versions.items())),
        notes=tuple(message.notes),
    )


def rewrite_to_pb(rewrite: Rewrite) -> pb.Rewrite:
    return pb.Rewrite(
        rule=rewrite.rule,
        function=rewrite.function,
        op=rewrite.op,
        attribute=rewrite.attribute,
        value=rewrite.value,
        reason=rewrite.reason,
    )


def rewrite_from_pb(message: pb.Rewrite) -> Rewrite:
    return Rewrite(
        message.rule,
        message.function,
        message.op,
        message.attribute,
        message.value,
        message.reason,
    )


def _name(enum: object, value: int) -> str:
    try:
        return str(enum.Name(value))  # type: ignore[attr-defined]
    except ValueError:
        return ""
