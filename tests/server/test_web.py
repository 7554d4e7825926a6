"""The site for machines, and the catalogue of metrics. The site for people: test_api.py."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import prometheus_client
import pytest

from coldstart import __version__, metrics
from coldstart.outcomes import Outcome, Reason
from coldstart.server.standing import OPERATIONS


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
    for op, words in OPERATIONS.items():
        for word in words:
            name = f'operation="{op}",outcome="{word}",tier="disk"'
            assert values[f"coldstart_tier_operations_total{{{name}}}"] == 0
    build = f'mode="canonical",scheme="cs1",version="{__version__}"'
    assert values[f"coldstart_build_info{{{build}}}"] == 1
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
