"""A plan: the list of programs to warm, as TOML. Read, validated, expanded; pure apart from reading the file.

    name = "demo"                      # default: the file's name
    model = "tiny-moe"                 # or: programs = "package.module:function", arguments = { ... }
    mesh = { tp = 16, dcp = 16, ep = 16 }
    buckets = { rules = "explicit", prefill = [16, 32], decode = [1, 8] }

PLAN on the command line is a preset (a bare word, in `presets/`) or a path (ends in `.toml` or has a `/`). Every
error is one ConfigError that names the file, the line, the field and a value that works. A plan with `programs` is
expanded by its own function, which needs JAX and runs in a worker; `Entry` is what both kinds expand to.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.resources
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from coldstart.errors import ConfigError

MODELS = ("tiny-moe",)
LATER_MODELS = ("glm5.2-fp8", "qwen3.5-397b")  # named in plans that people have; not built in yet
RULES = ("explicit",)
LATER_RULES = ("tpu-inference", "vllm-torchtpu")
LATER_FIELDS = ("recording", "kv", "switches")
FIELDS = ("name", "model", "programs", "arguments", "mesh", "buckets")
AXES = ("tp", "dcp", "ep")
PHASES = {"prefill": "tokens", "decode": "batch"}  # kind of bucket -> its dimension

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One program at one bucket."""

    program: str
    bucket: tuple[tuple[str, int | str], ...]  # dimension and size, in the program's order

    def __str__(self) -> str:
        return " ".join([self.program, *(f"{name}={size}" for name, size in self.bucket)])


@dataclass(frozen=True, slots=True)
class Plan:
    """A valid plan. Either `model` or `programs` is set."""

    name: str
    source: str  # the file or preset that it was read from, for messages
    model: str = ""
    programs: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()  # of the `programs` function, by name
    mesh: tuple[tuple[str, int], ...] = ()
    buckets: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def devices(self) -> int | None:
        """Devices that every entry needs; None where only the programs' function knows."""
        return dict(self.mesh)["tp"] if self.model else None


def expand(plan: Plan) -> tuple[Entry, ...] | None:
    """The entries of a plan, in its order; None where its `programs` function must be asked. Pure."""
    if not plan.model:
        return None
    return tuple(
        Entry(f"{plan.model}.{phase}", ((PHASES[phase], size),))
        for phase, sizes in plan.buckets
        for size in sizes
    )


def manifest_id(plan: Plan, entries: Iterable[Entry]) -> str:
    """sha256 (hex) of the expanded plan: what is compiled, whatever the plan is called and wherever it lies."""
    expanded = {
        "format": 1,
        "model": plan.model,
        "programs": plan.programs,
        "arguments": dict(plan.arguments),
        "mesh": dict(plan.mesh),
        "entries": [[entry.program, [list(pair) for pair in entry.bucket]] for entry in entries],
    }
    text = json.dumps(expanded, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# --- reading -------------------------------------------------------------------------------------


def presets() -> tuple[str, ...]:
    """Names of the plans that come with the package."""
    folder = importlib.resources.files("coldstart.warmup") / "presets"
    names = [path.name for path in folder.iterdir() if path.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in names))


def read_plan(word: str) -> Plan:
    """The plan that PLAN on a command line means.

    Raises:
        ConfigError: no such preset or file, or a plan that can't be used.
    """
    if word.endswith(".toml") or "/" in word:
        path = Path(word).expanduser()
        try:
            return parse_plan(path.read_text(), str(path))
        except OSError as exc:
            raise ConfigError(
                f"plan {word}: {exc.strerror or exc}; give a readable file, or a preset: {', '.join(presets())}"
            ) from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"plan {word}: not UTF-8 text; a plan is a TOML file") from exc
    if word not in presets():
        raise ConfigError(
            f"no plan {word!r}{did_you_mean(word, presets())}; presets: {', '.join(presets())}; "
            f"a file is given with a / or as {word}.toml"
        )
    folder = importlib.resources.files("coldstart.warmup") / "presets"
    return parse_plan((folder / f"{word}.toml").read_text(), f"preset {word}")


