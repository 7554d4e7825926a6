"""The plan manifest: whole or absent, and what the next run takes from it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from coldstart.errors import ConfigError
from coldstart.warmup import manifest
from coldstart.warmup.manifest import ManifestEntry, recorded_seconds, write_manifest
from coldstart.warmup.plan import Entry, read_plan
from coldstart.warmup.run import Program, Warmed
from coldstart.warmup.targets import parse_target

ENTRY = ManifestEntry("p batch=1", "cs1-a", "d", 1.5)


def write(path: Path) -> None:
    write_manifest(path, plan="demo", manifest="m", target="cpu:16", entries=[ENTRY])


def test_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write(path)
    content = json.loads(path.read_text())
    assert (content["plan"], content["manifest"], content["target"]) == ("demo", "m", "cpu:16")
    assert recorded_seconds(path) == {"cs1-a": 1.5}
    assert os.listdir(tmp_path) == ["m.json"]


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest.os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["m.json"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe)
        assert json.loads(os.read(reading, 10_000))["plan"] == "demo"
    finally:
        os.close(reading)
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a file in a folder"):
        write(tmp_path / "none" / "m.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"entries": [1]}', '{"entries": 3}'])
def test_what_is_no_manifest_records_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    assert recorded_seconds(path) == {}
    assert recorded_seconds(tmp_path / "none.json") == {}


def warmed(*programs: Program) -> Warmed:
    found = Warmed(read_plan("demo"), parse_target("cpu:16"))
    found.programs = list(programs)
    found.entries = tuple(program.entry for program in programs)
    found.keys = {program.index: program.key for program in programs if program.key}
    return found


def test_a_manifest_is_whole_or_absent() -> None:
    good = Program(0, Entry("a", ()), key="k0", digest="d", outcome="compiled", compile_seconds=2)
    bad = Program(1, Entry("b", ()), key="k1", outcome="failed", message="no")
    lost = Program(1, Entry("b", ()), outcome="failed", message="can't be lowered")
    alone = Program(1, Entry("b", ()), key="k1", outcome="unshareable")
    assert warmed(good, bad).manifest_entries() is None
    assert warmed(good, lost).manifest_entries() is None
    assert warmed(good, alone).manifest_entries() == [
        ManifestEntry("a", "k0", "d", 2),
        ManifestEntry("b", "", "", 0.0),
    ]
