"""Admin service: the daemon's numbers, and what it remembers of programs, translated. No policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from coldstart import wire
from coldstart.errors import InvalidRequest
from coldstart.identity.nearest import nearest
from coldstart.rpc.v1 import admin_pb2, admin_pb2_grpc
from coldstart.server.activity_wire import activity_reply
from coldstart.server.lookups import Lookups
from coldstart.server.standing import Snapshot, Standing
from coldstart.server.upkeep import Upkeep
from coldstart.server.upkeep_wire import replies, selection_from_pb
from coldstart.store.names import check_key

MAX_DESCRIPTORS_BYTES = 32 << 20  # of one reply
MAX_NEAREST = 100
DEFAULT_ROWS = 50


class AdminServicer(admin_pb2_grpc.AdminServicer):
    """Stats for the CLI and the dashboard; programs for `explain`."""

    def __init__(
        self,
        standing: Standing,
        lookups: Lookups,
        upkeep: Upkeep,
        tidy: Callable[[], Awaitable[int]],
    ) -> None:
        self._standing = standing
        self._lookups = lookups
        self._upkeep = upkeep
        self._tidy = tidy

    async def Stats(self, request: admin_pb2.StatsRequest, context: Any) -> admin_pb2.StatsReply:
        return stats_reply(await self._standing.snapshot())

    async def Activity(
        self, request: admin_pb2.ActivityRequest, context: Any
    ) -> admin_pb2.ActivityReply:
        limit = request.limit or DEFAULT_ROWS
        return activity_reply(self._standing.activity, self._lookups.compiling(), limit)

    async def GetDescriptor(
        self, request: admin_pb2.GetDescriptorRequest, context: Any
    ) -> admin_pb2.GetDescriptorReply:
        check_key(request.key)
        programs = self._lookups.programs.programs(request.key)
        reply = admin_pb2.GetDescriptorReply(remembered=len(programs))
        left = MAX_DESCRIPTORS_BYTES
        for program in programs[: request.limit or None]:
            left -= len(program.descriptor)
            if left < 0:
                break
            reply.programs.add(
                raw_digest=program.raw_digest,
                descriptor=program.descriptor,
                rewrites=[wire.rewrite_to_pb(rewrite) for rewrite in program.alias.rewrites or ()],
                abandoned=program.alias.abandoned,
            )
        return reply

    async def Nearest(
        self, request: admin_pb2.NearestRequest, context: Any
    ) -> admin_pb2.NearestReply:
        record = await self._lookups.record(request.key)
        if record is None:
            raise InvalidRequest(
                f"{request.key[:16]} has no record here, so there is nothing to compare with"
            )
        others = [(k, r) for k, r in self._lookups.programs.records() if k != request.key]
        limit = min(request.limit or 1, MAX_NEAREST)
        found = await asyncio.to_thread(nearest, record, others, limit)
        return admin_pb2.NearestReply(
            keys=[admin_pb2.NearKey(key=k, record=wire.record_to_pb(r)) for k, r in found],
            searched=len(others),
        )

    async def ListStored(
        self, request: admin_pb2.ListStoredRequest, context: Any
    ) -> AsyncIterator[admin_pb2.UpkeepReply]:
        selection = selection_from_pb(request.selection)
        rows = self._upkeep.stored(selection, request.selection.tiers)
        async for reply in replies(rows, at_once=False):
            yield reply

    async def Purge(
        self, request: admin_pb2.PurgeRequest, context: Any
    ) -> AsyncIterator[admin_pb2.UpkeepReply]:
        selection, tiers = selection_from_pb(request.selection), request.selection.tiers
        if request.negatives and not request.dry_run:
            yield admin_pb2.UpkeepReply(negatives=self._upkeep.forget_negatives(selection.keys))
        if selection.empty and not request.everything:
            if request.negatives:
                return
            raise InvalidRequest("nothing is selected; say that everything is meant, or what is")
        rows = self._upkeep.purge(selection, tiers, dry_run=request.dry_run)
        async for reply in replies(rows, at_once=False):
            yield reply

    async def Tidy(self, request: admin_pb2.TidyRequest, context: Any) -> admin_pb2.TidyReply:
        return admin_pb2.TidyReply(removed=await self._tidy())

    async def Verify(
        self, request: admin_pb2.VerifyRequest, context: Any
    ) -> AsyncIterator[admin_pb2.UpkeepReply]:
        selection = selection_from_pb(request.selection)
        rows = self._upkeep.verify(selection, request.selection.tiers, put_aside=request.put_aside)
        async for reply in replies(rows, at_once=True):
            yield reply


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
                trouble=tier.trouble,
            )
            for tier in now.tiers
        ],
        events=[
            admin_pb2.Event(unix_seconds=event.unix_seconds, kind=event.kind, message=event.message)
            for event in tally.events
        ],
        leases_kept=now.leases_kept,
        leases_trouble=now.leases_trouble,
        fleet=now.fleet,
    )
