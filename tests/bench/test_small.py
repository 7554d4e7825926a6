"""`bench small`: that the programs are what it says, and what is made of the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldstart.bench.small import SmallResult

GOLDEN = json.loads((Path(__file__).parent / "golden" / "small.json").read_text())


def test_every_program_is_compiled_for_itself_and_once(bench, shape: Callable[[Any], Any]) -> None:
    done = bench("small", "--programs=20", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert shape(found) == GOLDEN
    assert done.stderr.splitlines()[-1].startswith("small: 3/3 starts, ")
    compiled = [found[start]["compiles"] for start in ("stock_jax", "first", "second")]
    assert compiled == [20, 20, 0]
    assert (found["wrong"], found["remote_objects"], found["rounds"]) == (0, 0, 1)
    assert found["daemon_cpu"] > 0


def said(wall: float, finish: float = 0.0, compiles: int = 5) -> dict[str, Any]:
    seconds = {"start": 1.0, "wall": wall, "finish": finish, "cpu": wall / 2}
    return {"jax": "0", "programs": 5, "compiles": compiles, "wrong": 0, "seconds": seconds}


def test_ratios_are_of_each_round() -> None:
    rounds = tuple(
        {"stock": said(stock), "first": said(first, finish=1.0), "second": said(1.0, compiles=0)}
        for stock, first in ((10.0, 12.0), (2.0, 5.0), (4.0, 4.0))
    )
    result = SmallResult(5, rounds, (1.0, 2.0, 3.0), 0)
    assert result.wall_ratios == [1.2, 2.5, 1.0]
    assert result.ratio("first") == {"wall": 1.2, "wall_with_finish": 1.3, "cpu": 1.2}
    assert (result.compiled_again, result.wrong) == (0, 0)
