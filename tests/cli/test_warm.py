"""`coldstart warm`, misused: one line each and exit code 2. What it does is in tests/warmup/test_warm.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart.cli.warm import default_jobs
from coldstart.cli.warm_progress import duration

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("dmeo", "--target", "cpu:16"), "did you mean demo?"),
        (("none.toml", "--target", "cpu:16"), "No such file"),
        (("bad.toml", "--target", "cpu:16"), "plan bad.toml:1: modle: is not a field"),
        (("demo", "--target", "gpu:8"), "targets that work"),
        (("demo", "--target", "cpu:65x8"), "up to 64 hosts"),
        (("demo", "--target", "cpu:8", "--store", "disk://{tmp}/s"), "a target that works: cpu:16"),
        (("gone.toml", "--target", "cpu:1", "--store", "disk://{tmp}/s"), "no module 'nowhere'"),
        (
            ("wide.toml", "--target", "cpu:1", "--store", "disk://{tmp}/s"),
            "is no program; one has a name",
        ),
        (("demo",), "Missing option '--target'"),
        (("demo", "--target", "cpu:16", "--jobs", "0"), "--jobs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_misuse_is_one_line(
    coldstart: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    words: str,
) -> None:
    pytest.importorskip("jax", reason="some of these are found by a worker, which needs JAX")
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text('modle = "tiny-moe"')
    Path("gone.toml").write_text('programs = "nowhere:programs"')
    Path("wide.toml").write_text('programs = "string:capwords"\narguments = { s = "two words" }')
    ran = coldstart("warm", *(arg.replace("{tmp}", str(tmp_path)) for arg in args))
    lines = [line for line in ran.stderr.splitlines() if line.startswith("coldstart")]
    assert ran.returncode == 2, ran.stderr
    assert words in lines[-1]
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_observing_is_no_mode_to_warm_in(coldstart: Run) -> None:
    ran = coldstart("warm", "demo", "--target", "cpu:16", COLDSTART_MODE="observe")
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "COLDSTART_MODE=observe" in ran.stderr


def test_a_daemon_that_was_named_and_is_not_there(coldstart: Run, tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/none.sock"
    ran = coldstart("warm", "demo", "--target", "cpu:16", "--address", address)
    assert ran.returncode == 1
    assert "no daemon at" in ran.stderr.splitlines()[-1]


def test_help_ends_with_an_example(coldstart: Run) -> None:
    lines = coldstart("warm", "--help").stdout.strip().splitlines()
    assert lines[-1].strip() == "Example: coldstart warm demo --target cpu:16"


def test_jobs_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert (default_jobs("cpu"), default_jobs("topology"), default_jobs("local")) == (6, 3, 3)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(200)), raising=False)
    assert default_jobs("cpu") == 8
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert default_jobs("topology") == 1


@pytest.mark.parametrize(
    ("seconds", "words"), [(4.4, "4 s"), (100, "2 min"), (3600, "60 min"), (5400, "1 h 30 min")]
)
def test_durations_are_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words
