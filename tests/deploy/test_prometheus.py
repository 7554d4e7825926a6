"""A real Prometheus scrapes a real daemon: all queries of the dashboard have data; no alert fires where all is well."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_daemon import Shown

from coldstart.outcomes import Outcome, Reason

DEPLOY = Path(__file__).parents[2] / "deploy"
READY_SECONDS = 60
JOB = "coldstart"


def program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"this test needs Debian's prometheus ({name}): apt-get install prometheus"
    return found


@pytest.mark.parametrize(
    "command", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")]
)
def test_promtool(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [program("promtool"), *command],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


class Prometheus:
    """A server of its own, scraping every second."""

    def __init__(self, folder: Path, target: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.where = f"127.0.0.1:{probe.getsockname()[1]}"
        config = folder / "prometheus.yml"
        settings = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(DEPLOY / "prometheus" / "alerts.yml")],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": [target]}]}],
        }
        config.write_text(json.dumps(settings))  # JSON is YAML
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address={self.where}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(
            f"http://{self.where}/api/v1/{path}?{query}", timeout=10
        ) as reply:
            return json.load(reply)["data"]

    def scraped(self, times: int) -> None:
        ends = time.monotonic() + READY_SECONDS
        while True:
            assert time.monotonic() < ends and self.process.poll() is None
            try:
                found = self.ask("query", query=f'count_over_time(up{{job="{JOB}"}}[10m])')[
                    "result"
                ]
            except OSError:
                found = []
            if found and float(found[0]["value"][1]) >= times:
                return
            time.sleep(0.2)


@pytest.fixture(scope="module")
def scraping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    place = folder / "daemon"
    place.mkdir()
    with Shown(place) as daemon:
        server = Prometheus(folder, daemon.health)
        try:
            server.scraped(3)  # zeros first: then what comes is an increase
            daemon.publish("prefill")
            daemon.publish("decode")
            for _ in range(3):
                daemon.finish("decode", Outcome.HIT, Reason.OK, seconds=2.0)
            server.scraped(8)
            yield server
        finally:
            server.process.terminate()
            server.process.wait(20)


def test_every_query_of_the_dashboard_has_data(scraping: Prometheus) -> None:
    board = json.loads((DEPLOY / "grafana" / "coldstart.json").read_text())
    empty = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for name, value in (
                ("$__rate_interval", "1m"), ("$__range", "10m"), ("$job", ".*"), ("$instance", ".*")
            ):  # fmt: skip
                query = query.replace(name, value)
            assert "$" not in query
            if not scraping.ask("query", query=query)["result"]:
                empty.append((panel["title"], query))
    # Nothing but a store over a network has a breaker.
    assert [title for title, _ in empty] == ["Breakers and boards"] and "breaker" in empty[0][1]


def test_the_dashboard_says_what_the_daemon_counted(scraping: Prometheus) -> None:
    def value(query: str) -> float:
        (one,) = scraping.ask("query", query=query)["result"]
        return float(one["value"][1])

    assert value('sum(coldstart_lookups_total{outcome="hit"})') == 3
    assert value('coldstart_lookups_total{reason="cold"}') == 2
    assert value("coldstart_compile_seconds_needed_total") == 10


def test_no_alert_fires_where_all_is_well(scraping: Prometheus) -> None:
    groups = scraping.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 10 and all(rule["health"] == "ok" for rule in rules), rules
    assert [rule["name"] for rule in rules if rule["state"] != "inactive"] == []
