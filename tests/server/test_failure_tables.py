"""The failure matrix in tests/README.md is the one that is tested."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from failure_matrix import FAULTS, VERBS, Cell, complete, table

PLACES = ("| disk |", "| redis |", "| gcs |")
HERE = Path(__file__).parent
FILES = {"disk": "test_disk_matrix", "redis": "test_redis_matrix", "gcs": "test_gcs_matrix"}
# Leases on a disk are those of one daemon; a lease has neither evictions nor formats; asking needs no room.
NOT_APPLICABLE = {"disk": len(FAULTS) + 1, "redis": 3, "gcs": 3}


def cells_of(name: str) -> Iterable[Any]:
    """The cells of another test file, which isn't a module that can be imported by name."""
    spec = importlib.util.spec_from_file_location(f"cells_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    found: Iterable[Any] = module.CELLS
    return found


@pytest.fixture(scope="module")
def cells() -> list[Any]:
    pytest.importorskip("redis")
    pytest.importorskip("google.cloud.storage")
    return [cell for name in FILES.values() for cell in cells_of(name)]


def test_the_readme_shows_it(cells: list[Any]) -> None:
    readme = (HERE.parent / "README.md").read_text()
    shown = [line for line in readme.splitlines() if line.startswith(PLACES)]
    assert shown == table(cells)[2:]


@pytest.mark.parametrize("place", FILES)
def test_no_cell_is_missing(cells: list[Any], place: str) -> None:
    assert complete(cells, place)
    tested = [cell for cell in cells if isinstance(cell, Cell) and cell.place == place]
    assert len(tested) == len(FAULTS) * len(VERBS) - NOT_APPLICABLE[place]


def test_there_are_more_than_a_hundred(cells: list[Any]) -> None:
    """Disk, Redis and a bucket together; the run's last lines say how many of them it ran."""
    assert len([cell for cell in cells if isinstance(cell, Cell)]) >= 100
