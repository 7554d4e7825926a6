"""Starting many processes and ending them; comparing what they computed; what the table says of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coldstart.demo import processes, run, table
from coldstart.demo.fleet import Arm, wrong_results
from coldstart.demo.participant import Work
from coldstart.demo.run import Result
from coldstart.errors import ColdstartError


@pytest.fixture
def run_all(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run a module made of `source`, once per argument."""

    def run(source: str, *arguments: str, at_once: int = 8, seconds: float = 30.0) -> Any:
        (tmp_path / "started_by_test.py").write_text(source)
        environ = processes.plain_environment() | {"PYTHONPATH": str(tmp_path)}
        return processes.run_all(
            "started_by_test",
            [[argument] for argument in arguments],
            environ,
            tmp_path,
            at_once=at_once,
            seconds=seconds,
        )

    return run


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_results_come_in_the_order_of_the_arguments(run_all) -> None:
    source = "import sys, json\nprint('noise')\nprint(json.dumps({'said': sys.argv[1]}))"
    for at_once in (1, 3):
        said = run_all(source, "a", "b", "c", at_once=at_once)
        assert [each["said"] for each in said] == ["a", "b", "c"]


def test_no_more_run_together_than_allowed(run_all, tmp_path: Path) -> None:
    source = (
        "import json, os, sys\n"
        f"own = os.path.join({str(tmp_path)!r}, 'on-' + sys.argv[1])\n"
        "open(own, 'x').close()\n"
        f"others = [name for name in os.listdir({str(tmp_path)!r}) if name.startswith('on-')]\n"
        "os.unlink(own)\n"
        "print(json.dumps({'together': len(others)}))"
    )
    assert [each["together"] for each in run_all(source, *"abcd", at_once=1)] == [1, 1, 1, 1]


def test_one_failure_ends_the_others_and_says_its_last_words(run_all, tmp_path: Path) -> None:
    source = (
        "import sys, os, time, pathlib\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "if sys.argv[1] == 'bad':\n"
        "    while not (folder / 'pid').exists(): time.sleep(0.01)\n"
        "    sys.exit('out of luck')\n"
        "(folder / 'new').write_text(str(os.getpid()))\n"
        "(folder / 'new').rename(folder / 'pid')\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(ColdstartError, match=r"process 1 failed \(exit 1\): out of luck"):
        run_all(source, "good", "bad")
    assert gone(int((tmp_path / "pid").read_text()))


def test_too_slow_is_an_error_and_a_signal_is_named(run_all) -> None:
    with pytest.raises(ColdstartError, match="2 of 2 processes took longer"):
        run_all("import time; time.sleep(60)", "a", "b", seconds=0.5)
    with pytest.raises(ColdstartError, match="SIGKILL"):
        run_all("import os; os.kill(os.getpid(), 9)", "a")


def arm(name: str, digests: list[str], *, compiles: int = 1, lookups: Any = None) -> Arm:
    """Participants with one attention program each."""
    return Arm(
        name,
        name.partition("-")[0],
        2.0,
        tuple(
            {
                "rank": rank,
                "jax": "0",
                "compiles": compiles,
                "compile_seconds": 1.5 * compiles,
                "reused": int(compiles == 0),
                "seconds": {"cpu": 2.0},
                "lookups": lookups or {},
                "warnings": [],
                "programs": [
                    {
                        "name": "attention",
                        "own": True,
                        "compiles": compiles,
                        "compile_seconds": 1.5 * compiles,
                        "digest": digest,
                    }
                ],
            }
            for rank, digest in enumerate(digests)
        ),
    )


def shown(*arms: Arm) -> str:
    work = Work(participants=len(arms[0].participants), pieces=1)
    result = Result(work, arms, tuple(wrong_results(arms)))
    console = Console(file=StringIO(), width=120, highlight=False)
    table.show(result, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_result_that_differs_is_found_and_shown() -> None:
    arms = (arm("stock-cold", ["x", "y"]), arm("coldstart-cold", ["x", "z"]))
    assert wrong_results(arms) == ["coldstart-cold: rank 1: attention"]
    assert "WRONG RESULTS: 1" in shown(*arms)
    same = (arm("stock-cold", ["x", "y"]), arm("coldstart-cold", ["x", "y"]))
    assert wrong_results(same) == []
    assert "Wrong results: 0" in shown(*same)


def test_the_sentences_follow_the_figures() -> None:
    stock = arm("stock-cold", ["x", "x"])
    cold = arm("coldstart-cold", ["x", "x"], lookups={"miss cold": 1})
    assert "not shared (2 compiles for 2 requests)" in shown(stock, cold)
    shared = arm("coldstart-cold", ["x", "x"], compiles=0, lookups={"hit ok": 1})
    text = shown(stock, shared)
    assert "not shared" not in text
    assert "0 compiles for 2 requests" in text
    troubled = arm("coldstart-cold", ["x", "x"], lookups={"error daemon-absent": 1})
    text = shown(stock, troubled)
    assert "not shared" not in text
    assert "error daemon-absent 2" in text


def test_sums_of_an_arm() -> None:
    found = arm("coldstart-cold", ["x", "y", "z"], lookups={"miss cold": 1})
    assert (found.compiled, found.reused, found.compile_seconds) == (3, 0, 4.5)
    assert found.lookups == {"miss cold": 3}
    (program,) = found.by_program()
    assert (program["compiled"], program["reused"]) == (3, 0)


def test_work_refuses_what_does_not_exist() -> None:
    with pytest.raises(ValueError, match="wants 1 to"):
        Work(pieces=99)
    with pytest.raises(ValueError, match="sparse, dense"):
        Work(branch="both")


def test_a_missing_package_is_told_as_an_import_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as caught:
        run.check_packages()
    assert caught.value.name == "jax"
