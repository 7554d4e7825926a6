"""/api/v1 over a real daemon: its numbers are those of Stats and /metrics, to the unit; and who may see what."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coldstart import wire
from coldstart.config import DaemonConfig, is_loopback
from coldstart.errors import ConfigError
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb
from coldstart.server.openapi import PATHS, document

SITES = ("--http=127.0.0.1:0", "--health=127.0.0.1:0")
# Markup, control characters, what turns the direction of text, and sheer length.
HOSTILE = "<script>alert(1)</script>\u202e\x07\x1b[31m" + "a" * 200


def get(where: str, path: str, **headers: str) -> tuple[int, Any, http.client.HTTPMessage]:
    request = urllib.request.Request(f"http://{where}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=70) as reply:
            status, body, said = reply.status, reply.read().decode(), reply.headers
    except urllib.error.HTTPError as exc:
        with exc:
            status, body, said = exc.code, exc.read().decode(), exc.headers
    if said.get_content_type() == "application/json":
        return status, json.loads(body), said
    return status, body, said


def api(daemon: Any, path: str, **parameters: object) -> Any:
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    status, body, _ = get(daemon.ready["http"], f"/api/v1/{path}{query}")
    assert status == 200, body
    return body


def scraped(daemon: Any) -> dict[str, float]:
    text = get(daemon.ready["health"], "/metrics")[1]
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def scenario(daemon: Any, asking: Any, made: Any, name: str = HOSTILE) -> str:
    """A miss that publishes, three hits, a refusal, a timeout, an error. The key."""
    record = made.record(name)
    first = asking(daemon.cache, record)
    first.publish(made.artifact(record), first.lookup().lease.lease_id)
    first.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0, program_name=name)
    for _ in range(3):
        one = asking(daemon.cache, record)
        one.lookup()
        one.finish(Outcome.HIT, Reason.OK, tier="disk", program_name=name)
    for n, (outcome, reason) in enumerate(
        (
            (Outcome.REFUSED, Reason.POINTER),
            (Outcome.TIMEOUT, Reason.DEADLINE),
            (Outcome.ERROR, Reason.CORRUPT),
        )
    ):
        one = asking(daemon.cache, made.record(f"{name}{n}"))
        one.finish(outcome, reason, compile_seconds=1.0 + n, program_name=f"other-{n}")
    return first.key


def test_api_stats_and_metrics_agree_to_the_unit(start_daemon: Any, asking: Any, made: Any) -> None:
    daemon = start_daemon(*SITES, "--chips=4")
    key = scenario(daemon, asking, made)
    overview, values, reply = api(daemon, "overview"), scraped(daemon), daemon.stats()
    assert overview["hit_ratio"]["part"] == 3 and overview["hit_ratio"]["whole"] == 7
    assert overview["hit_ratio"]["value"] == 3 / 7
    # Saved: three hits of 2 s. Spent: 2 by the miss, then 1, 2 and 3.
    assert overview["seconds_ratio"] == {
        "value": 6 / 14,
        "part": 6.0,
        "whole": 14.0,
        "words": "compile seconds saved / (saved + spent)",
    }
    assert overview["chip_hours_saved"]["value"] == 6.0 * 4 / 3600
    for count in overview["lookups"]:
        pair = f'outcome="{count["outcome"]}",reason="{count["reason"]}"'
        assert values[f"coldstart_lookups_total{{{pair}}}"] == count["count"]
    assert sum(c["count"] for c in overview["lookups"]) == sum(c.count for c in reply.lookups) == 7
    assert values["coldstart_compile_seconds_total"] == overview["compile_seconds"] == 8.0
    assert values["coldstart_compile_seconds_saved_total"] == reply.compile_seconds_saved == 6.0
    assert values["coldstart_compiles_total"] == overview["compiles"] == reply.compiles == 1
    assert values['coldstart_hits_total{tier="disk"}'] == 3
    assert values["coldstart_compile_seconds_needed_total"] == 14.0
    size = made.artifact(made.record(HOSTILE)).header.payload_bytes
    assert values["coldstart_publish_bytes_total"] == size
    assert values['coldstart_served_bytes_total{way="stream"}'] == 3 * size  # no volume was proved
    assert values['coldstart_served_bytes_total{way="path"}'] == 0
    assert key not in get(daemon.ready["health"], "/metrics")[1]  # no names in labels
    (step,) = api(daemon, "history", minutes=5)["steps"]
    assert step["hits"] == {"disk": 3} and step["others"] == {
        "cold": 1,
        "pointer": 1,
        "deadline": 1,
        "corrupt": 1,
    }
    assert (step["saved_seconds"], step["spent_seconds"]) == (6.0, 8.0)
    old = get(daemon.ready["http"], "/api/stats")[1]
    assert (old["hits"], old["finished_lookups"]) == (3, 7)


def test_misses_name_programs_and_keys(start_daemon: Any, asking: Any, made: Any) -> None:
    daemon = start_daemon(*SITES)
    key = scenario(daemon, asking, made)
    misses = api(daemon, "misses")
    assert [(p["program_name"], p["reason"], p["compile_seconds"]) for p in misses["programs"]] == [
        ("other-2", "corrupt", 3.0),
        ("other-1", "deadline", 2.0),
        (HOSTILE, "cold", 2.0),
        ("other-0", "pointer", 1.0),
    ] or misses["programs"][0]["compile_seconds"] == 3.0
    assert [m["reason"] for m in misses["recent"]] == ["corrupt", "deadline", "pointer", "cold"]
    latest = misses["recent"][-1]
    assert latest["key"] == key and latest["holder"].startswith("test/")
    assert abs(latest["unix_seconds"] - time.time()) < 60
    assert len(api(daemon, "misses", limit=1)["recent"]) == 1


def test_artifacts_are_searched_sorted_and_paged(start_daemon: Any, asking: Any, made: Any) -> None:
    daemon = start_daemon(*SITES)
    for n in range(5):
        record = made.record(f"program-{n}")
        one = asking(daemon.cache, record)
        artifact = made.artifact(record, bytes(100 * n), compile_seconds=float(10 - n))
        one.publish(artifact, one.lookup().lease.lease_id)
        one.finish(Outcome.MISS, Reason.COLD)
    found = api(daemon, "artifacts")
    assert found["total"] == 5 and found["cut"] is False and found["troubles"] == []
    assert [a["program_name"] for a in found["artifacts"]] == [f"program-{n}" for n in range(5)]
    assert all(a["tiers"] == ["disk"] for a in found["artifacts"])
    page = api(daemon, "artifacts", sort="name", offset=1, limit=2)
    assert [a["program_name"] for a in page["artifacts"]] == ["program-1", "program-2"]
    assert [a["program_name"] for a in api(daemon, "artifacts", search="RAM-3")["artifacts"]] == [
        "program-3"
    ]
    one = found["artifacts"][0]
    about = api(daemon, f"artifacts/{one['key']}")
    assert about["artifacts"] == [one] and about["record"]["key"] == one["key"]
    assert about["left_out"] == [] and about["remembered"] == 0


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("artifacts?sort=size", 400, "sort is one of"),
        ("artifacts?limit=0", 400, "limit is a number from 1 to 500"),
        ("artifacts?limit=1e9", 400, "limit is a number"),
        ("artifacts?offset=-1", 400, "offset is a number"),
        ("history?minutes=999999999999999", 400, "minutes is a number"),
        ("artifacts/nothing", 400, "not a key"),
        (f"artifacts/cs1-{'0' * 64}", 404, "no artifact and no record"),
        ("explain", 400, "give left"),
        ("explain?left=x", 400, "not a key"),
        (f"explain?left=cs1-{'0' * 64}&right=--help", 400, "not a key"),
        ("nowhere", 404, "Not Found"),
    ],
)
def test_what_means_nothing_is_said_in_one_line(
    shared_daemon: Any, path: str, status: int, words: str
) -> None:
    code, body, _ = get(shared_daemon.ready["http"], f"/api/v1/{path}")
    assert code == status and words in body["detail"]


def test_nothing_can_be_changed_from_there(shared_daemon: Any) -> None:
    for path in ("/", "/api/v1/overview", "/page/style.css"):
        request = urllib.request.Request(
            f"http://{shared_daemon.ready['http']}{path}", data=b"x", method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        refused.value.close()
        assert refused.value.code == 405


def test_the_document_describes_the_routes(shared_daemon: Any) -> None:
    said = api(shared_daemon, "openapi.json")
    assert said == document() and set(said["paths"]) == set(PATHS)
    for path, (_, _, fields) in PATHS.items():
        if fields and "{" not in path:
            body = get(shared_daemon.ready["http"], path)[1]
            assert set(body) == set(fields), path


def test_explain_is_what_the_command_says(start_daemon: Any, asking: Any, made: Any) -> None:
    daemon = start_daemon(*SITES)
    keys = [scenario(daemon, asking, made, name) for name in ("left", "right")]
    found = api(daemon, "explain", left=keys[0], right=keys[1])
    assert found["same"] is False and found["first"] == "program"
    assert [found[side]["name"] for side in ("left", "right")] == keys
    status, body, _ = get(
        daemon.ready["http"], f"/api/v1/explain?left=cs1-{'0' * 64}&right={keys[0]}"
    )
    assert status == 200 and body["left"]["record"] is None


def test_every_answer_forbids_what_the_page_does_not_need(shared_daemon: Any) -> None:
    for path in ("/", "/page/main.js", "/api/v1/overview", "/api/v1/nowhere"):
        _, _, headers = get(shared_daemon.ready["http"], path)
        policy = headers["Content-Security-Policy"]
        assert (
            policy.startswith("default-src 'none'; script-src 'self'; ") and "unsafe" not in policy
        )
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("localhost:9095", 200),
        ("[::1]:9095", 200),
        ("evil.example", 421),
        ("127.evil.example", 421),
        ("127.0.0.1.evil.example:9095", 421),
        ("", 421),
    ],
)
def test_a_page_elsewhere_can_not_read_this_one(shared_daemon: Any, host: str, status: int) -> None:
    """DNS rebinding: the name is theirs, the address ours."""
    assert get(shared_daemon.ready["http"], "/api/v1/overview", Host=host)[0] == status


def test_a_token_is_needed_where_one_is_set(start_daemon: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-long-enough-token\n")
    daemon = start_daemon(*SITES, f"--http-token-file={file}")
    where = daemon.ready["http"]
    for path in ("/", "/api/v1/overview", "/page/main.js"):
        assert get(where, path)[0] == 401
        assert get(where, path, Authorization="Bearer wrong")[0] == 401
        assert get(where, path, Authorization="Bearer a-long-enough-token")[0] == 200
    connection = http.client.HTTPConnection(where, timeout=10)
    connection.request("GET", "/?token=a-long-enough-token")
    reply = connection.getresponse()
    cookie = reply.headers["Set-Cookie"]
    assert reply.status == 303 and reply.headers["Location"] == "/"
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    connection.close()
    assert get(where, "/", Cookie=cookie.partition(";")[0])[0] == 200
    assert get(where, "/?token=wrong")[0] == 401
    assert get(daemon.ready["health"], "/metrics")[0] == 200  # probes and Prometheus need none


def test_other_hosts_need_a_token() -> None:
    there = DaemonConfig(listen=("unix:///x",), store=("memory://",), http="0.0.0.0:9095")
    with pytest.raises(ConfigError, match="http_token_file"):
        there.validated()
    assert is_loopback("127.0.0.1:1") and is_loopback("[::1]:1") and not is_loopback("10.0.0.1:1")


def test_names_are_hidden_where_asked(start_daemon: Any, asking: Any, made: Any) -> None:
    daemon = start_daemon(*SITES, "--redact=1")
    key = scenario(daemon, asking, made, "secret-model")
    bodies = [
        json.dumps(api(daemon, path))
        for path in ("overview", "stats", "misses", "live", "artifacts", f"artifacts/{key}")
    ]
    for body in bodies:
        assert "secret-model" not in body and "test/" not in body and str(daemon.store) not in body
    named = {program["program_name"] for program in json.loads(bodies[2])["programs"]}
    assert len(named) == 4 and all(name.startswith("#") for name in named)
    assert get(daemon.ready["http"], f"/api/v1/explain?left={key}")[0] == 403


def test_history_survives_a_restart(start_daemon: Any, asking: Any, made: Any) -> None:
    daemon = start_daemon(*SITES)
    scenario(daemon, asking, made)
    assert daemon.stop() == 0
    daemon.start()
    assert api(daemon, "overview")["hit_ratio"]["whole"] == 0
    scenario(daemon, asking, made, "another")
    steps = api(daemon, "history", minutes=10)["steps"]
    assert sum(step["hits"]["disk"] for step in steps) == 6
    assert sum(sum(step["others"].values()) for step in steps) == 8


def test_a_history_that_is_none_costs_the_history_only(
    start_daemon: Any, asking: Any, made: Any
) -> None:
    daemon = start_daemon(*SITES)
    assert daemon.stop() == 0
    file = daemon.store / "v1" / "history.sqlite"
    file.write_bytes(b"no database at all" * 100)
    daemon.start()
    scenario(daemon, asking, made)
    found = api(daemon, "history", minutes=10)
    assert (
        "can't be kept" in found["trouble"] and sum(s["hits"]["disk"] for s in found["steps"]) == 3
    )
    assert file.read_bytes().startswith(b"no database at all")


def events(daemon: Any, seconds: float = 20) -> Iterator[dict[str, Any]]:
    with urllib.request.urlopen(
        f"http://{daemon.ready['http']}/api/v1/stream", timeout=seconds
    ) as stream:
        assert stream.headers.get_content_type() == "text/event-stream"
        for line in stream:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def test_the_stream_tells_what_changes(start_daemon: Any, asking: Any, made: Any) -> None:
    daemon = start_daemon(*SITES)
    stream = events(daemon)
    assert scraped(daemon)["coldstart_page_streams"] == 0
    assert next(stream)["live"] == []
    record = made.record("being-compiled")
    one = asking(daemon.cache, record)
    request = pb.LookupRequest(lookup_id=one.id, holder="me", record=wire.record_to_pb(record))
    lease = daemon.cache.Lookup(request, timeout=10).lease.lease_id
    assert scraped(daemon)["coldstart_page_streams"] == 1
    (live,) = next(stream)["live"]
    assert (live["key"], live["holder"], live["program_name"]) == (one.key, "me", "being-compiled")
    one.publish(made.artifact(record), lease)
    one.finish(Outcome.MISS, Reason.COLD, compile_seconds=2.0)
    for state in stream:
        if state["live"] == [] and state["hit_ratio"]["whole"] == 1:
            break
    stream.close()
    assert daemon.stop() == 0  # an open stream keeps nobody from leaving
