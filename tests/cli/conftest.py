"""The command line as a user has it: a process, its exit code, its two streams."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import daemon

__all__ = ["coldstart", "daemon"]


@pytest.fixture
def coldstart(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `coldstart` with a home of its own."""

    def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        names = ("PATH", "PYTHONPATH", "LANG")
        base = {name: os.environ[name] for name in names if name in os.environ}
        return subprocess.run(
            [sys.executable, "-m", "coldstart.cli.main", *args],
            env={**base, "HOME": str(tmp_path), "COLUMNS": "100", **environ},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
