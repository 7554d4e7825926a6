"""Warming as its user has it: processes on a real daemon, killed, restarted, side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="warming compiles with JAX")

LONG = 60  # steps of a program that compiles for some tenths of a second


def finish(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    stdout, stderr = process.communicate(timeout=100)
    lines = stdout.splitlines()
    return process.returncode, json.loads(lines[-1]) if lines else {}, stderr


def until(process: subprocess.Popen[str], word: str) -> str:
    """Read stderr up to the line that holds `word`."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"ended without {word!r}:\n{seen}")


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.stacks
def test_a_second_run_compiles_nothing(warm: Any, daemon: Any, tmp_path: Path) -> None:
    plan, manifest = warm.plan("small", count=3), tmp_path / "manifest.json"
    first = warm(plan, "--manifest", str(manifest))
    assert first.code == 0, first.stderr
    assert (first.summary["compiled"], first.summary["distinct"]) == (3, 3)
    assert first.summary["compile_seconds_covered"] > 0
    assert daemon.artifacts() == 3
    entries = json.loads(manifest.read_text())["entries"]
    assert [entry["entry"] for entry in entries] == [f"chain number={i}" for i in range(3)]
    assert all(entry["key"] and entry["digest"] for entry in entries)

    again = warm(plan, "--json", "--manifest", str(manifest))
    assert again.code == 0, again.stderr
    assert (again.summary["compiled"], again.summary["reused"]) == (0, 3)
    assert again.summary["seconds"]["compile"] == 0
    assert again.summary["manifest"] == first.summary["manifest"]
    assert json.loads(manifest.read_text())["entries"] == entries
    stats = daemon.stats()
    assert stats.compiles == 3


def test_without_a_daemon_it_uses_the_store(warm_alone: Any, tmp_path: Path) -> None:
    plan, store = warm_alone.plan("small", count=2), f"disk://{tmp_path}/store"
    first = warm_alone(plan, "--store", store)
    assert first.code == 0, first.stderr
    assert "in-process daemon" in first.stderr
    assert first.summary["compiled"] == 2
    assert warm_alone(plan, "--store", store).summary["reused"] == 2


def test_trouble_stops_nobody_else(warm: Any, daemon: Any, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    ran = warm(warm.plan("troubled"), "--manifest", str(manifest))
    assert ran.code == 1, ran.stderr
    summary = ran.summary
    assert (summary["programs"], summary["distinct"]) == (8, 7)  # the twins are one
    assert (summary["compiled"], summary["failed"], summary["unshareable"]) == (2, 4, 1)
    problems = {problem["program"]: problem["message"] for problem in summary["problems"]}
    assert problems["raises"] == "ValueError: a shape is wrong"
    assert "SIGKILL" in problems["dies"]
    assert "nobody_registered_this" in problems["unknown-call"]
    assert problems["partitioned"].startswith("pointer:")
    assert daemon.artifacts() == 2
    assert not manifest.exists()
    assert "xla_no_such_option" in problems["unknown-option"]
    # A failed compile is remembered for a while: the next run reports it and doesn't try again. What only
    # the process lacked (a handler) is tried again.
    again = warm(warm.plan("troubled")).summary
    assert (again["compiled"], again["reused"]) == (0, 2)
    assert (again["failed"], again["refused"], again["unshareable"]) == (3, 1, 1)
    (refused,) = (p for p in again["problems"] if p["outcome"] == "refused")
    assert refused["program"] == "unknown-option"
    assert refused["message"].startswith("negative-compile: ")


def test_killed_in_the_middle_it_goes_on_where_it_was(warm: Any, daemon: Any) -> None:
    """T33. The worker dies with it, so nobody gives the lease back: it has to run out."""
    plan = warm.plan("small", count=5, steps=LONG)
    process = warm.start(plan)
    until(process, "2/5 compiled")
    workers = children(process.pid)
    assert workers
    for pid in (process.pid, *workers):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    stored = daemon.artifacts()
    assert 2 <= stored < 5
    again = warm(plan)
    assert again.code == 0, again.stderr
    assert (again.summary["compiled"], again.summary["reused"]) == (5 - stored, stored)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_gives_the_leases_back(
    warm: Any, daemon: Any, number: signal.Signals, code: int
) -> None:
    process = warm.start(warm.plan("small", count=4, steps=LONG))
    until(process, "1/4 compiled")
    workers = children(process.pid)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code, stderr
    assert stdout == ""
    assert stderr.splitlines()[-1].startswith(f"coldstart warm: {number.name}: stopped")
    assert "Traceback" not in stderr
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert daemon.stats().leases == 0
    assert daemon.artifacts() >= 1


def test_a_parent_that_is_killed_takes_its_worker_along(warm: Any, daemon: Any) -> None:
    process = warm.start(warm.plan("small", count=4, steps=LONG))
    until(process, "1/4 compiled")
    (worker,) = children(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}/exe").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}/exe").exists()
    assert daemon.stats().leases == 0


def test_two_runs_share_the_work(warm: Any, daemon: Any) -> None:
    plan = warm.plan("small", count=6, steps=LONG)
    both = [finish(process) for process in [warm.start(plan) for _ in range(2)]]
    assert [code for code, _, _ in both] == [0, 0], both
    assert sum(summary["compiled"] for _, summary, _ in both) == 6
    assert all(summary["compiled"] + summary["reused"] == 6 for _, summary, _ in both)
    assert daemon.stats().compiles == 6


def test_two_workers_share_the_work(warm: Any, daemon: Any) -> None:
    ran = warm(warm.plan("small", count=4), jobs=2)
    assert ran.code == 0, ran.stderr
    assert (ran.summary["compiled"], ran.summary["jobs"]) == (4, 2)
    assert daemon.stats().compiles == 4


def test_a_dry_run_compiles_nothing(warm: Any, daemon: Any) -> None:
    ran = warm(warm.plan("small", count=2), "--dry-run")
    assert ran.code == 0, ran.stderr
    assert (ran.summary["missing"], ran.summary["compiled"]) == (2, 0)
    assert daemon.artifacts() == 0


def test_local_devices(warm: Any) -> None:
    assert warm(warm.plan("small", count=1), target="local").summary["compiled"] == 1


def test_users_own_caches_and_hook_stay_out_of_it(warm: Any, daemon: Any, tmp_path: Path) -> None:
    """What is published comes from the compiler, even where the environment turns everything on."""
    cache = tmp_path / "jax-cache"
    env = {
        "COLDSTART_ADDRESS": daemon.address,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    ran = warm(warm.plan("small", count=1), **env)
    assert ran.summary["compiled"] == 1, ran.stderr
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.stacks
def test_described_tpu_is_warmed_without_loading(warm: Any, daemon: Any) -> None:
    """T34: stock JAX's cache writes such entries and can't read them."""
    pytest.importorskip("libtpu", reason="describing a TPU needs libtpu")
    plan = warm.plan("small", count=1)
    first = warm(plan, target="tpu7x:2x2x2")
    assert first.code == 0, first.stderr
    assert first.summary["compiled"] == 1
    assert warm(plan, target="tpu7x:2x2x2").summary["reused"] == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_plan(warm: Any, daemon: Any) -> None:
    first = finish(warm.start("demo"))
    assert first[0] == 0, first[2]
    assert first[1]["compiled"] == first[1]["distinct"] >= 8
    assert first[1]["compile_seconds_covered"] > 0.5 * first[1]["distinct"]
    second = finish(warm.start("demo"))
    assert (second[0], second[1]["compiled"]) == (0, 0)
