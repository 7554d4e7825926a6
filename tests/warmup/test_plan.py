"""Plans: what is accepted, what is refused and how, and what they expand to."""

from __future__ import annotations

from pathlib import Path

import pytest

from coldstart.errors import ConfigError
from coldstart.warmup.plan import Entry, expand, manifest_id, parse_plan, presets, read_plan

DEMO_ID = "6b5cee2a2b2ed6ee9c75d930220d6b8eaaefc899d416afa798bef3413cf3d377"
MODEL = 'model = "tiny-moe"\nmesh = { tp = 16, dcp = 16, ep = 16 }\n'


def test_the_demo_preset_expands_to_its_programs() -> None:
    plan = read_plan("demo")
    entries = expand(plan)
    assert entries is not None
    assert [str(entry) for entry in entries] == [
        *(f"tiny-moe.prefill tokens={n}" for n in (16, 32, 64, 128)),
        *(f"tiny-moe.decode batch={n}" for n in (1, 2, 4, 8)),
    ]
    assert (plan.name, plan.devices) == ("demo", 16)


def test_expansion_is_pure_and_its_id_is_golden() -> None:
    """An id that moves makes every manifest that is out there somebody else's."""
    plan = read_plan("demo")
    entries = expand(plan)
    assert entries == expand(read_plan("demo"))
    assert manifest_id(plan, entries or ()) == DEMO_ID


def test_every_preset_is_valid() -> None:
    assert "demo" in presets()
    for name in presets():
        assert read_plan(name).name == name


def test_the_id_is_of_what_is_compiled() -> None:
    base = MODEL + "buckets = { decode = [1, 2] }"
    plan = parse_plan(base, "a/first.toml")
    same = parse_plan('name = "other"\n# a comment\n' + base, "b/second.toml")
    other = parse_plan(base.replace("[1, 2]", "[1, 4]"), "a/first.toml")

    def identity(plan: object) -> str:
        return manifest_id(plan, expand(plan) or ())  # type: ignore[arg-type]

    assert (plan.name, same.name) == ("first", "other")
    assert identity(plan) == identity(same) != identity(other)


def test_a_plan_of_programs_is_expanded_by_its_function() -> None:
    text = 'programs = "a.b:c"\narguments = { batch = 8, layers = [1, 2] }'
    plan = parse_plan(text, "x.toml")
    assert expand(plan) is None
    assert plan.arguments == (("batch", 8), ("layers", [1, 2]))
    entries = [Entry("p", (("batch", 8),))]
    assert manifest_id(plan, entries) != manifest_id(parse_plan('programs = "a.b:c"', "x"), entries)


REFUSED = {
    "not TOML": ("name = ", "x.toml: not TOML"),
    "unknown field": (
        MODEL + "bucket = {}",
        "x.toml:3: bucket: is not a field of a plan (did you mean buckets?)",
    ),
    "later field": ("recording = 'r'\n", "x.toml:1: recording: is not supported yet"),
    "neither": ("name = 'a'", "model: a plan names either model or programs; neither"),
    "both": (MODEL + "programs = 'a:b'", "x.toml:3: programs: a plan names either"),
    "name": ('name = "a b"\n' + MODEL, "x.toml:1: name: 'a b' has more than letters"),
    "name's type": ("name = 3\n" + MODEL, "x.toml:1: name: 3 is not text"),
    "later model": ('model = "glm5.2-fp8"', "model: glm5.2-fp8 comes later; this release has"),
    "model": ('model = "tiny-mo"', "model: no model 'tiny-mo' (did you mean tiny-moe?)"),
    "function": ('programs = "a.b"', "programs: 'a.b' is not package.module:function"),
    "mesh of programs": ('programs = "a:b"\nmesh = {}', "x.toml:2: mesh: belongs to a model"),
    "dates": ('programs = "a:b"\narguments = { d = 2026-11-30 }', "arguments: holds dates"),
    "arguments": (MODEL + "arguments = {}", "x.toml:3: arguments: belongs to programs"),
    "no mesh": ('model = "tiny-moe"', "mesh: is missing; a value that works: mesh = {"),
    "mesh's type": ('model = "tiny-moe"\nmesh = 16', "x.toml:2: mesh: 16 is not a table"),
    "axis": (
        'model = "tiny-moe"\nmesh = { tp = 16, dpc = 16, ep = 16 }',
        "no axis 'dpc' (did you mean dcp?)",
    ),
    "axis missing": ('model = "tiny-moe"\nmesh = { tp = 16 }', "mesh: lacks dcp, ep"),
    "size": ('model = "tiny-moe"\nmesh = { tp = 0, dcp = 0, ep = 0 }', "tp = 0 is not a number"),
    "uneven": ('model = "tiny-moe"\nmesh = { tp = 8, dcp = 16, ep = 16 }', "same devices"),
    "impossible": (
        'model = "tiny-moe"\nmesh = { tp = 12, dcp = 12, ep = 12 }',
        "can't be split over 12 devices",
    ),
    "no buckets": (MODEL, "buckets: is missing"),
    "empty buckets": (MODEL + "buckets = {}", "buckets: there are none"),
    "phase": (MODEL + "[buckets]\nprefil = [1]", "x.toml:4: prefil: no such buckets (did you mean"),
    "sizes": (MODEL + "[buckets]\ndecode = [1, -2]", "decode: [1, -2] is not a list of sizes"),
    "truth": (MODEL + "[buckets]\ndecode = [true]", "decode: [True] is not a list of sizes"),
    "twice": (MODEL + "[buckets]\ndecode = [1, 1]", "decode: [1, 1] names a size twice"),
    "limit": (
        MODEL + "[buckets]\nprefill = [16, 512]",
        "x.toml:4: prefill: tokens 512 is over the model's limit of 256",
    ),
    "later rules": (
        MODEL + 'buckets = { rules = "tpu-inference" }',
        "x.toml:3: rules: tpu-inference comes later",
    ),
    "rules": (MODEL + 'buckets = { rules = "explicitt" }', "(did you mean explicit?)"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_a_bad_plan_is_one_line_that_names_the_fix(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_plan(text, "x.toml")
    words = str(refused.value)
    assert message in words
    assert words.startswith("plan x.toml")
    assert "\n" not in words
    assert "a value that works" in words or "not TOML" in words


def test_which_plan_a_word_means(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MODEL + "buckets = { decode = [1] }")
    assert read_plan(str(file)).name == "mine"
    with pytest.raises(ConfigError, match=r"no plan 'dmeo' \(did you mean demo\?\); presets: demo"):
        read_plan("dmeo")
    with pytest.raises(ConfigError, match="No such file"):
        read_plan(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="directory"):
        read_plan(f"{tmp_path}/")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_plan(str(file))
