"""deploy/metrics.md, the alerts and the dashboard speak of metrics that exist, and of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from coldstart.metrics import CATALOGUE

DEPLOY = Path(__file__).parents[2] / "deploy"
HEAD = ["| metric | kind | labels | what it says, and what to do |", "|---|---|---|---|"]


def test_the_table_is_the_catalogue() -> None:
    """To write it anew, put these lines between the two marks."""
    wanted = HEAD + [
        f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |" for m in CATALOGUE
    ]
    text = (DEPLOY / "metrics.md").read_text()
    found = text.partition("<!-- metrics -->\n")[2].partition("<!-- /metrics -->")[0].splitlines()
    assert found == wanted, "\n".join(wanted)


def named_in(text: str) -> set[str]:
    return set(re.findall(r"coldstart_[a-z_]+", text))


def test_alerts_and_dashboard_name_only_what_exists() -> None:
    have = {metric.name for metric in CATALOGUE}
    for file in ("prometheus/alerts.yml", "prometheus/alerts.test.yml", "grafana/coldstart.json"):
        named = named_in((DEPLOY / file).read_text())
        assert named and named <= have, (file, named - have)


def test_every_alert_is_documented_and_tested_both_ways() -> None:
    rules = (DEPLOY / "prometheus/alerts.yml").read_text()
    tests = (DEPLOY / "prometheus/alerts.test.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) == len(set(alerts)) >= 10
    rows = re.findall(
        r"^\| (Coldstart\w+) \| (page|ticket) \|", (DEPLOY / "metrics.md").read_text(), re.M
    )
    severities = re.findall(r"labels: {severity: (\w+)}", rules)
    assert rows == list(zip(alerts, severities, strict=True))
    for alert in alerts:
        assert len(re.findall(rf"alertname: {alert}\b", tests)) == 2


def test_the_dashboard_is_whole() -> None:
    board = json.loads((DEPLOY / "grafana/coldstart.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert 'job=~"$job",instance=~"$instance"' in target["expr"]
