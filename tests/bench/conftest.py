"""`coldstart bench` as a process of its own, and the shape of JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gcs_server import cloud, gcs_process  # noqa: F401

from coldstart.demo.processes import plain_environment

Bench = Callable[..., subprocess.CompletedProcess[str]]
HERE = Path(__file__).parent


@pytest.fixture
def bench() -> Bench:
    """Run `coldstart bench` with arguments; this folder's modules can be imported by plans."""

    def run(*arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, "-m", "coldstart.cli.main", "bench", *arguments],
            env=plain_environment() | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def shape() -> Callable[[Any], Any]:
    return shape_of


def shape_of(value: Any) -> Any:
    """Names and types of a JSON value; int and float are both numbers, and of a list the first item's shape."""
    if isinstance(value, dict):
        return {
            name: "counts by name" if name == "lookups" else shape_of(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [shape_of(each) for each in value[:1]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__
