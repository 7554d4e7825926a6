"""`bench load`: every part runs, counts what it says, and a hit gives the bytes that a plain read gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOLDEN = json.loads((Path(__file__).parent / "golden" / "load.json").read_text())


def test_all_parts_in_small(bench, shape: Callable[[Any], Any]) -> None:
    done = bench("load", "--seconds=0.3", "--rounds=1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert shape(found) == GOLDEN
    rates, paced, hit = found["rates"], found["paced"], found["hit"]
    assert min(rates["lookup"], rates["empty"], rates["whole"]) > 0
    assert paced["calls"] == 60 and paced["uploaded_bytes"] >= 50 << 20
    assert hit["raw_bytes"] == 8 << 20 > hit["payload_bytes"]
    assert hit["hit"] > hit["call"] > 0
    said = done.stderr.splitlines()
    for part, things in (("rates", "6 phases"), ("paced", "2 phases"), ("hit", "6 hits")):
        count = things.split()[0]
        assert f"{part}: {things} to go" in said
        assert any(line.startswith(f"{part}: {count}/{things}, ") for line in said), said
