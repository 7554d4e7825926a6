"""Progress: the pace is that of this run, and the last line says where it ended."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from coldstart.bench.progress import Progress, count_lines, count_noted, note, told


def test_the_estimate_leaves_out_what_was_done_before() -> None:
    assert (
        told("sparse", 60, 50, 100, 20.0) == "sparse: 60/100 programs, 20 s, about 1 min 20 s left"
    )
    assert told("sparse", 50, 50, 100, 20.0) == "sparse: 50/100 programs, 20 s"
    assert told("sparse", 100, 50, 100, 20.0) == "sparse: 100/100 programs, 20 s"


def test_it_tells_while_records_grow_and_at_the_end_of_a_failure(tmp_path: Path) -> None:
    records = [tmp_path / "0", tmp_path / "1"]
    records[0].write_text("{}\n")
    heard: list[str] = []
    grown = threading.Event()

    def say(line: str) -> None:
        heard.append(line)
        if "2/4" in line:
            grown.set()

    count = partial(count_lines, records)
    with pytest.raises(KeyError), Progress(say, 0.01).of("dense", count, 1, 4):
        records[1].write_text("{}\n{torn")
        assert grown.wait(30)
        records[1].write_text("{}\n{}\n")
        raise KeyError
    assert heard[0] == "dense: 3 programs to go, 1 done earlier"
    assert heard[-1].startswith("dense: 3/4 programs")


def test_what_another_process_notes_is_summed_up_to_its_last_whole_line(tmp_path: Path) -> None:
    record = tmp_path / "noted"
    assert count_noted(record) == 0
    note(record)
    note(record, 32)
    assert count_noted(record) == 33
    with record.open("a") as file:
        file.write("4")  # of 40
    assert count_noted(record) == 33
