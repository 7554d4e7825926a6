"""Activity as it goes over the wire."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from coldstart import wire
from coldstart.rpc.v1 import admin_pb2
from coldstart.server.activity import Activity, Compiling


def activity_reply(
    activity: Activity, compiling: Iterable[Compiling], limit: int
) -> admin_pb2.ActivityReply:
    """At most `limit` of each."""
    return admin_pb2.ActivityReply(
        programs=[
            admin_pb2.ProgramSum(
                outcome=wire.outcome_to_pb(one.outcome),
                reason=wire.reason_to_pb(one.reason),
                program_name=one.program_name,
                count=one.count,
                compile_seconds=one.compile_seconds,
            )
            for one in islice(activity.programs(), limit)
        ],
        recent=[
            admin_pb2.MissedLookup(
                unix_seconds=one.unix_seconds,
                outcome=wire.outcome_to_pb(one.outcome),
                reason=wire.reason_to_pb(one.reason),
                program_name=one.program_name,
                key=one.key,
                holder=one.holder,
                compile_seconds=one.compile_seconds,
            )
            for one in islice(reversed(activity.recent), limit)
        ],
        live=[
            admin_pb2.LiveCompile(
                key=one.key,
                program_name=one.program_name,
                holder=one.holder,
                seconds=one.seconds,
                expected_seconds=one.expected_seconds,
            )
            for one in islice(compiling, limit)
        ],
    )
