"""`bench reuse`: real participants in small, what it counts from records, and going on after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldstart.bench.reuse import Arm, ReuseResult, Size
from coldstart.bench.reuse_participant import read_record
from coldstart.errors import ConfigError

GOLDEN = json.loads((Path(__file__).parent / "golden" / "reuse.json").read_text())
RUN = ("reuse", "--participants=2", "--programs=2", "--json")


def test_sparse_is_shared_dense_and_stock_are_not(
    bench, shape: Callable[[Any], Any], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    done = bench(*RUN, f"--keep={folder}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert shape(found) == GOLDEN
    assert (found["compiled"], found["reused"], found["wrong"]) == (2, 2, 0)
    for arm in ("dense", "stock_jax"):
        numbers = found[arm]
        assert (numbers["compiled"], numbers["reused"], numbers["wrong"]) == (4, 0, 0)
    assert found["compile_seconds_saved"] == pytest.approx(found["compile_seconds"], abs=0.05)
    assert set(found["lookups"]) <= {"hit ok", "hit waited", "miss cold"}
    assert "dense: 4/4 programs" in done.stderr

    # Stopped in the middle of a line: it goes on, and what the daemon held is there still.
    record = folder / "sparse" / "rank-1.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text(lines[0] + lines[1][:20])
    done = bench(*RUN, f"--keep={folder}", "--skip=dense,stock")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert (again["resumed"], again["dense"], again["stock_jax"]) == (3, None, None)
    assert again["compiled"] + again["reused"] == 4 and again["wrong"] == 0
    assert read_record(record)[1]["lookups"] == ["hit ok"]

    other = bench("reuse", "--participants=2", "--programs=3", f"--keep={folder}")
    assert other.returncode == 2 and "another size" in other.stderr


def test_a_plan_in_which_only_backbones_hold_a_fragment(bench, tmp_path: Path) -> None:
    plan = tmp_path / "small.toml"
    plan.write_text('programs = "bench_programs:fleet"\n')
    done = bench("reuse", f"--plan={plan}", "--participants=2", "--parallel=1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["programs"] == 3 and found["plan"] == str(plan)
    assert found["largest_error"] is None and found["wrong"] == 0
    assert (found["compiled"], found["reused"]) == (3, 3)
    for arm in ("dense", "stock_jax"):  # the families are equal by themselves
        assert (found[arm]["compiled"], found[arm]["reused"], found[arm]["wrong"]) == (4, 2, 0)

    without = bench("reuse", "--plan=demo", "--participants=2")
    assert without.returncode == 2 and "rank, participants and branch" in without.stderr


@pytest.mark.long
def test_four_participants_spare_each_other_three_quarters(bench) -> None:
    done = bench("reuse", "--participants=4", "--programs=12", "--json", "--skip=dense,stock")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["compiled"], found["reused"], found["wrong"]) == (12, 36, 0)


def line(program: int, compiles: int, *, digest: str = "x", error: float = 0.0) -> dict[str, Any]:
    return {
        "program": program,
        "name": f"piece {program}",
        "compiles": compiles,
        "compile_seconds": compiles * (program + 1.0),
        "lookups": ["miss cold" if compiles else "hit ok"],
        "digest": digest,
        "error": error,
        "jax": "0",
    }


def result(*sparse: tuple[dict[str, Any], ...], stock: Any = ()) -> ReuseResult:
    arms = {"sparse": Arm("sparse", sparse, 1.0)}
    if stock:
        arms["stock"] = Arm("stock", stock, 1.0)
    return ReuseResult(Size(2, 2), arms, 0)


def test_saved_seconds_are_those_of_the_program_that_was_reused() -> None:
    numbers = result((line(0, 1), line(1, 0)), (line(1, 1), line(0, 0))).to_json()
    assert (numbers["compiled"], numbers["reused"]) == (2, 2)
    assert (numbers["compile_seconds"], numbers["compile_seconds_saved"]) == (3.0, 3.0)
    assert numbers["median_compile_seconds"] == 1.5


def test_a_program_compiled_twice_is_counted_twice() -> None:
    numbers = result((line(0, 1), line(1, 1)), (line(1, 1), line(0, 0))).to_json()
    assert (numbers["compiled"], numbers["reused"]) == (3, 1)


def test_wrong_by_the_reference_and_wrong_by_a_bit() -> None:
    good = (line(0, 1), line(1, 1))
    assert result(good, good).all_wrong == []
    far = (line(0, 1, error=1e-3), line(1, 1, error=float("nan")))
    assert len(result(good, far).all_wrong) == 2
    # In another order and by another digest: only the digest matters.
    stock = (good, (line(1, 1), line(0, 1, digest="y")))
    assert result(good, good, stock=stock).all_wrong == ["sparse: rank 1: piece 0"]


def test_mistakes_are_one_line(bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must divide 32"):
        Size(3, 1)
    (tmp_path / "mine").write_text("precious")
    for arguments, word in (
        (("--participants=3",), "must divide 32"),
        (("--skip=sparse",), "dense,stock"),
        ((f"--keep={tmp_path}",), "holds other things"),
        ((f"--keep={tmp_path / 'mine' / 'kept'}",), "can't be made"),
    ):
        done = bench("reuse", *arguments)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
