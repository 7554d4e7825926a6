"""Processes of one job: one compile for all of them, whoever made it; members whose programs differ are told (I9)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from groups import PROGRAMS, RUN, WAIT_SECONDS, WORK_SECONDS, Job, compiles, one_program, run
from processes import Daemon

from coldstart.outcomes import Reason

pytestmark = pytest.mark.timeout(int(3 * (WORK_SECONDS + WAIT_SECONDS)))

LONG = pytest.mark.long
TOLD_SECONDS = 30.0


@pytest.mark.stacks
@pytest.mark.parametrize(("count", "devices"), [(2, 4), pytest.param(4, 2, marks=LONG)])
def test_a_group_compiles_once_and_not_at_all_on_its_second_start(
    daemon: Any, count: int, devices: int
) -> None:
    """T01."""
    first = run(RUN, [daemon.address] * count, devices)
    one_program(first)
    assert sorted(compiles(first)) == [0] * (count - 1) + [1]
    assert sum(one.said["ends"][0].startswith("hit/") for one in first) == count - 1
    second = run(RUN, [daemon.address] * count, devices)
    one_program(second)
    assert compiles(second) == [0] * count
    assert first[0].said["ran"] == second[0].said["ran"]


@LONG
def test_a_daemon_for_each_member_on_one_folder(daemons: Callable[..., Daemon]) -> None:
    """Each has its own leases, so both members may compile at first; what is stored is one program, and is hit."""
    one = daemons()
    two = daemons(store=one.store)
    addresses = [one.address, two.address]
    first = run(RUN, addresses, 4)
    one_program(first)
    assert sum(compiles(first)) in (1, 2)
    assert len(one.artifacts()) == 1
    second = run(RUN, addresses, 4)
    one_program(second)
    assert compiles(second) == [0, 0]


def test_what_is_warmed_for_described_hosts_is_hit_by_a_job_of_two(
    daemon: Any, tmp_path: Path
) -> None:
    """cpu:2x8: the worker is one process in no job; the pods are two, of 8 devices each."""
    plan = tmp_path / "plan.toml"
    plan.write_text('programs = "group_programs:plan"\n')
    command = [sys.executable, "-m", "coldstart.cli.main", "warm", str(plan)]
    done = subprocess.run(
        [*command, "--target", "cpu:2x8", "--jobs", "1", "--address", daemon.address],
        env={**os.environ, "PYTHONPATH": str(PROGRAMS), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=WORK_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["compiled"] == 1
    pods = run(RUN, [daemon.address] * 2, 8)
    one_program(pods)
    assert compiles(pods) == [0, 0]
    assert [one.said["ends"] for one in pods] == [["hit/ok"]] * 2


# What differs: a constant in the program, or what the compiler is asked for. The last program is every member's,
# and the one before only process 0's: neither is a difference.
DIFFERS = """
import group_programs
common = group_programs.lower(DEVICES, 1.0).compile()
if RANK == 0: group_programs.lower(DEVICES, 0.5).compile()
options = {"xla_cpu_enable_fast_math": True} if os.environ["ODD"] == f"options {RANK}" else None
factor = 3.0 if os.environ["ODD"] == f"program {RANK}" else 2.0
group_programs.lower(DEVICES, factor).compile(options)
began = time.monotonic()
report = coldstart.report
while not report().group_mismatches and time.monotonic() - began < 60: time.sleep(0.05)
took = time.monotonic() - began
group_programs.lower(DEVICES, 7.0).compile()
# Nobody leaves the job before everybody has been told, and had time to be told too much.
from jax.experimental import multihost_utils
multihost_utils.sync_global_devices("told")
time.sleep(12)
say(took=took, differs=report().group_mismatches, wrong=group_programs.wrong(DEVICES, common, 1.0))
"""


@pytest.mark.parametrize(
    ("count", "odd", "component"),
    [
        (2, 1, "program"),
        pytest.param(2, 0, "options", marks=LONG),
        pytest.param(4, 2, "program", marks=LONG),
    ],
)
def test_members_whose_programs_differ_are_told_on_both_sides_which_component_does(
    daemon: Any, count: int, odd: int, component: str
) -> None:
    with Job(DIFFERS, count, 8 // count) as job:
        for _ in range(count):
            job.start(daemon.address, ODD=f"{component} {odd}", COLDSTART_STRICT="1")
        ran = job.finish()
    for rank, one in enumerate(ran):
        assert one.said["took"] < TOLD_SECONDS
        assert one.said["differs"] == 1 and one.said["wrong"] == []
        (line,) = [line for line in one.stderr.splitlines() if "group-mismatch: program" in line]
        others = [other for other in range(count) if (other == odd) != (rank == odd)]
        there = (
            f"processes {', '.join(map(str, others))}"
            if len(others) > 1
            else f"process {others[0]}"
        )
        assert (
            f"is jit_step on process {rank}, and another one, jit_step, on {there}; {component}: "
            in line
        )
        assert line.count(" here, ") == 1
    told = [e.message for e in daemon.stats().events if e.kind == Reason.GROUP_MISMATCH]
    assert len(told) == count
