"""The command that the figures of the models' README come from, with a few layers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.timeout(900)
def test_it_says_what_compiling_took() -> None:
    command = [
        sys.executable,
        "-m",
        "coldstart.models.glm.compiled",
        "32",
        "--pool",
        "1",
        "--layers",
        "5",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["layers"] == 5 and said["scan"] is True
    assert said["compile_cpu_seconds"] > 0 and said["serialized_bytes"] > 10_000
    # The pool, and the weights of a few layers.
    assert 1e9 < said["argument_bytes"] < 20e9
