"""`bench identity`: the steps are measured on programs in which there is something to rewrite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coldstart.bench.identity import STEPS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "identity.json").read_text())


def test_steps_of_two_sizes(bench, shape: Callable[[Any], Any]) -> None:
    done = bench("identity", "--layers=1,4", "--repeats=2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert shape(found) == GOLDEN
    said = done.stderr.splitlines()  # of one and four layers, lowered and measured twice
    assert said[0] == "identity: 15 layers to go"
    assert said[-1].startswith("identity: 15/15 layers, ")
    one, four = found["sizes"]
    assert set(four["seconds"]) == set(STEPS)
    assert four["ops"] > 2 * one["ops"]
    assert four["rewrites"] == 4 * one["rewrites"] > 0  # each layer's fragment, the first one's too
    assert all(value > 0 for value in four["seconds"].values())
    # The whole is no less than its parts that can't be left out.
    parts = ("describe", "canonicalize", "normal_form")
    for size in (one, four):
        assert size["seconds"]["first"] > 0.5 * sum(size["seconds"][name] for name in parts)


def test_a_wrong_length_is_one_line(bench) -> None:
    done = bench("identity", "--layers=0,x")
    assert done.returncode == 2 and "1,32,292" in done.stderr and "Traceback" not in done.stderr
