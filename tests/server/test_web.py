"""The sites, and that Prometheus, Stats and the page say the same."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import prometheus_client
import pytest

from coldstart import metrics
from coldstart.outcomes import Outcome, Reason


def get(where: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{where}{path}", timeout=10) as reply:
        return reply.read().decode()


def scraped(text: str) -> dict[str, float]:
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_health_site_has_health_and_metrics_only(shared_daemon):
    where = shared_daemon.ready["health"]
    for path in ("/healthz", "/readyz", "/startupz"):
        assert get(where, path) == "ok\n"
    for path in ("/", "/api/stats", "/docs", "/../etc/passwd"):
        with pytest.raises(urllib.error.HTTPError) as missing:
            get(where, path)
        missing.value.close()
        assert missing.value.code == 404


def test_label_sets_are_there_at_zero(start_daemon):
    daemon = start_daemon("--health=127.0.0.1:0")
    values = scraped(get(daemon.ready["health"], "/metrics"))
    for outcome, reasons in metrics.PAIRS.items():
        for reason in reasons:
            name = f'coldstart_lookups_total{{outcome="{outcome}",reason="{reason}"}}'
            assert values[name] == 0
    assert values['coldstart_hits_total{tier="disk"}'] == 0
    assert values["coldstart_leases_open"] == 0


def test_every_reason_goes_with_an_outcome():
    paired = {reason for reasons in metrics.PAIRS.values() for reason in reasons}
    assert paired == set(Reason) and set(metrics.PAIRS) == set(Outcome)


def test_metric_names_and_help():
    for metric in metrics.CATALOGUE:
        assert re.fullmatch(r"coldstart_[a-z_]+", metric.name) and metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter")


def test_nothing_is_put_into_the_global_registry():
    registry = prometheus_client.CollectorRegistry()
    metrics.register(registry, lambda: iter([("coldstart_leases_open", (), 2.0)]))
    assert b"coldstart_leases_open 2.0" in prometheus_client.generate_latest(registry)
    assert b"coldstart" not in prometheus_client.generate_latest(prometheus_client.REGISTRY)


def test_page_api_stats_and_metrics_agree(start_daemon, asking, made):
    daemon = start_daemon("--http=127.0.0.1:0", "--health=127.0.0.1:0")
    record = made.record("<script>alert(1)</script>")
    first = asking(daemon.cache, record)
    first.publish(made.artifact(record), first.lookup().lease.lease_id)
    first.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0)
    for _ in range(3):
        one = asking(daemon.cache, record)
        one.lookup()
        one.finish(Outcome.HIT, Reason.OK, tier="disk")
    api = json.loads(get(daemon.ready["http"], "/api/stats"))
    assert (api["hits"], api["finished_lookups"], api["hit_rate"]) == (3, 4, 0.75)
    page = get(daemon.ready["http"], "/")
    assert "75.0 % (3 hits of 4 finished lookups)" in page and "<script" not in page
    values = scraped(get(daemon.ready["health"], "/metrics"))
    assert values['coldstart_lookups_total{outcome="hit",reason="ok"}'] == 3
    assert values['coldstart_lookups_total{outcome="miss",reason="cold"}'] == 1
    assert values['coldstart_hits_total{tier="disk"}'] == 3
    assert values["coldstart_compile_seconds_saved_total"] == api["compile_seconds_saved"] == 6.0
    assert values["coldstart_compiles_total"] == api["compiles"] == 1
    assert values['coldstart_tier_operations_total{operation="put",outcome="ok",tier="disk"}'] == 1
    assert values['coldstart_rpc_calls_total{method="Lookup",status="OK"}'] == 4
    assert first.key not in get(daemon.ready["health"], "/metrics")  # no names in labels


def test_an_operator_sees_a_holders_name_escaped(start_daemon, asking, new_record):
    daemon = start_daemon(
        "--http=127.0.0.1:0", "--lease-seconds=0.2", "--heartbeat-seconds=0.05", folder="e"
    )
    one = asking(daemon.cache, new_record)
    from coldstart import wire
    from coldstart.rpc.v1 import cache_pb2 as pb

    request = pb.LookupRequest(
        lookup_id=one.id, holder="<b>me</b>", record=wire.record_to_pb(new_record)
    )
    daemon.cache.Lookup(request, timeout=10)
    two = asking(daemon.cache, new_record)
    two.lookup()
    assert two.wait(20).WhichOneof("answer") == "lease"
    page = get(daemon.ready["http"], "/")
    assert "&lt;b&gt;me" in page and "<b>" not in page
