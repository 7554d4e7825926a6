"""`bench hit`: both caches on a small plan, and what is made of the figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldstart.bench.hit import HitResult
from coldstart.bench.start import PHASES

GOLDEN = json.loads((Path(__file__).parent / "golden" / "hit.json").read_text())


def test_warm_starts_under_both_caches(bench, shape: Callable[[Any], Any], tmp_path: Path) -> None:
    plan = tmp_path / "small.toml"
    plan.write_text('programs = "bench_programs:small"\n')
    done = bench("hit", f"--plan={plan}", "--target=cpu:2", "--repeats=1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    loose = {
        name: "number" for name in found["ratio"]
    }  # or null, where stock's takes next to nothing
    assert shape({**found, "ratio": None}) == {**GOLDEN, "ratio": "NoneType"}
    assert loose == GOLDEN["ratio"]
    assert (found["programs"], found["devices"], found["repeats"]) == (2, 2, 1)
    for arm in ("stock_jax", "coldstart"):
        numbers = found[arm]
        assert (numbers["cold_compiles"], numbers["warm_compiles"]) == (2, 0)
        seconds = numbers["seconds"]
        assert sum(seconds[name] for name in PHASES) == pytest.approx(seconds["wall"], abs=0.01)
        assert min(seconds[name] for name in ("start", "import", "trace", "load")) > 0
        assert min(seconds.values()) >= 0
    parts = found["coldstart"]["parts"]
    seconds = found["coldstart"]["seconds"]
    assert parts["fetch"] + parts["load"] == pytest.approx(seconds["load"], abs=0.001)
    # The hook's own count and the clock around it agree: key is what of it isn't load.
    assert parts["identify"] + parts["lookup"] <= seconds["key"] + 0.001


def said(wall: float, *, compiles: int = 0, finish: float = 0.0) -> dict[str, Any]:
    return {
        "programs": 1,
        "compiles": compiles,
        "jax": "0",
        "seconds": {**dict.fromkeys(PHASES, wall / 10), "finish": finish, "wall": wall, "cpu": 1.0},
        "parts": {},
    }


def test_medians_and_ratios() -> None:
    warm = tuple(
        {"stock": said(stock), "coldstart": said(ours, finish=0.5)}
        for stock, ours in ((2.0, 3.0), (1.0, 1.0), (4.0, 2.0))
    )
    cold = {arm: said(9.0, compiles=1) for arm in ("stock", "coldstart")}
    result = HitResult("p", 1, cold, warm)
    assert result.wall_ratios == [1.5, 1.0, 0.5]
    assert result.ratio["wall"] == 1.0
    assert result.ratio["finish"] is None  # stock has none: no ratio
    assert result.warm_compiles("stock") == 0


def test_mistakes_are_one_line(bench, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    for arguments, word in (
        (("--target=local",), "only CPU devices"),
        (("--plan=none",), "none"),
        (("--target=cpu:2",), "cpu:16"),
        ((f"--keep={tmp_path}",), "not empty"),
    ):
        done = bench("hit", *arguments)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr and done.stderr.count("\n") == 1
