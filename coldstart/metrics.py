"""Every metric: its name, labels and what to do about it. Nothing is counted here.

The daemon's tally is read when somebody scrapes, so Prometheus, Stats and the page can't disagree. Known label
sets are there from the start, at zero: a rate over a series that appears late would miss its first events.
The registry is the caller's; the library's global one is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coldstart.outcomes import Outcome, Reason

if TYPE_CHECKING:  # optional: the extra `daemon`
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    kind: str  # counter or gauge
    labels: tuple[str, ...]
    help: str
    known: tuple[tuple[str, ...], ...] = ((),)  # label sets that exist from the start


ERRORS = (
    Reason.CORRUPT,
    Reason.IDENTITY_MISMATCH,
    Reason.GROUP_MISMATCH,
    Reason.SIGNATURE,
    Reason.KEY_MISMATCH,
    Reason.TARGET_MISMATCH,
    Reason.PARTITIONS,
    Reason.CPU_FEATURES,
    Reason.CODEC,
    Reason.FORMAT,
    Reason.TIER_DOWN,
    Reason.BREAKER_OPEN,
    Reason.LEASE_LOST,
)
REFUSALS = (
    Reason.CALLBACKS,
    Reason.POINTER,
    Reason.LATE_FLAGS,
    Reason.PGLE,
    Reason.DEVICE_COORDINATES,
    Reason.UNSHAREABLE,
    Reason.TOO_SMALL,
    Reason.TOO_LARGE,
    Reason.QUOTA,
    Reason.ROLE,
    Reason.NEGATIVE_COMPILE,
    Reason.NEGATIVE_OOM,
    Reason.NEGATIVE_TIMEOUT,
    Reason.NEGATIVE_CRASH,
    Reason.MODE_OBSERVE,
    Reason.DISABLED,
    Reason.VERSION,
)
# Which reasons go with which outcome. Other pairs are counted as well, from their first time on.
PAIRS: Mapping[Outcome, tuple[Reason, ...]] = {
    Outcome.HIT: (Reason.OK, Reason.WAITED),
    Outcome.MISS: (Reason.COLD, Reason.EVICTED),
    Outcome.ERROR: ERRORS,
    Outcome.TIMEOUT: (Reason.DEADLINE, Reason.DAEMON_ABSENT),
    Outcome.REFUSED: REFUSALS,
}

CATALOGUE: tuple[Metric, ...] = (
    Metric(
        "coldstart_lookups_total",
        "counter",
        ("outcome", "reason"),
        "Finished lookups. Misses that stay high after a warm-up: compare keys with `coldstart explain`.",
        tuple((o.value, r.value) for o, reasons in PAIRS.items() for r in reasons),
    ),
    Metric(
        "coldstart_hits_total",
        "counter",
        ("tier",),
        "Hits by the tier that had the artifact. Few from the first tier: its limit is too low.",
        (),
    ),
    Metric(
        "coldstart_lookups_open",
        "gauge",
        (),
        "Lookups that have not ended. Growing without leases: clients die before they say how it ended.",
    ),
    Metric(
        "coldstart_leases_open",
        "gauge",
        (),
        "Compiles in progress under a lease. Long high with no publishes: look at lease-expired events.",
    ),
    Metric(
        "coldstart_compiles_total",
        "counter",
        (),
        "Compiles that were offered to this daemon. More than one a key: look for adopted publishes.",
    ),
    Metric(
        "coldstart_publishes_adopted_total",
        "counter",
        (),
        "Publishes that found an artifact already there. Many: leases are being lost, see takeovers.",
    ),
    Metric(
        "coldstart_lease_takeovers_total",
        "counter",
        (),
        "Leases that went to a waiter since their holder was silent. Many: compiling processes die.",
    ),
    Metric(
        "coldstart_compile_seconds_total",
        "counter",
        (),
        "Seconds that clients spent compiling, as they said.",
    ),
    Metric(
        "coldstart_compile_seconds_saved_total",
        "counter",
        (),
        "Recorded compile seconds of the artifacts that were hit: what the cache is worth.",
    ),
    Metric(
        "coldstart_compile_seconds_needed_total",
        "counter",
        (),
        "Saved and spent together: what clients would have compiled without a cache.",
    ),
    Metric(
        "coldstart_waiters",
        "gauge",
        (),
        "Calls that wait for somebody's compile now. Many for long: a holder compiles slowly, or is frozen.",
    ),
    Metric(
        "coldstart_negative_entries",
        "gauge",
        (),
        "Notes that a compile failed. Growing: `coldstart purge --negative` once the cause is gone.",
    ),
    Metric(
        "coldstart_publish_bytes_total",
        "counter",
        (),
        "Bytes of artifacts that were published here.",
    ),
    Metric(
        "coldstart_served_bytes_total",
        "counter",
        ("way",),
        "Bytes of hits. Mostly by stream on a host with a disk: clients don't see the volume.",
        (("path",), ("stream",)),
    ),
    Metric(
        "coldstart_write_backs_pending",
        "gauge",
        (),
        "Puts that a tier has still to be given. Growing: that tier takes nothing; see its trouble.",
    ),
    Metric(
        "coldstart_breaker_open",
        "gauge",
        ("tier", "circuit"),
        "1 while a tier is not asked as it failed too often. For long: see the tier's own health.",
        (),
    ),
    Metric(
        "coldstart_event_loop_lag_seconds",
        "gauge",
        (),
        "The worst delay of the last minute. Above 0.1: something blocks every client; look at the CPU limit.",
    ),
    Metric(
        "coldstart_page_streams",
        "gauge",
        (),
        "Pages that are open. At their limit new ones are refused.",
    ),
    Metric(
        "coldstart_build_info",
        "gauge",
        ("version", "scheme", "mode"),
        "Always 1. Two versions or schemes in one fleet: an update is under way, or was left half done.",
        (),
    ),
    Metric(
        "coldstart_wait_seconds_total",
        "counter",
        (),
        "Seconds that clients waited for somebody's compile.",
    ),
    Metric(
        "coldstart_fetch_seconds_total",
        "counter",
        (),
        "Seconds that clients spent getting bytes. High on one host: clients there don't see the volume.",
    ),
    Metric(
        "coldstart_load_seconds_total",
        "counter",
        (),
        "Seconds that clients spent loading executables.",
    ),
    Metric(
        "coldstart_identify_seconds_total",
        "counter",
        (),
        "Seconds that clients spent making keys.",
    ),
    Metric(
        "coldstart_events_total",
        "counter",
        ("kind",),
        "Things an operator should know of; `coldstart stats` shows the latest in words.",
        tuple(
            (kind,)
            for kind in (
                "replaced",
                "quarantined",
                "lease-expired",
                "lease-lost",
                "not-canonicalized",
                Reason.TIER_DOWN.value,
                "tier-up",
                "leases-alone",
                "trust-file",
                Reason.SIGNATURE.value,
                Reason.ROLE.value,
                "leases-shared",
                Reason.GROUP_MISMATCH.value,
            )
        ),
    ),
    Metric(
        "coldstart_tier_operations_total",
        "counter",
        ("tier", "operation", "outcome"),
        "What was asked of a tier and what came of it. Errors or timeouts: see the tier's own health.",
        (),
    ),
    Metric(
        "coldstart_tier_operation_seconds_total",
        "counter",
        ("tier", "operation"),
        "Seconds that tiers took.",
        (),
    ),
    Metric(
        "coldstart_tier_bytes",
        "gauge",
        ("tier",),
        "Bytes held. At its limit with evictions: raise cs.limit.",
        (),
    ),
    Metric(
        "coldstart_tier_limit_bytes",
        "gauge",
        ("tier",),
        "The most that a tier may hold; 0: no limit.",
        (),
    ),
    Metric(
        "coldstart_tier_up",
        "gauge",
        ("tier",),
        "1 while nothing is known to be wrong with a tier. 0: `coldstart stats` says what, in words.",
        (),
    ),
    Metric(
        "coldstart_leases_alone",
        "gauge",
        (),
        "1 while the fleet's lease board can't be asked: hosts compile for themselves. See the tier's health.",
    ),
    Metric(
        "coldstart_redis_oom_total",
        "counter",
        (),
        "Writes that a full Redis refused: give it more memory, or let it evict (maxmemory-policy allkeys-lru).",
    ),
    Metric("coldstart_tier_artifacts", "gauge", ("tier",), "Artifacts held.", ()),
    Metric(
        "coldstart_rpc_calls_total",
        "counter",
        ("method", "status"),
        "Calls that clients made. INTERNAL is a bug: the log has it in full.",
        (),
    ),
    Metric(
        "coldstart_rpc_seconds_total",
        "counter",
        ("method",),
        "Seconds that calls took; Await waits on purpose.",
        (),
    ),
    Metric("coldstart_uptime_seconds", "gauge", (), "Seconds since the daemon began to listen."),
)

Reading = tuple[str, tuple[str, ...], float]  # a metric's name, its labels' values, its value


class Collector:
    """Hands the catalogue with present values to a Prometheus registry."""

    def __init__(self, read: Callable[[], Iterable[Reading]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        values: dict[str, dict[tuple[str, ...], float]] = {
            metric.name: dict.fromkeys(metric.known, 0.0) for metric in CATALOGUE
        }
        for name, labels, value in self._read():
            values[name][labels] = value
        for metric in CATALOGUE:
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.name, metric.help, labels=metric.labels)
            for labels, value in sorted(values[metric.name].items()):
                family.add_metric(labels, value)
            yield family


def register(registry: CollectorRegistry, read: Callable[[], Iterable[Reading]]) -> None:
    """Put the catalogue into a registry, with values from `read`."""
    registry.register(Collector(read))
