"""`bench soundness`: five hundred pairs as a user runs them, going on after a stop, and what it counts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldstart.bench import soundness_mutations as mutations
from coldstart.bench.reuse_participant import read_record
from coldstart.bench.soundness import Plan, SoundnessResult
from coldstart.bench.soundness_spec import FAMILIES, draw
from coldstart.errors import ConfigError
from coldstart.identity import rules

GOLDEN = json.loads((Path(__file__).parent / "golden" / "soundness.json").read_text())
SEED = 11


def test_five_hundred_pairs_hold_and_every_rule_is_tried(
    bench, shape: Callable[[Any], Any], tmp_path: Path
) -> None:
    run = ("soundness", "--pairs=500", f"--seed={SEED}", f"--keep={tmp_path / 'kept'}")
    done = bench(*run, "--json", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["pairs"], found["wrong"], found["failed"]) == (500, 0, 0)
    assert found["executed"] == found["shared"]
    assert found["stripped"] >= 50
    assert min(found["per_rule"].values()) >= 3, found["per_rule"]
    assert min(found["families"].values()) >= 25
    assert found["chance"] == 0, found["kinds"]
    # JAX's own cache key shares what differs in nothing but debug text: far less.
    assert found["stock_shared"] < found["shared"]
    kinds = list(found["kinds"].values())
    assert all(shape(kind) == shape(kinds[0]) for kind in kinds)
    assert shape(found | {"kinds": {"each": kinds[0]}}) == GOLDEN

    # Stopped in the middle of a line: the same command does what is missing, and comes to the same.
    record = tmp_path / "kept" / "pairs-250.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:-2]) + lines[-2][:20])
    done = bench(*run, "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["resumed"] == 498
    passing = ("resumed", "seconds", "cpu_seconds")
    assert {k: v for k, v in again.items() if k not in passing} == {
        k: v for k, v in found.items() if k not in passing
    }
    other = bench("soundness", "--seed=12", f"--keep={tmp_path / 'kept'}")
    assert other.returncode == 2 and "holds other pairs" in other.stderr


def test_one_pair_again_is_the_same_pair(bench, tmp_path: Path) -> None:
    done = bench("soundness", f"--seed={SEED}", "--only=301", f"--keep={tmp_path / 'kept'}")
    assert done.returncode == 0, done.stderr
    program, mutation = mutations.pair(SEED, mutations.KINDS, 301)
    text = done.stdout.replace("\n", " ")
    assert f"pair 301: {', '.join(kind.name for kind in mutation.kinds)}: " in text
    assert repr(program) in text and repr(mutation.program) in text
    assert f"coldstart bench soundness --seed {SEED} --only 301" in text
    assert [line["pair"] for line in read_record(tmp_path / "kept" / "pairs-250.jsonl")] == [301]


def test_every_kind_fits_some_program_and_changes_it() -> None:
    for kind in mutations.KINDS:
        program, mutation = mutations.pair(3, (kind,), 0)
        assert mutation.program != program, kind.name
        assert mutation.same == kind.same
        # Names are all that a mutation without a say in the meaning changes, offsets of the unread aside.
        if kind.same and not kind.name.startswith("unread"):
            assert mutation.program.steps == program.steps


def test_equal_seeds_give_equal_programs_and_all_families() -> None:
    drawn = [draw(random.Random(f"{k}")) for k in range(60)]
    assert drawn == [draw(random.Random(f"{k}")) for k in range(60)]
    assert {program.family for program in drawn} == set(FAMILIES)


def line(pair: int, *, kinds: tuple[str, ...], same: bool, shared: bool, **more: Any) -> Any:
    usual = {"stock": False, "executed": shared, "fired": [], "wrong": "", "failed": "", "cpu": 0.1}
    facts = {"pair": pair, "kinds": list(kinds), "same": same, "shared": shared, "family": "solo"}
    return {**usual, **facts, "jax": "0", **more}


def test_what_is_counted_as_missed_as_chance_and_as_bad() -> None:
    lines = (
        line(0, kinds=("line", "file"), same=True, shared=True, fired=["locations"]),
        line(1, kinds=("line",), same=True, shared=False),
        line(2, kinds=("op",), same=False, shared=True),
        line(3, kinds=("op",), same=False, shared=True, wrong="differs"),
        line(4, kinds=("op",), same=False, shared=False, failed="ValueError: no"),
    )
    result = SoundnessResult(Plan(1, 5), lines, 1.0, 0)
    found = result.to_json()
    counted = ("shared", "stripped", "executed", "wrong", "missed", "chance", "failed")
    assert [found[name] for name in counted] == [3, 1, 3, 1, 1, 1, 1]
    assert found["per_rule"] == {rule.name: int(rule.name == "locations") for rule in rules.RULES}
    assert found["kinds"]["line"] == {"pairs": 2, "shared": 1, "missed": 1, "chance": 0, "wrong": 0}
    assert found["kinds"]["op"] == {"pairs": 3, "shared": 2, "missed": 0, "chance": 1, "wrong": 1}
    assert [bad["pair"] for bad in found["bad_pairs"]] == [3, 4]
    assert all(len(bad["programs"]) == 2 for bad in found["bad_pairs"])


def test_a_run_that_ends_early_says_which_pairs_were_being_judged(bench, tmp_path: Path) -> None:
    assert bench("soundness", "--pairs=2", f"--keep={tmp_path / 'kept'}").returncode == 0
    done = bench(
        "soundness", "--pairs=900", "--jobs=1", "--seconds=1", f"--keep={tmp_path / 'kept'}"
    )
    assert done.returncode == 1 and not done.stdout
    last = done.stderr.splitlines()[-1]
    assert "took longer than 1 s; pairs that were being judged: " in last
    assert int(last.split()[-1]) >= 2
    assert len(read_record(tmp_path / "kept" / "pairs-0.jsonl")) >= 2


def test_ranges_do_not_depend_on_the_number_of_pairs(tmp_path: Path) -> None:
    few, many = Plan(1, 300).pieces(tmp_path), Plan(1, 900).pieces(tmp_path)
    assert [(p.first, p.end) for p in few] == [(0, 250), (250, 300)]
    assert [(p.first, p.end) for p in many] == [(0, 250), (250, 500), (500, 750), (750, 900)]
    assert few[0] == many[0] and few[1].record == many[1].record


def test_mistakes_are_one_line(bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kind is called 'spelling mistake'"):
        Plan(1, 1, ("spelling mistake",))
    (tmp_path / "mine").write_text("precious")
    for arguments, word in (
        (("--kinds=nonsense",), "the kinds are"),
        ((f"--keep={tmp_path}",), "holds other things"),
    ):
        done = bench("soundness", *arguments)
        assert done.returncode == 2, done.stderr
        assert word in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
