"""`bench hit`: both caches on a small plan, and what is made of the figures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from gcs_server import PACKAGE
from rich.console import Console

from coldstart.bench import redis_here
from coldstart.bench.hit import HitResult
from coldstart.bench.start import PHASES
from coldstart.bench.tiers import show

GOLDEN = json.loads((Path(__file__).parent / "golden" / "hit.json").read_text())


@pytest.fixture
def bucket_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of the emulator, as somebody names it who has one; "": the extra is missing here."""
    if PACKAGE not in metadata.packages_distributions():
        return ""
    cloud = request.getfixturevalue("cloud")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", cloud.proxy.url)
    return f"gs://{cloud.bucket}/bench"


def test_warm_starts_under_both_caches_and_hits_of_every_tier(
    bench, shape: Callable[[Any], Any], tmp_path: Path, bucket_url: str
) -> None:
    plan = tmp_path / "small.toml"
    plan.write_text('programs = "bench_programs:small"\n')
    stores = [f"--store={bucket_url}"] if bucket_url else []
    few = ("--repeats=1", "--sizes=20kB,200kB", "--seconds=0.05")
    done = bench("hit", f"--plan={plan}", "--target=cpu:2", *few, "--json", *stores)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tiers(found["tiers"], [bucket_url] if bucket_url else [])
    said = done.stderr.splitlines()
    assert said[-2] == "starts: 4 starts to go" and said[-1].startswith("starts: 4/4 starts, ")
    places = 3 + ("redis" not in found["tiers"]["left_out"]) + len(stores)
    total = 2 * (2 * (1 + places) + 6 + 1 + places)
    assert said[0] == f"tiers: {total} measurements to go"
    assert said[-3].startswith(f"tiers: {total}/{total} measurements, ")
    phases(found, shape)


def tiers(found: dict[str, Any], stores: list[str]) -> None:
    """Every tier was asked, and gave what a plain read gives; JAX's own cache had the same programs."""
    missing = (
        redis_here.missing()
    )  # only where the extra is: the suite's own stacks have redis-server
    assert found["left_out"] == ({"redis": missing} if missing else {})
    for size, asked in zip(found["sizes"], (20_000, 200_000), strict=True):
        assert asked < size["raw_bytes"] < 2 * asked + 50_000
        assert size["payload_bytes"] < size["raw_bytes"] and size["stock_bytes"] > asked / 4
        rows = {row["place"]: numbers(row) for row in size["places"]}
        own = ["disk, by path", "disk, by stream", "memory", *["redis"] * (not missing), *stores]
        assert list(rows) == ["plain", *own, "stock"]
        plain, stock = rows.pop("plain"), rows.pop("stock")
        assert plain["program"] is None is stock["p50"] and plain["over_plain"] == 1.0
        assert stock["program"] > stock["load"] > 0 and stock["over_stock"] == 1.0
        for row in rows.values():
            assert min(row.values()) > 0 and row["p99"] >= row["p50"]
            assert row["program"] > row["load"]
            assert row["over_plain"] == pytest.approx(row["p50"] / plain["p50"], rel=0.1, abs=0.02)
            rate = row["hits_per_second"] * size["raw_bytes"]
            assert row["bytes_per_second"] == pytest.approx(rate, rel=0.01)


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "place"}


def test_what_can_not_be_had_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "redis-server" not in redis_here.missing()
    monkeypatch.setenv("PATH", str(tmp_path))
    why = redis_here.missing()
    assert "apt-get install redis-server" in why
    console = Console(record=True, file=io.StringIO(), width=200)
    show({"sizes": [], "left_out": {"redis": why}, "in_flight": 4}, console)
    assert f"redis was left out: {why}." in console.export_text()


def phases(found: dict[str, Any], shape: Callable[[Any], Any]) -> None:
    loose = {
        name: "number" for name in found["ratio"]
    }  # or null, where stock's takes next to nothing
    found["tiers"]["left_out"] = {}
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
        (("--sizes=8MB,12",), "100kB,8MB"),
        (("--store=ftp://there",), "ftp"),
    ):
        done = bench("hit", *arguments)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr and done.stderr.count("\n") == 1
