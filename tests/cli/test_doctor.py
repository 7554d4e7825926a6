"""`doctor` against real daemons: what is fine is said to be, and each fault is named with what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from coldstart.client import checkup
from coldstart.client.checkup import Check, check_up
from coldstart.demo import processes

GOLDEN = json.loads((Path(__file__).parent / "golden" / "doctor.json").read_text())
JAX = {"JAX_PLATFORMS": "cpu"}
NOBODY = "tcp://127.0.0.1:1"

Cli = Callable[..., CompletedProcess[str]]


@pytest.fixture
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[processes.Daemon]:
    """A daemon process, with the options that the test is parametrized with."""
    options = getattr(request, "param", ())
    with processes.daemon(tmp_path, tmp_path / "store", *options) as running:
        yield running


def by_name(checks: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in checks}


def problems(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks if check.status == "problem"}


def shape_of(data: dict[str, Any]) -> dict[str, Any]:
    def kind(value: object) -> Any:
        if isinstance(value, dict):
            return {name: kind(v) for name, v in value.items()}
        if isinstance(value, list):
            shapes = [kind(v) for v in value]
            assert all(shape == shapes[0] for shape in shapes)
            return shapes[:1]
        return type(value).__name__

    return {name: kind(value) for name, value in data.items()}


@pytest.mark.stacks
def test_where_all_is_well_a_program_goes_from_one_process_to_another(
    coldstart: Cli, daemon: processes.Daemon
) -> None:
    settings = {"COLDSTART_ADDRESS": daemon.address, "COLDSTART_PORT": "tcp://10.0.0.1:80"}
    done = coldstart("doctor", "--json", **settings, **JAX)
    data = json.loads(done.stdout)
    checks = by_name(data["checks"])
    # A checkout on PYTHONPATH has no entry point; everything else must be fine there too.
    assert {name for name, check in checks.items() if check["status"] == "problem"} <= {"plugin"}
    assert done.returncode == (1 if checks["plugin"]["status"] == "problem" else 0)
    assert checks["self-test-store"]["status"] == checks["self-test-load"]["status"] == "ok"
    assert "0 compiles" in checks["self-test-load"]["message"]
    assert "COLDSTART_PORT" in checks["service-links"]["message"]
    assert "by path" in checks["volume"]["message"]
    assert data["address"] == daemon.address
    assert data["target"]["platform"] == "cpu"
    sources = {setting["name"]: setting["source"] for setting in data["settings"]}
    assert sources["address"] == "environment"
    assert sources["mode"] == "default"
    shape = shape_of(data)
    assert set(shape.pop("target").values()) <= {"str", "int"}
    assert list(data) == list(GOLDEN)
    assert shape == {name: kind for name, kind in GOLDEN.items() if name != "target"}


@pytest.mark.parametrize("daemon", [("--min-compile-seconds=100",)], indirect=True)
def test_a_threshold_that_drops_everything_and_a_cache_enabled_late(
    coldstart: Cli, daemon: processes.Daemon, tmp_path: Path
) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        "import sys, jax, coldstart\n"
        "jax.jit(lambda x: x * 3)(2.0)\n"
        "coldstart.install(sys.argv[1])\n"
        "jax.jit(lambda x: x * 4)(2.0)\n"
    )
    asked = f"--address={daemon.address}"
    done = coldstart("doctor", "--json", asked, str(late), daemon.address, **JAX)
    assert done.returncode == 1, done.stderr
    checks = by_name(json.loads(done.stdout)["checks"])
    assert checks["threshold"]["status"] == "problem"
    assert "less than 100 s are not kept" in checks["threshold"]["message"]
    assert "min_compile_seconds" in checks["threshold"]["fix"]
    assert checks["self-test-load"]["status"] == "ok"  # the threshold is reported once, not twice
    assert checks["program-early"]["status"] == "problem"
    assert checks["program-early"]["message"].endswith("so kept by none: 1")
    assert "before the first compile" in checks["program-early"]["fix"]
    assert checks["address"]["status"] == "note"


@pytest.mark.parametrize("daemon", [("--max-artifact=1",)], indirect=True)
def test_a_daemon_that_takes_nothing_is_found_out(daemon: processes.Daemon) -> None:
    environ = processes.plain_environment() | {"COLDSTART_ADDRESS": daemon.address}
    found = check_up(environ)
    assert not found.ok
    assert "refused too-large 1" in problems(found.checks)["self-test-load"].message


def test_a_cache_of_jax_that_keeps_nothing_is_found_out(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import jax\njax.jit(lambda x: x * 3)(2.0)\n")
    kept = tmp_path / "jax-cache"
    kept.mkdir()
    environ = processes.plain_environment() | {"JAX_COMPILATION_CACHE_DIR": str(kept)}
    found = check_up(environ, address=NOBODY, program=[str(script)])
    assert "kept nothing" in problems(found.checks)["program-kept"].message
    environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    found = check_up(environ, address=NOBODY, program=[str(script)])
    assert "program-kept" not in problems(found.checks)


# --- without JAX, whether it is there or not -----------------------------------------------------


@pytest.fixture
def no_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_jax")
def test_no_daemon_no_jax_and_misspelt_settings_are_told_in_plain_words() -> None:
    environ = {"COLDSTART_ADDRESS": NOBODY, "COLDSTART_STROE": "x", "COLDSTART_DISABLE": "1"}
    found = check_up(environ)
    told = problems(found.checks)
    assert told["settings"].message == (
        "unknown setting COLDSTART_STROE (did you mean COLDSTART_STORE?)"
    )
    assert told["settings"].fix.startswith("unset it")
    assert "no daemon at tcp://127.0.0.1:1" in told["daemon"].message
    assert told["daemon"].fix == f"start one with: coldstart daemon --listen {NOBODY}"
    assert told["jax"].fix == "pip install 'coldstart[jax]'"
    assert told["disable"].fix == "unset it"
    assert found.checks[-1] == Check("self-test", "skipped", "needs a daemon")
    assert found.to_json()["jax"] is None


@pytest.mark.usefixtures("no_jax")
def test_a_value_that_cannot_be_used_is_told_with_one_that_works() -> None:
    found = check_up({"COLDSTART_MODE": "exakt"}, address=NOBODY)
    wrong = problems(found.checks)["settings"]
    assert wrong.message.startswith("COLDSTART_MODE='exakt'")
    assert "exact" in wrong.message
    assert wrong.fix == "a value that works: canonical"


@pytest.mark.usefixtures("no_jax")
def test_an_address_from_the_file_and_none_at_all(tmp_path: Path) -> None:
    file = tmp_path / "address"
    missing = problems(check_up({}, address_file=file).checks)["address"]
    assert "stays inactive" in missing.message
    assert missing.fix.startswith("export COLDSTART_ADDRESS=unix://")
    file.write_text(f"{NOBODY}\n")
    found = check_up({}, address_file=file)
    assert "address" not in problems(found.checks)
    (address,) = [setting for setting in found.settings if setting.name == "address"]
    assert (address.value, address.source) == (NOBODY, "file")


def test_misuse(coldstart: Cli, tmp_path: Path) -> None:
    done = coldstart("doctor", "--address=nowhere")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "unix:///path or tcp://host:port" in done.stderr
    done = coldstart("doctor", str(tmp_path / "absent.py"))
    assert done.returncode == 2
    assert "is not a script" in done.stderr
