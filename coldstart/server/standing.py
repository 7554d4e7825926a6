"""Standing: how the daemon stands now, gathered for whoever shows it (Stats, the page, Prometheus)."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from coldstart import __version__
from coldstart.identity.key import SCHEME
from coldstart.metrics import Reading
from coldstart.outcomes import Outcome
from coldstart.server.activity import Activity
from coldstart.server.holdings import Holdings, TierStanding
from coldstart.server.lookups import Lookups
from coldstart.server.loop_lag import LoopLag
from coldstart.server.tally import Tally
from coldstart.wire import Mode


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment's numbers; `tally` is the live one."""

    version: str
    pid: int
    uptime_seconds: float
    mode: Mode
    addresses: tuple[str, ...]
    open_lookups: int
    open_leases: int
    tally: Tally
    tiers: tuple[TierStanding, ...]
    leases_kept: str  # local, redis or gcs
    leases_trouble: str  # why they are this daemon's alone for now
    waiting: int  # calls
    negatives: int
    loop_lag_seconds: float
    page_streams: int
    fleet: Mapping[str, float]  # `counted` of all daemons that share a Redis; empty without one


@dataclass(slots=True)
class CallCounts:
    """Calls by method and status. An Edge's recorder."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def __call__(self, method: str, status: str, seconds: float) -> None:
        self.calls[method, status] += 1
        self.seconds[method] += seconds  # type: ignore[assignment]  # Counter's values may be floats


class Standing:
    """Reads the parts; changes nothing."""

    def __init__(
        self,
        lookups: Lookups,
        holdings: Holdings,
        tally: Tally,
        calls: CallCounts,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookups = lookups
        self._holdings = holdings
        self._tally = tally
        self._calls = calls
        self._now = now
        self._began = now()
        self.addresses: tuple[str, ...] = ()  # once they are known
        self.leases_kept, self.leases_trouble = "local", ""
        self.loop_lag = LoopLag()
        self.page_streams: Callable[[], int] = int
        self.fleet: Callable[[], Mapping[str, float]] = (
            dict  # sums of all daemons that share a Redis
        )

    @property
    def activity(self) -> Activity:
        return self._tally.activity

    @property
    def degraded(self) -> tuple[str, ...]:
        """Names of tiers that are in trouble, and `leases`. Asks nobody, so it takes no time."""
        names = self._holdings.troubles
        return (*names, "leases") if self.leases_trouble else names

    async def snapshot(self) -> Snapshot:
        return self._snapshot(await self._holdings.standing())

    def _snapshot(self, tiers: tuple[TierStanding, ...]) -> Snapshot:
        return Snapshot(
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=self._now() - self._began,
            mode=self._lookups.mode,
            addresses=self.addresses,
            open_lookups=self._lookups.open_lookups,
            open_leases=self._lookups.open_leases,
            tally=self._tally,
            tiers=tiers,
            leases_kept=self.leases_kept,
            leases_trouble=self.leases_trouble,
            waiting=self._lookups.waiting,
            negatives=self._lookups.negatives,
            loop_lag_seconds=self.loop_lag.worst_seconds,
            page_streams=self.page_streams(),
            fleet=self.fleet(),
        )


def counted(tally: Tally) -> dict[str, float]:
    """What is summed over a fleet; names as in `coldstart stats --json`."""
    ends: Counter[str] = Counter()
    for (outcome, _, _), count in tally.lookups.items():
        ends[outcome.value] += count
    return {
        **{f"lookups.{outcome}": float(count) for outcome, count in ends.items()},
        "compiles": float(tally.compiles),
        "compile_seconds": tally.compile_seconds,
        "compile_seconds_saved": tally.compile_seconds_saved,
    }


# There from the start, of each tier: a rate over a series that appears late misses its first events.
_FAILED = ("error", "timeout", "open", "corrupt")
OPERATIONS = {
    "find": ("hit", "miss", *_FAILED),
    "get": ("hit", "miss", *_FAILED),
    "put": ("ok", "adopted", "full", "too-large", *_FAILED),
    "write-back": ("ok", "dropped", "error"),
    "evict": ("ok",),
    "quarantine": ("ok",),
}


def readings(now: Snapshot, calls: CallCounts, holdings: Holdings) -> Iterator[Reading]:
    """A snapshot under the metrics' names."""
    tally = now.tally
    by_reason: Counter[tuple[str, str]] = Counter()
    by_tier: Counter[str] = Counter()
    for (outcome, reason, tier), count in tally.lookups.items():
        by_reason[outcome.value, reason.value] += count
        if outcome is Outcome.HIT:
            by_tier[tier or "unknown"] += count
    yield from (("coldstart_lookups_total", labels, n) for labels, n in by_reason.items())
    for name in holdings.tier_names:
        by_tier.setdefault(name, 0)
    yield from (("coldstart_hits_total", (tier,), n) for tier, n in by_tier.items())
    yield from (("coldstart_events_total", (kind,), n) for kind, n in tally.event_counts.items())
    for name, value in (
        ("coldstart_lookups_open", now.open_lookups),
        ("coldstart_leases_open", now.open_leases),
        ("coldstart_compiles_total", tally.compiles),
        ("coldstart_publishes_adopted_total", tally.adopted),
        ("coldstart_lease_takeovers_total", tally.takeovers),
        ("coldstart_compile_seconds_total", tally.compile_seconds),
        ("coldstart_compile_seconds_saved_total", tally.compile_seconds_saved),
        ("coldstart_wait_seconds_total", tally.wait_seconds),
        ("coldstart_fetch_seconds_total", tally.fetch_seconds),
        ("coldstart_load_seconds_total", tally.load_seconds),
        ("coldstart_identify_seconds_total", tally.identify_seconds),
        ("coldstart_uptime_seconds", now.uptime_seconds),
        (
            "coldstart_compile_seconds_needed_total",
            tally.compile_seconds + tally.compile_seconds_saved,
        ),
        ("coldstart_waiters", now.waiting),
        ("coldstart_negative_entries", now.negatives),
        ("coldstart_publish_bytes_total", tally.published_bytes),
        ("coldstart_write_backs_pending", holdings.late_puts),
        ("coldstart_event_loop_lag_seconds", now.loop_lag_seconds),
        ("coldstart_page_streams", now.page_streams),
        ("coldstart_leases_alone", bool(now.leases_trouble)),
        ("coldstart_redis_oom_total", holdings.counts.operations["redis", "oom", "full"]),
    ):
        yield name, (), float(value)
    yield "coldstart_build_info", (now.version, SCHEME, now.mode.value), 1.0
    for way, size in tally.served_bytes.items():
        yield "coldstart_served_bytes_total", (way,), float(size)
    for tier, circuit, is_open in holdings.circuits():
        yield "coldstart_breaker_open", (tier, circuit), float(is_open)
    for tier in holdings.tier_names:
        for op, words in OPERATIONS.items():
            yield from (
                ("coldstart_tier_operations_total", (tier, op, word), 0.0) for word in words
            )
    for (tier, op, word), count in holdings.counts.operations.items():
        yield "coldstart_tier_operations_total", (tier, op, word), count
    for (tier, op), seconds in holdings.counts.seconds.items():
        yield "coldstart_tier_operation_seconds_total", (tier, op), seconds
    for standing in now.tiers:
        labels = (standing.name,)
        if standing.bytes >= 0:
            yield "coldstart_tier_bytes", labels, standing.bytes
        if standing.artifacts >= 0:
            yield "coldstart_tier_artifacts", labels, standing.artifacts
        yield "coldstart_tier_limit_bytes", labels, standing.limit_bytes
        yield "coldstart_tier_up", labels, 0.0 if standing.trouble else 1.0
    for (method, status), count in calls.calls.items():
        yield "coldstart_rpc_calls_total", (method, status), count
    for method, seconds in calls.seconds.items():
        yield "coldstart_rpc_seconds_total", (method,), seconds