def parse_plan(text: str, source: str) -> Plan:
    """A plan out of TOML text. Raises ConfigError."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"plan {source}: not TOML: {exc}") from exc
    return _Reader(text, source, table).plan()


@dataclass(slots=True)
class _Reader:
    """One plan's fields on their way in; its methods raise ConfigError."""

    text: str
    source: str
    table: dict[str, Any]

    def plan(self) -> Plan:
        for field in self.table:
            if field in LATER_FIELDS:
                self.refuse(field, "is not supported yet", 'model = "tiny-moe"')
            if field not in FIELDS:
                self.refuse(
                    field,
                    f"is not a field of a plan{did_you_mean(field, FIELDS)}",
                    f"one of {', '.join(FIELDS)}",
                )
        kinds = [field for field in ("model", "programs") if field in self.table]
        if len(kinds) != 1:
            found = "both are given" if kinds else "neither is given"
            self.refuse(
                "programs" if kinds else "model",
                f"a plan names either model or programs; {found}",
                'model = "tiny-moe"',
            )
        name = self.words("name", Path(self.source).stem.removeprefix("preset "))
        if not _NAME.fullmatch(name):
            self.refuse(
                "name", f"{name!r} has more than letters, digits and . _ -", 'name = "demo"'
            )
        if kinds == ["programs"]:
            return self.of_programs(name)
        return self.of_model(name)

    def of_programs(self, name: str) -> Plan:
        where = self.words("programs", "")
        if not _FUNCTION.fullmatch(where):
            self.refuse(
                "programs",
                f"{where!r} is not package.module:function",
                'programs = "my_model.serving:programs"',
            )
        for field in ("mesh", "buckets"):
            if field in self.table:
                self.refuse(
                    field,
                    "belongs to a model; the programs' function is given `arguments`",
                    "arguments = { batch = 8 }",
                )
        arguments = self.subtable("arguments", {}, "arguments = { batch = 8 }")
        try:
            json.dumps(arguments)
        except TypeError:
            self.refuse(
                "arguments",
                "holds dates; give numbers, text, lists and tables",
                'day = "2026-11-30"',
            )
        return Plan(name, self.source, programs=where, arguments=tuple(sorted(arguments.items())))

    def of_model(self, name: str) -> Plan:
        model = self.words("model", "")
        if model in LATER_MODELS:
            self.refuse(
                "model",
                f"{model} comes later; this release has {', '.join(MODELS)}",
                'model = "tiny-moe"',
            )
        if model not in MODELS:
            self.refuse(
                "model",
                f"no model {model!r}{did_you_mean(model, (*MODELS, *LATER_MODELS))}; other programs are "
                'given with programs = "package.module:function"',
                'model = "tiny-moe"',
            )
        if "arguments" in self.table:
            self.refuse("arguments", "belongs to programs", "buckets = { decode = [1, 8] }")
        return Plan(name, self.source, model=model, mesh=self.mesh(), buckets=self.buckets())

    def mesh(self) -> tuple[tuple[str, int], ...]:
        from coldstart.models.config import TINY  # plain numbers, no JAX

        good = "mesh = { tp = 16, dcp = 16, ep = 16 }"
        mesh = self.subtable("mesh", None, good)
        for axis, size in mesh.items():
            if axis not in AXES:
                self.refuse("mesh", f"no axis {axis!r}{did_you_mean(axis, AXES)}", good)
            if not _is_count(size):
                self.refuse("mesh", f"{axis} = {size!r} is not a number of devices", good)
        missing = [axis for axis in AXES if axis not in mesh]
        if missing:
            self.refuse("mesh", f"lacks {', '.join(missing)}", good)
        if len(set(mesh.values())) != 1:
            self.refuse("mesh", "tiny-moe lays all three axes over the same devices", good)
        try:
            TINY.check(mesh["tp"])
        except ValueError as exc:
            self.refuse("mesh", str(exc), good)
        return tuple((axis, mesh[axis]) for axis in AXES)

    def buckets(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        from coldstart.models.config import TINY

        limits = {"prefill": TINY.positions, "decode": TINY.slots}
        good = "buckets = { prefill = [16, 32], decode = [1, 8] }"
        table = self.subtable("buckets", None, good)
        rules = table.pop("rules", "explicit")
        if rules in LATER_RULES:
            self.refuse("rules", f"{rules} comes later; list the buckets", 'rules = "explicit"')
        if rules not in RULES:
            self.refuse(
                "rules",
                f"no rules {rules!r}{did_you_mean(str(rules), RULES)}",
                'rules = "explicit"',
            )
        for phase, sizes in table.items():
            if phase not in PHASES:
                self.refuse(
                    phase, f"no such buckets{did_you_mean(phase, (*PHASES, 'rules'))}", good
                )
            if not isinstance(sizes, list) or not sizes or not all(map(_is_count, sizes)):
                self.refuse(phase, f"{sizes!r} is not a list of sizes", good)
            if len(set(sizes)) != len(sizes):
                self.refuse(phase, f"{sizes} names a size twice", good)
            if max(sizes) > limits[phase]:
                self.refuse(
                    phase,
                    f"{PHASES[phase]} {max(sizes)} is over the model's limit of {limits[phase]}",
                    f"{phase} = [{limits[phase]}]",
                )
        if not table:
            self.refuse("buckets", "there are none", good)
        return tuple((phase, tuple(table[phase])) for phase in PHASES if phase in table)

    # One field at a time.

    def words(self, field: str, default: str) -> str:
        value = self.table.get(field, default)
        if not isinstance(value, str) or not value.strip():
            self.refuse(field, f"{value!r} is not text", f'{field} = "demo"')
        return value.strip()

    def subtable(self, field: str, default: dict[str, Any] | None, good: str) -> dict[str, Any]:
        value = self.table.get(field, default)
        if value is None:
            self.refuse(field, "is missing", good)
        if not isinstance(value, dict):
            self.refuse(field, f"{value!r} is not a table", good)
        return dict(value)

    def refuse(self, field: str, problem: str, good: str) -> NoReturn:
        line = self.line_of(field)
        where = f"{self.source}:{line}" if line else self.source
        raise ConfigError(f"plan {where}: {field}: {problem}; a value that works: {good}")

    def line_of(self, field: str) -> int:
        """Where a field stands; 0 where it doesn't."""
        pattern = re.compile(
            rf"""^\s*\[?\s*["']?{re.escape(field)}["']?\s*[\].=]|[{{,]\s*{re.escape(field)}\s*="""
        )
        for number, line in enumerate(self.text.splitlines(), 1):
            if pattern.search(line):
                return number
        return 0


def entry_of(program: str, bucket: Mapping[str, int | str]) -> Entry:
    """An entry from a program's name and bucket."""
    return Entry(program, tuple(bucket.items()))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
