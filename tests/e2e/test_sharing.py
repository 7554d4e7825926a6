"""Participants that differ in an offset nobody reads share one compile; those that read it never do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import finish, start

from coldstart import wire
from coldstart.identity.key import key_of
from coldstart.identity.rules import unread_fragment_offset
from coldstart.outcomes import Reason
from coldstart.rpc.v1 import admin_pb2

RULE = unread_fragment_offset.NAME
RANKS = (1, 2)
PARTICIPANT = """
import coldstart
from coldstart.models.config import TINY
from coldstart.models.participant import PieceShape, attention_piece
made = {}
for task in os.environ["TASKS"].split():
    branch, rank = task.split("-")
    piece = attention_piece(int(rank), 4, TINY, PieceShape(8, 128, layers=1), branch=branch)
    arguments = [jax.device_put(a, jax.devices()[0]) for a in piece.sample_arguments()]
    lowered = piece.lower()
    if "DUMPS" in os.environ:
        with open(f"{os.environ['DUMPS']}/{task}.mlir", "w") as dump:
            dump.write(lowered.as_text())
    COMPILES.clear()
    value = np.asarray(lowered.compile()(*arguments))
    made[task] = [len(COMPILES), value.tobytes().hex()[:400], float(np.abs(value).sum())]
coldstart.flush()
report = coldstart.report()
say(made=made, ends=sorted(f"{o}/{r}" for o, r in report.lookups) if report else [])
"""


def participant(daemon: Any, rank: int, *branches: str, **env: str) -> subprocess.Popen[str]:
    tasks = " ".join(f"{branch}-{rank}" for branch in branches)
    return start(PARTICIPANT, TASKS=tasks, COLDSTART_ADDRESS=daemon.address, **env)


def made_by(process: subprocess.Popen[str]) -> dict[str, list[Any]]:
    """Per program: compiles, and the result."""
    ran = finish(process)
    assert ran.code == 0, ran.stderr
    made: dict[str, list[Any]] = ran.said["made"]
    return made


def compiles(made: list[dict[str, list[Any]]]) -> list[int]:
    return [count for one in made for count, *_ in one.values()]


@pytest.mark.stacks
def test_a_fragment_that_nobody_reads_costs_one_compile_and_one_that_is_read_two(
    daemon: Any, tmp_path: Path
) -> None:
    tasks = " ".join(f"{branch}-{rank}" for branch in ("sparse", "dense") for rank in RANKS)
    alone = finish(start(PARTICIPANT, TASKS=tasks, DUMPS=str(tmp_path))).said["made"]
    made = [made_by(participant(daemon, rank, "sparse", "dense")) for rank in RANKS]
    assert compiles(made) == [1, 1, 0, 1]  # sparse and dense of the first, then of the second
    for one in made:
        for task, (_, *result) in one.items():
            assert result == alone[task][1:], task
    assert alone["dense-1"][1] != alone["dense-2"][1]
    assert len(daemon.artifacts()) == 3
    counted = {wire.reason_from_pb(lookup.reason) for lookup in daemon.stats().lookups}
    assert counted == {Reason.OK, Reason.COLD}
    explained_by_the_daemon(daemon)
    explained_from_files(tmp_path)
    purged_by_rule(daemon)


def purged_by_rule(daemon: Any) -> None:
    """What the rule had a part in goes, and nothing else: then that program alone is compiled anew."""

    def purge(*options: str) -> dict[str, Any]:
        at = f"--address={daemon.address}"
        command = [sys.executable, "-m", "coldstart.cli.main", "purge", at, "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["tiers"]
        return {
            tier: {o: sums["artifacts"] for o, sums in all_of_it.items()}
            for tier, all_of_it in found.items()
        }

    assert purge("--rule=locations", "--dry-run") == {"disk": {"meant": 3}}
    assert purge(f"--rule={RULE}") == {"disk": {"removed": 1}}
    assert purge(f"--rule={RULE}") == {}
    assert compiles([made_by(participant(daemon, RANKS[1], "sparse", "dense"))]) == [1, 0]


def keys(daemon: Any) -> dict[str, admin_pb2.GetDescriptorReply]:
    """What the daemon holds: key → the raw programs under it."""
    client = daemon.client()
    try:
        names = {path.parent.name for path in daemon.store.rglob("*") if path.is_file()}
        found = {}
        for name in names:
            if name.startswith("cs1-"):
                record = wire.record_from_pb(client.record(name).record)
                assert key_of(record) == name
                found[name] = client.descriptors(name)
        return found
    finally:
        client.close()


def explain(*arguments: str) -> Any:
    command = [sys.executable, "-m", "coldstart.cli.main", "explain", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def explained_by_the_daemon(daemon: Any) -> None:
    by_raw = sorted((len(reply.programs), key) for key, reply in keys(daemon).items())
    assert [count for count, _ in by_raw] == [1, 1, 2]
    at = f"--address={daemon.address}"
    shared = explain(by_raw[2][1], at, "--json")
    assert shared["difference"]["count"] == shared["difference"]["stripped"] == 2
    assert {edit["rule"] for p in shared["left"]["programs"] for edit in p["stripped"]} == {RULE}
    dense = explain(by_raw[0][1], by_raw[1][1], at, "--json")
    assert dense["same"] is False and dense["first"] == "program"
    assert [d["what"] for d in dense["difference"]["shown"]] == [
        "attribute limit_indices",
        "attribute start_indices",
    ]
    assert dense["difference"]["stripped"] == 0
    assert all("needs operand" in d["why"] for d in dense["difference"]["shown"])


def explained_from_files(dumps: Path) -> None:
    """The acceptance line: the slice, its two offsets, the rule, and the operand that is never read."""
    left, right = (str(dumps / f"sparse-{rank}.mlir") for rank in RANKS)
    text = " ".join(explain(left, right).split())
    assert "the same program" in text and "stablehlo.slice" in text
    assert "left array<i64: 0, 8, 0> right array<i64: 0, 16, 0>" in text
    assert f"stripped by {RULE}" in text and "carries it as value" in text


@pytest.mark.parametrize("env", [{"COLDSTART_MODE": "exact"}, {"COLDSTART_RULES": f"-{RULE}"}])
def test_without_rewrites_each_participant_compiles(daemon: Any, env: dict[str, str]) -> None:
    running = [participant(daemon, rank, "sparse", **env) for rank in RANKS]
    assert compiles([made_by(process) for process in running]) == [1, 1]
