"""The wire's enums and records match the domain's, in both directions."""

from __future__ import annotations

import pytest

from coldstart import wire
from coldstart.errors import InvalidRequest
from coldstart.identity.key import COMPONENTS, Component, KeyRecord, key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb

RECORD = KeyRecord(
    components=tuple(Component(name, f"value of {name}", "why") for name in COMPONENTS),
    program_name="jit_f",
    versions=(("jax", "0.10.2"),),
    notes=("dropped: locations",),
)


def test_every_reason_and_outcome_is_on_the_wire_and_back() -> None:
    assert {name.removeprefix("REASON_") for name in pb.Reason.keys()} - {"UNSPECIFIED"} == {
        reason.name for reason in Reason
    }
    assert {name.removeprefix("OUTCOME_") for name in pb.Outcome.keys()} - {"UNSPECIFIED"} == {
        outcome.name for outcome in Outcome
    }
    assert [wire.reason_from_pb(wire.reason_to_pb(r)) for r in Reason] == list(Reason)
    assert [wire.outcome_from_pb(wire.outcome_to_pb(o)) for o in Outcome] == list(Outcome)
    assert [wire.mode_from_pb(wire.mode_to_pb(m)) for m in wire.Mode] == list(wire.Mode)
    assert [wire.key_state_from_pb(wire.key_state_to_pb(s)) for s in wire.KeyState] == list(
        wire.KeyState
    )


def test_a_word_of_a_newer_peer_is_a_version_matter_not_a_crash() -> None:
    assert wire.reason_from_pb(4711) is Reason.VERSION
    assert wire.outcome_from_pb(4711) is Outcome.ERROR
    assert wire.mode_from_pb(4711) is wire.Mode.OBSERVE


def test_a_record_keeps_its_key_over_the_wire() -> None:
    message = pb.KeyRecord.FromString(wire.record_to_pb(RECORD).SerializeToString())
    back = wire.record_from_pb(message)
    assert back == RECORD
    assert key_of(back) == key_of(RECORD)


@pytest.mark.parametrize("spoil", ["drop", "rename", "scheme"])
def test_a_record_with_other_components_is_refused(spoil: str) -> None:
    message = wire.record_to_pb(RECORD)
    if spoil == "drop":
        del message.components[-1]
    elif spoil == "rename":
        message.components[0].name = "programme"
    else:
        message.scheme = ""
    with pytest.raises(InvalidRequest):
        wire.record_from_pb(message)
