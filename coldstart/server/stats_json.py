"""The daemon's numbers as JSON: what `coldstart stats --json` prints and `/api/stats` serves.

Fields are added, never renamed; tests/cli/golden/stats.json holds their names and types.

    hits, finished_lookups, hit_rate    hit_rate = hits / finished_lookups; null while nothing has finished
    lookups                             one entry per outcome, reason and (of hits) tier
    compile_seconds                     spent by clients, as they said
    compile_seconds_saved               recorded compile seconds of the artifacts that were hit
    tiers[].artifacts, tiers[].bytes    -1: not known
    fleet                               sums of all daemons that share a Redis, some seconds old; {} without one
    tiers[].trouble, leases_trouble     what is wrong now, in words; "" where nothing is
"""

from __future__ import annotations

from typing import Any

from coldstart import wire
from coldstart.outcomes import Outcome
from coldstart.rpc.v1 import admin_pb2


def stats_json(reply: admin_pb2.StatsReply) -> dict[str, Any]:
    """Plain data, in the order in which it is shown."""
    lookups = [
        {
            "outcome": wire.outcome_from_pb(count.outcome).value,
            "reason": wire.reason_from_pb(count.reason).value,
            "tier": count.tier,
            "count": count.count,
        }
        for count in reply.lookups
    ]
    finished = sum(count.count for count in reply.lookups)
    hits = sum(
        count.count for count in reply.lookups if wire.outcome_from_pb(count.outcome) is Outcome.HIT
    )
    return {
        "version": reply.version,
        "pid": reply.pid,
        "uptime_seconds": reply.uptime_seconds,
        "mode": wire.mode_from_pb(reply.mode).value,
        "addresses": list(reply.addresses),
        "hits": hits,
        "finished_lookups": finished,
        "hit_rate": hits / finished if finished else None,
        "lookups": lookups,
        "open_lookups": reply.open_lookups,
        "leases": reply.leases,
        "leases_kept": reply.leases_kept,
        "leases_trouble": reply.leases_trouble,
        "fleet": dict(sorted(reply.fleet.items())),
        "compiles": reply.compiles,
        "compile_seconds": reply.compile_seconds,
        "compile_seconds_saved": reply.compile_seconds_saved,
        "wait_seconds": reply.wait_seconds,
        "load_seconds": reply.load_seconds,
        "fetch_seconds": reply.fetch_seconds,
        "identify_seconds": reply.identify_seconds,
        "tiers": [
            {
                "name": tier.name,
                "url": tier.url,
                "artifacts": tier.artifacts,
                "bytes": tier.bytes,
                "limit_bytes": tier.limit_bytes,
                "operations": dict(sorted(tier.operations.items())),
                "trouble": tier.trouble,
            }
            for tier in reply.tiers
        ],
        "events": [
            {"unix_seconds": event.unix_seconds, "kind": event.kind, "message": event.message}
            for event in reply.events
        ],
    }
