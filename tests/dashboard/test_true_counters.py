"""T30: a script keeps its own tally; page, API, /metrics and `coldstart stats` agree with it to the unit.

Disk, a real Redis and the bucket's emulator; hits from each tier, misses of several kinds, refusals, a timeout, a bad
copy, a failed compile and a holder that dies.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dashboard_daemon import Shown
from gcs_server import Cloud
from playwright.sync_api import Page, expect
from redis_server import RedisServer
from small_artifacts import make_record

from coldstart import artifact, wire
from coldstart.identity.key import key_of
from coldstart.outcomes import Outcome, Reason
from coldstart.rpc.v1 import cache_pb2 as pb


class Script:
    """What was done, counted here."""

    def __init__(self, daemon: Shown) -> None:
        self.daemon = daemon
        self.ends: Counter[tuple[str, str, str]] = Counter()
        self.saved = self.spent = 0.0
        self.compiles = self.takeovers = 0
        self.events: Counter[str] = Counter()

    def end(
        self,
        name: str,
        outcome: Outcome,
        reason: Reason,
        *,
        tier: str = "",
        lookup: str = "",
        seconds: float = 0.0,
    ) -> None:
        request = pb.FinishRequest(
            lookup_id=lookup or uuid.uuid4().hex,
            key=key_of(make_record(name)),
            outcome=wire.outcome_to_pb(outcome),
            reason=wire.reason_to_pb(reason),
            program_name=name,
            compile_seconds=seconds,
            tier=tier,
        )
        self.daemon.client.finish(request, 10)
        self.ends[outcome.value, reason.value, tier] += 1
        if outcome is Outcome.HIT:
            self.saved += seconds
        else:
            self.spent += seconds

    def ask(self, name: str, lookup: str = "") -> tuple[str, pb.LookupReply]:
        lookup = lookup or uuid.uuid4().hex
        request = pb.LookupRequest(
            lookup_id=lookup, holder="pod", record=wire.record_to_pb(make_record(name))
        )
        return lookup, self.daemon.client.lookup(request, 20)

    def compile(self, name: str, reason: Reason, seconds: float = 2.0) -> None:
        lookup, reply = self.ask(name)
        assert wire.reason_from_pb(reply.lease.reason) is reason, reply
        self.publish(name, lookup, reply.lease.lease_id, seconds)
        self.end(name, Outcome.MISS, reason, lookup=lookup, seconds=seconds)

    def publish(self, name: str, lookup: str, lease: str, seconds: float) -> None:
        record = make_record(name)
        made = artifact.make(
            name.encode() * 40,
            key=key_of(record), module_digest=record.module_digest, platform="cpu", target="cpu:16",
            partitions=16, replicas=1, callbacks=0, compile_seconds=seconds, program_name=name,
        )  # fmt: skip
        start = pb.PublishStart(
            lookup_id=lookup,
            lease_id=lease,
            header=made.header.encode(),
            record=wire.record_to_pb(record),
        )
        self.daemon.client.publish(start, made.payload.chunks(), 20)
        self.compiles += 1

    def hit(self, name: str, tier: str, seconds: float = 2.0) -> None:
        lookup, reply = self.ask(name)
        assert reply.hit.tier == tier, reply
        self.end(name, Outcome.HIT, Reason.OK, tier=tier, lookup=lookup, seconds=seconds)

    def command(self, *words: str) -> Any:
        command = [sys.executable, "-m", "coldstart.cli.main", *words]
        command += [f"--address={self.daemon.address}", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def script(tmp_path: Path, shared_redis: RedisServer, cloud: Cloud) -> Iterator[Script]:
    stores = (f"disk://{tmp_path}/store", shared_redis.url, f"gs://{cloud.bucket}/team")
    flags = [f"--store={url}" for url in stores] + ["--lease-seconds=1", "--heartbeat-seconds=0.2"]
    with Shown(tmp_path, *flags, STORAGE_EMULATOR_HOST=cloud.proxy.url) as daemon:
        yield Script(daemon)


def play(script: Script, tmp_path: Path) -> None:
    """The scenario."""
    for name in ("a", "b", "c"):
        script.compile(name, Reason.COLD)
    for _ in range(3):
        script.hit("a", "disk")
    script.command("purge", "--program=a", "--tier=disk")
    script.hit("a", "redis")
    script.command("purge", "--program=b", "--tier=disk", "--tier=redis")
    script.hit("b", "gcs")
    script.command("purge", "--program=b")
    script.compile("b", Reason.EVICTED, seconds=1.0)
    # A copy that rots: the client says so, and gets the next tier's.
    (path,) = (tmp_path / "store" / "v1" / "objects").glob(f"*/{found(script, 'c')}-*")
    lookup, reply = script.ask("c")
    assert reply.hit.tier == "disk" and path.exists()
    digest = artifact.decode_header(reply.hit.header).digest
    reject = pb.RejectRequest(
        lookup_id=lookup, key=key_of(make_record("c")), digest=digest, reason=pb.REASON_CORRUPT
    )
    again = script.daemon.client.reject(reject, 20)
    assert again.hit.tier == "redis"
    script.end("c", Outcome.HIT, Reason.OK, tier="redis", lookup=lookup, seconds=2.0)
    script.events["quarantined"] += 1
    # A compile that fails, and a late-comer that is told.
    lookup, reply = script.ask("fails")
    fail = pb.FailRequest(
        lease_id=reply.lease.lease_id, kind=pb.REASON_NEGATIVE_COMPILE, message="no"
    )
    script.daemon.client.fail(fail)
    script.end("fails", Outcome.MISS, Reason.COLD, lookup=lookup, seconds=0.5)
    lookup, reply = script.ask("fails")
    assert wire.reason_from_pb(reply.refused.reason) is Reason.NEGATIVE_COMPILE
    script.end("fails", Outcome.REFUSED, Reason.NEGATIVE_COMPILE, lookup=lookup, seconds=0.5)
    # A holder that dies: the next one takes over.
    lost, reply = script.ask("taken")
    assert reply.HasField("lease")
    lookup, reply = script.ask("taken")
    while not reply.HasField("lease"):
        request = pb.AwaitRequest(
            lookup_id=lookup, key=key_of(make_record("taken")), max_wait_seconds=5
        )
        reply = script.daemon.client.await_(request, 20)
    script.publish("taken", lookup, reply.lease.lease_id, 2.0)
    script.end("taken", Outcome.MISS, Reason.COLD, lookup=lookup, seconds=2.0)
    script.end("taken", Outcome.ERROR, Reason.LEASE_LOST, lookup=lost)
    script.takeovers += 1
    script.events["lease-expired"] += 1
    # What never gets as far as a key, or no answer.
    script.end("pointers", Outcome.REFUSED, Reason.POINTER, seconds=0.25)
    script.end("slow", Outcome.TIMEOUT, Reason.DEADLINE, seconds=0.25)
    script.end("bad", Outcome.ERROR, Reason.CORRUPT, seconds=0.25)


def found(script: Script, name: str) -> str:
    (one,) = {
        row["digest"]
        for row in script.command("purge", f"--program={name}", "--dry-run")["artifacts"]
    }
    return str(one)


def test_everything_that_shows_numbers_shows_the_same(
    script: Script, tmp_path: Path, look: Callable[..., Page]
) -> None:
    play(script, tmp_path)
    daemon, total = script.daemon, sum(script.ends.values())
    hits = sum(n for (outcome, _, _), n in script.ends.items() if outcome == "hit")

    def ask(where: str, path: str) -> str:
        with urllib.request.urlopen(f"http://{where}{path}", timeout=20) as reply:
            return str(reply.read().decode())

    stats = script.command("stats")
    assert {
        (c["outcome"], c["reason"], c["tier"]): c["count"] for c in stats["lookups"]
    } == script.ends
    assert (stats["hits"], stats["finished_lookups"], stats["compiles"]) == (
        hits,
        total,
        script.compiles,
    )
    assert (stats["compile_seconds"], stats["compile_seconds_saved"]) == (
        script.spent,
        script.saved,
    )

    overview = json.loads(ask(daemon.http, "/api/v1/overview"))
    assert {
        (c["outcome"], c["reason"], c["tier"]): c["count"] for c in overview["lookups"]
    } == script.ends
    assert overview["seconds_ratio"]["value"] == script.saved / (script.saved + script.spent)
    assert (overview["hit_ratio"]["part"], overview["hit_ratio"]["whole"]) == (hits, total)
    assert overview["takeovers"] == script.takeovers
    kinds = Counter(event["kind"] for event in overview["events"])
    assert {kind: kinds[kind] for kind in script.events} == dict(script.events)

    lines = [
        line for line in ask(daemon.health, "/metrics").splitlines() if not line.startswith("#")
    ]
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    by_reason: Counter[tuple[str, str]] = Counter()
    by_tier: Counter[str] = Counter()
    for (outcome, reason, tier), n in script.ends.items():
        by_reason[outcome, reason] += n
        by_tier[tier] += n if outcome == "hit" else 0
    scraped = {
        name: n for name, n in values.items() if name.startswith("coldstart_lookups_total") and n
    }
    assert scraped == {
        f'coldstart_lookups_total{{outcome="{outcome}",reason="{reason}"}}': n
        for (outcome, reason), n in by_reason.items()
    }
    for tier in ("disk", "redis", "gcs"):
        assert values[f'coldstart_hits_total{{tier="{tier}"}}'] == by_tier[tier] > 0
    assert values["coldstart_compile_seconds_total"] == script.spent
    assert values["coldstart_compile_seconds_saved_total"] == script.saved
    assert values["coldstart_compiles_total"] == script.compiles
    assert values["coldstart_lease_takeovers_total"] == script.takeovers
    for kind, n in script.events.items():
        assert values[f'coldstart_events_total{{kind="{kind}"}}'] == n

    page = look(daemon=daemon)
    tiles = page.locator("li.tile")
    fleet = tiles.filter(has_text="The fleet's hit ratio")  # told every few seconds
    expect(fleet).to_contain_text(f"by count {hits} / {total}", timeout=20_000)
    expect(tiles.filter(has_text="Hit ratio by count")).to_contain_text(f"= {hits} / {total}")
    by_seconds = f"{100 * script.saved / (script.saved + script.spent):.1f} %"
    expect(tiles.filter(has_text="Hit ratio by compile seconds")).to_contain_text(by_seconds)
    expect(tiles.filter(has_text="Compiles offered")).to_contain_text(str(script.compiles))
    shown = page.get_by_role("region", name="How lookups ended").get_by_role("row")
    expect(shown).to_have_count(1 + len(script.ends))
    for (outcome, reason, tier), n in script.ends.items():
        cells = [outcome, "" if reason == "ok" else reason, tier, str(n)]
        rows = [row.get_by_role("cell").all_inner_texts() for row in shown.all()]
        assert cells in rows

    # After a restart: counters begin anew, what the history kept does not.
    before = json.loads(ask(daemon.http, "/api/v1/history?minutes=10"))["steps"]
    assert sum(sum(step["hits"].values()) for step in before) == hits
    assert sum(sum(step["others"].values()) for step in before) == total - hits


def test_a_tier_that_goes_and_comes_back_is_seen(
    tmp_path: Path,
    redis_servers: Callable[..., RedisServer],
    look: Callable[..., Page],
) -> None:
    redis = redis_servers()
    with Shown(tmp_path, f"--store=disk://{tmp_path}/store", f"--store={redis.url}") as daemon:
        page = look(daemon=daemon)
        tiers = page.get_by_role("region", name="Tiers").get_by_role("row")
        expect(tiers.filter(has_text="redis").first).to_contain_text("none known")
        redis.stop()
        daemon.lease("anything")  # somebody asks it
        expect(tiers.filter(has_text="redis").first).to_contain_text("down for", timeout=15_000)
        expect(page.locator("li.tile").filter(has_text="In trouble")).to_contain_text(
            "tiers or leases"
        )
        redis.start()
        expect(tiers.filter(has_text="redis").first).to_contain_text("none known", timeout=20_000)
