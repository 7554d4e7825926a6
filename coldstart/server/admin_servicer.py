"""Admin service: the daemon's numbers, translated. No policy."""

from __future__ import annotations

from typing import Any

from coldstart import wire
from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc
from coldstart.server.standing import Snapshot, Standing


class AdminServicer(admin_pb2_grpc.AdminServicer):
    """Stats for the CLI and the dashboard."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing

    async def Stats(self, request: admin_pb2.StatsRequest, context: Any) -> admin_pb2.StatsReply:
        return stats_reply(await self._standing.snapshot())


def stats_reply(now: Snapshot) -> admin_pb2.StatsReply:
    """A snapshot as it goes over the wire."""
    tally = now.tally
    return admin_pb2.StatsReply(
        version=now.version,
        pid=now.pid,
        uptime_seconds=now.uptime_seconds,
        mode=wire.mode_to_pb(now.mode),
        addresses=now.addresses,
        lookups=[
            admin_pb2.LookupCount(
                outcome=wire.outcome_to_pb(outcome),
                reason=wire.reason_to_pb(reason),
                tier=tier,
                count=count,
            )
            for (outcome, reason, tier), count in sorted(tally.lookups.items())
        ],
        open_lookups=now.open_lookups,
        leases=now.open_leases,
        compiles=tally.compiles,
        compile_seconds=tally.compile_seconds,
        compile_seconds_saved=tally.compile_seconds_saved,
        wait_seconds=tally.wait_seconds,
        load_seconds=tally.load_seconds,
        fetch_seconds=tally.fetch_seconds,
        identify_seconds=tally.identify_seconds,
        tiers=[
            admin_pb2.TierStats(
                name=tier.name,
                url=tier.url,
                artifacts=tier.artifacts,
                bytes=tier.bytes,
                limit_bytes=tier.limit_bytes,
                operations=tier.operations,
            )
            for tier in now.tiers
        ],
        events=[
            admin_pb2.Event(unix_seconds=event.unix_seconds, kind=event.kind, message=event.message)
            for event in tally.events
        ],
    )
