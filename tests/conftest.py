"""What every test runs under, and the count of what ran.

The environment is set before anything imports JAX: CPU with 16 devices, the hook strict, nothing of the
developer's own Coldstart settings, caches in a folder of this run. At the end a table says how many tests of
each kind ran on each stack, so that "green because skipped" is visible; `make test` hands a file from run to
run (TEST_COUNTS), and the last run's table holds them all.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

ON_TPU = os.environ.get("TEST_ON_TPU", "") not in ("", "0")
DEVICES = "--xla_force_host_platform_device_count=16"
STACKS = {"0.10": "A", "0.11": "B", "0.12": "C"}
# In the order of the table. A test is of the first kind that its path or markers fit.
RINGS = ("reference", "interpret", "lowering", "tpu")
PLACES = ("disk", "redis", "gcs")  # of the failure matrix, in tests/server
KINDS = (
    *(f"ring {ring}" for ring in RINGS),
    *(f"matrix {place}" for place in PLACES),
    "golden keys",
    "identity",
    "hook",
    "e2e",
    "other",
)
RESULTS = ("passed", "failed", "skipped")
PROGRAMS = ("redis-server",)  # beside Python; the tests that need one fail without it


def set_environment() -> None:
    for name in [name for name in os.environ if name.startswith("COLDSTART_")]:
        del os.environ[name]
    folder = tempfile.mkdtemp(prefix="cs-")  # short: a socket's path may have 103 bytes
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = {
        "COLDSTART_STRICT": "1",
        "XDG_CACHE_HOME": f"{folder}/cache",
        "XDG_RUNTIME_DIR": f"{folder}/run",
        # libtpu compiles for described TPUs on a machine that has none
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    os.environ.update(settings)
    if not ON_TPU:
        os.environ["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {DEVICES}".strip()


if "jax" in sys.modules:
    raise RuntimeError(
        "a pytest plug-in imported JAX before tests/conftest.py could set its devices"
    )
set_environment()
# Where asserts of tests stand outside of test files.
pytest.register_assert_rewrite("failure_world", "fleet_cases")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("tpu") and not ON_TPU:
            item.add_marker(pytest.mark.skip(reason="no TPU: set TEST_ON_TPU=1 where there is one"))


# --- the count ---------------------------------------------------------------------------------------------


def kind_of(nodeid: str, markers: Iterable[str]) -> str:
    path = Path(nodeid.partition("::")[0])
    stem = path.stem.removeprefix("test_")
    if "tpu" in markers:
        return "ring tpu"
    if "coldstart_kernels" in path.parts and stem in RINGS:
        return f"ring {stem}"
    place = stem.removesuffix("_matrix")
    if place in PLACES and "::test_cell[" in nodeid:
        return f"matrix {place}"
    if "golden" in stem or "golden" in nodeid.partition("::")[2]:
        return "golden keys"
    if "hook" in stem or stem == "jax_plugin":
        return "hook"
    for kind in ("identity", "e2e"):
        if kind in path.parts:
            return kind
    return "other"


def stack_name() -> str:
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    try:
        jax = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return f"{python}, no JAX"
    if Path(sys.prefix).name == ".venv-oldest":
        return f"A with the oldest releases ({python}, JAX {jax})"
    letter = STACKS.get(".".join(jax.split(".")[:2]), "?")
    return f"{letter} ({python}, JAX {jax})"


class Count:
    """How each test ended, by kind."""

    def __init__(self) -> None:
        self.ends: dict[
            str, tuple[str, str]
        ] = {}  # nodeid -> (kind, result); an error in teardown overrides

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        result = report.outcome if report.outcome in RESULTS else "failed"
        self.ends[report.nodeid] = (kind_of(report.nodeid, report.keywords), result)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        counted = Counter(f"{kind}|{result}" for kind, result in self.ends.values())
        runs = [*earlier_runs(), {"stack": stack_name(), "counted": counted}]
        terminalreporter.section("tests by kind", sep="-")
        for line in (*table(runs), *missing_programs()):
            terminalreporter.write_line(line)
        if "TEST_COUNTS" in os.environ:
            with open(os.environ["TEST_COUNTS"], "a") as opened:
                opened.write(json.dumps(runs[-1]) + "\n")


def earlier_runs() -> list[dict]:
    try:
        lines = Path(os.environ["TEST_COUNTS"]).read_text().splitlines()
    except (KeyError, OSError):
        return []
    return [json.loads(line) for line in lines]


def missing_programs() -> list[str]:
    """A line for each that is not here: its tests failed, they were not skipped."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return [
        f"missing: {program}, so its tests fail; `make test` as root installs it"
        for program in missing
    ]


def table(runs: list[dict]) -> list[str]:
    """Per stack, a line for each kind; a kind with no test at all is shown as such."""
    lines = []
    for run in runs:
        if "missing" in run:
            lines.append(f"stack {run['missing'].upper()}: not run, no interpreter for it here")
            continue
        lines.append(f"stack {run['stack']}")
        for kind in KINDS:
            ended = {result: run["counted"].get(f"{kind}|{result}", 0) for result in RESULTS}
            words = [f"{number} {result}" for result, number in ended.items() if number]
            lines.append(f"  {kind:<16} {', '.join(words) or 'none'}")
        cells = sum(run["counted"].get(f"matrix {place}|passed", 0) for place in PLACES)
        if cells:
            lines.append(f"  cells of the failure matrix that were run and passed: {cells}")
    return lines


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # under xdist the controller counts
        config.pluginmanager.register(Count(), "count-by-kind")
