"""Mutations for `bench soundness`: one change of a program, and whether it may change what the program means."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from coldstart.bench.soundness_spec import (
    ALWAYS_READ,
    FLOATS,
    INTEGERS,
    OPS,
    Names,
    Program,
    Step,
    another_spread,
    changed,
    draw,
    offsets,
    walk,
)
from coldstart.errors import ConfigError

TOGETHER = 8  # pairs that share their first program
_DRAWS = 1000  # programs that are drawn in search of one that a kind of mutation fits

Change = Callable[[random.Random, Program], "Program | None"]  # None: it doesn't fit this program


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of mutation."""

    name: str
    same: bool  # it keeps the meaning, by construction
    rules: tuple[str, ...]  # those that may have to fire for the two to share
    change: Change
    weight: int = 2  # the higher, the sooner it is drawn; low for what fits nearly every program


@dataclass(frozen=True, slots=True)
class Mutation:
    """A program that was changed, and how."""

    program: Program
    kinds: tuple[Kind, ...]

    @property
    def same(self) -> bool:
        return all(kind.same for kind in self.kinds)

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rule for kind in self.kinds for rule in kind.rules))


def _steps(program: Program, fits: Callable[[Step], bool]) -> list[tuple[tuple[Any, ...], Step]]:
    return [(path, step) for path, step in walk(program) if fits(step)]


def _at(
    fits: Callable[[Step], bool], change: Callable[[random.Random, Program, Step], Step | None]
) -> Change:
    """Change one step, drawn from those that fit."""

    def apply(rng: random.Random, program: Program) -> Program | None:
        found = _steps(program, fits)
        if not found:
            return None
        path, step = rng.choice(found)
        new = change(rng, program, step)
        return None if new is None or new == step else changed(program, path, new)

    return apply


def _of(step: Step, place: int, value: Any) -> Step:
    return replace(step, of=(*step.of[:place], value, *step.of[place + 1 :]))


def _other(rng: random.Random, values: tuple[Any, ...], old: Any) -> Any:
    # By print: 0.0 and -0.0 are two constants.
    return rng.choice([value for value in values if repr(value) != repr(old)])


# --- what keeps the meaning ----------------------------------------------------------------------


def _is_cut(how: tuple[str, ...], reading: tuple[str, ...]) -> Callable[[Step], bool]:
    return lambda step: step.kind == "cut" and step.of[0] in how and step.of[3] in reading


def _offset(rng: random.Random, program: Program, step: Step) -> Step | None:
    return _of(step, 1, _other(rng, tuple(range(offsets(program))), step.of[1]))


def _names(change: Callable[[random.Random, Names], Names]) -> Change:
    return lambda rng, program: replace(program, names=change(rng, program.names))


def _word(rng: random.Random, old: str = "") -> str:
    words = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "theta")
    return f"{rng.choice(words)}_{rng.randrange(100)}"


def _functions(rng: random.Random, program: Program) -> Program | None:
    if not _steps(program, lambda step: step.kind == "call"):
        return None
    old = program.names.functions
    new = old[::-1] if rng.random() < 0.4 else tuple(f"{_word(rng)}_{k}" for k in range(len(old)))
    return replace(program, names=replace(program.names, functions=new))


def _turn_functions(rng: random.Random, program: Program) -> Program | None:
    if len({step.of for _, step in walk(program) if step.kind == "call"}) < 2:
        return None
    turned = not program.names.functions_turned
    return replace(program, names=replace(program.names, functions_turned=turned))


def _kernel_name(rng: random.Random, program: Program) -> Program | None:
    if program.family != "kernel" or not _steps(program, _has_kernel):
        return None
    return replace(program, names=replace(program.names, kernel=_word(rng)))


def _axes(rng: random.Random, program: Program) -> Program | None:
    if not program.mesh:
        return None
    old = program.names.axes
    new = rng.choice((old[1::-1] + old[2:], ("data", "model", "expert"), ("zeta", "eta", "alpha")))
    return None if new == old else replace(program, names=replace(program.names, axes=new))


def _spelling(rng: random.Random, program: Program) -> Program | None:
    if program.family != "solo":
        return None
    new = _other(rng, ("none", "single", "named", "named two"), program.names.spelling)
    return replace(program, names=replace(program.names, spelling=new))


def _turn_devices(rng: random.Random, program: Program) -> Program | None:
    if not program.mesh:
        return None
    turned = not program.names.devices_turned
    return replace(program, names=replace(program.names, devices_turned=turned))


# --- what changes it -----------------------------------------------------------------------------


_CUTS = ("static", "dynamic", "strided", "function", "wrapped")


def _has_kernel(step: Step) -> bool:
    return step.kind == "cut" and step.of[2] in ("kernel", "grid", "map", "alias")


def _reading(old: str, new: str) -> Change:
    def change(rng: random.Random, program: Program, step: Step) -> Step | None:
        unfit = new == "read" and step.of[2] == "idle"
        return None if step.of[2] in ALWAYS_READ or unfit else _of(step, 3, new)

    return _at(_is_cut(_CUTS, (old,)), change)


def _constants(program: Program) -> tuple[Any, ...]:
    return INTEGERS if program.is_integer else FLOATS


def _swap_calls(rng: random.Random, program: Program) -> Program | None:
    calls = [(path, step) for path, step in walk(program) if step.kind == "call"]
    calls = [(path, step) for path, step in calls if path[0] == "steps"]
    if not calls:
        return None
    if rng.random() < 0.5:
        path, step = rng.choice(calls)
        return changed(program, path, Step("call", (1 - step.of[0],)))
    for path, step in calls:
        program = changed(program, path, Step("call", (1 - step.of[0],)))
    return program


def _step_order(rng: random.Random, program: Program) -> Program | None:
    steps = list(program.steps)
    places = [k for k in range(len(steps) - 1) if steps[k] != steps[k + 1]]
    if not places:
        return None
    place = rng.choice(places)
    steps[place : place + 2] = steps[place + 1], steps[place]
    return replace(program, steps=tuple(steps))


def _collective_axis(rng: random.Random, program: Program, step: Step) -> Step | None:
    if len(program.mesh) < 2:
        return None
    axis = _other(rng, tuple(range(len(program.mesh))), step.of[0])
    new = _of(step, 0, axis)
    if len(step.of) > 1:
        new = _of(new, 1, min(step.of[1], program.mesh[axis] - 1))
    return new


def _collective_op(rng: random.Random, program: Program, step: Step) -> Step | None:
    return replace(step, kind={"psum": "pmax", "pmax": "psum"}[step.kind])


def _permutation(rng: random.Random, program: Program, step: Step) -> Step | None:
    shifts = tuple(range(program.mesh[step.of[0]]))
    return _of(step, 1, _other(rng, shifts, step.of[1]))


def _roll(rng: random.Random, program: Program, step: Step) -> Step | None:
    size = program.block[step.of[1]]
    return None if size == 1 else _of(step, 0, (step.of[0] + rng.randrange(1, size)) % size)


def _spread(rng: random.Random, program: Program) -> Program | None:
    if program.family != "auto":
        return None
    return replace(program, spread=another_spread(rng, program.mesh, program.spread))


def _mesh_shape(rng: random.Random, program: Program) -> Program | None:
    others = {
        (4, 4): (2, 8),
        (2, 8): (4, 4),
        (8, 2): (4, 4),
        (2, 2): (4, 2),
        (16,): (8,),
        (4,): (2,),
    }
    if program.mesh not in others or program.family != "auto":
        return None
    return replace(program, mesh=others[program.mesh])


def _shape(rng: random.Random, program: Program) -> Program | None:
    if program.family != "solo":
        return None
    return replace(program, shape=_other(rng, ((4, 8), (2, 16), (8, 4), (4, 16)), program.shape))


def _dtype(rng: random.Random, program: Program) -> Program | None:
    new = {"float32": "bfloat16", "bfloat16": "float32", "int32": "uint32"}[program.dtype]
    return None if program.family == "kernel" else replace(program, dtype=new)


def _is(*kinds: str) -> Callable[[Step], bool]:
    return lambda step: step.kind in kinds


LOCATIONS = "locations"
KINDS = (
    Kind("unread static offset", True, ("unread-fragment-offset",),
         _at(_is_cut(("static", "strided", "function"), ("unread",)), _offset), weight=4),
    Kind("unread dynamic offset", True, ("dead-constant-start",),
         _at(_is_cut(("dynamic",), ("unread",)), _offset), weight=4),
    # JAX itself computes with a start that is an array, in case it is negative.
    Kind("unread wrapped offset", True, ("dead-constant-start",),
         _at(_is_cut(("wrapped",), ("unread",)), _offset)),
    Kind("line", True, (LOCATIONS,), _names(lambda r, n: replace(n, line=n.line + r.randrange(1, 50))), weight=1),
    Kind("file", True, (LOCATIONS,), _names(lambda r, n: replace(n, file=f"/srv/{_word(r)}.py")), weight=1),
    Kind("program name", True, ("module-name", LOCATIONS),
         _names(lambda r, n: replace(n, program=_word(r))), weight=1),
    Kind("function names", True, ("symbol-names", LOCATIONS), _functions),
    Kind("function order", True, ("symbol-order",), _turn_functions),
    Kind("output names", True, ("result-info",),
         _names(lambda r, n: replace(n, outputs=(f"a_{_word(r)}", f"b_{_word(r)}"))), weight=1),
    Kind("kernel name", True, ("kernel-names", LOCATIONS), _kernel_name),
    Kind("axis names", True, ("mesh-axes",), _axes),
    Kind("spelling", True, ("one-device",), _spelling),
    Kind("device order", True, (), _turn_devices),
    Kind("read offset", False, (), _at(_is_cut(_CUTS, ("read", "second", "counted")), _offset)),
    Kind("read", False, (), _reading("unread", "read")),
    Kind("second use", False, (), _reading("unread", "second")),
    Kind("constant", False, (),
         _at(lambda s: s.kind == "op" and s.of[0] in OPS[:5],
             lambda r, p, s: _of(s, 1, _other(r, _constants(p), s.of[1])))),
    Kind("op", False, (), _at(_is("op"), lambda r, p, s: _of(s, 0, _other(r, OPS, s.of[0])))),
    Kind("operands", False, (), _at(_is("mix"), lambda r, p, s: _of(_of(s, 0, "minus"), 1, not s.of[1]))),
    Kind("dimension", False, (), _at(_is("flip", "total"), lambda r, p, s: _of(s, 0, 1 - s.of[0]))),
    Kind("roll", False, (),
         _at(_is("roll"), _roll)),
    Kind("rounds", False, (), _at(_is("loop"), lambda r, p, s: _of(s, 1, s.of[1] + 1))),
    Kind("threshold", False, (), _at(_is("branch"), lambda r, p, s: _of(s, 0, _other(r, (0, 1, -1), s.of[0])))),
    Kind("branches", False, (), _at(_is("branch"), lambda r, p, s: replace(s, body=s.other, other=s.body))),
    Kind("callee", False, (), _swap_calls),
    Kind("step order", False, (), _step_order),
    Kind("kernel body", False, (), _at(_has_kernel, lambda r, p, s: _of(s, 4, 5 - s.of[4]))),
    Kind("collective axis", False, (),
         _at(_is("psum", "pmax", "gather", "permute", "index"), _collective_axis)),
    Kind("collective op", False, (), _at(_is("psum", "pmax"), _collective_op)),
    Kind("permutation", False, (), _at(_is("permute", "gather"), _permutation)),
    Kind("constraint", False, (),
         _at(_is("constrain"), lambda r, p, s: replace(s, of=another_spread(r, p.mesh, s.of)))),
    Kind("spread", False, (), _spread),
    Kind("mesh shape", False, (), _mesh_shape),
    Kind("shape", False, (), _shape, weight=1),
    Kind("dtype", False, (), _dtype, weight=1),
    Kind("donation", False, (), lambda r, p: replace(p, donate=not p.donate), weight=1),
    Kind("output order", False, (), lambda r, p: replace(p, outputs_turned=not p.outputs_turned), weight=1),
)  # fmt: skip
NAMES = tuple(kind.name for kind in KINDS)


def known(names: tuple[str, ...]) -> tuple[Kind, ...]:
    """The kinds of these names, all where there is none. Raises ConfigError for one that doesn't exist."""
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"no kind is called {name!r}; the kinds are {', '.join(NAMES)}")
    return tuple(kind for kind in KINDS if not names or kind.name in names)


def fits(program: Program, kinds: tuple[Kind, ...]) -> bool:
    """Can one of the kinds change this program?"""
    return any(_tried(random.Random(0), program, kind) is not None for kind in kinds)


def pair(seed: int, kinds: tuple[Kind, ...], number: int) -> tuple[Program, Mutation]:
    """The two programs of a pair. Raises ConfigError where no program fits the kinds."""
    rng = random.Random(f"{seed}/program/{number // TOGETHER}")
    for _ in range(_DRAWS):
        program = draw(rng)
        if fits(program, kinds):
            return program, mutate(random.Random(f"{seed}/pair/{number}"), program, kinds)
    raise ConfigError(f"no program fits the kinds {', '.join(kind.name for kind in kinds)}")


def mutate(rng: random.Random, program: Program, kinds: tuple[Kind, ...] = KINDS) -> Mutation:
    """Up to three changes at once: in three of five cases such that keep the meaning, else one that doesn't.

    Raises ConfigError where no kind fits.
    """
    keeping = [kind for kind in kinds if kind.same]
    changing = [kind for kind in kinds if not kind.same]
    wanted: list[list[Kind]] = [keeping] * rng.choice((1, 1, 2, 3))
    if not keeping or (changing and rng.random() < 0.4):
        wanted = [changing, *wanted[1:]] if keeping else [changing]
    done: list[Kind] = []
    changed_program = program
    for pool in (*wanted, *(() if not keeping else (keeping,)), list(kinds)):
        if len(done) >= len(wanted):
            break
        for kind in _shuffled(rng, pool):
            new = _tried(rng, changed_program, kind) if kind not in done else None
            if new is not None:
                changed_program, done = new, [*done, kind]
                break
    if not done or changed_program == program:
        raise ConfigError("none of the kinds fits the program")
    return Mutation(changed_program, tuple(done))


def _shuffled(rng: random.Random, pool: list[Kind]) -> list[Kind]:
    return sorted(pool, key=lambda kind: rng.random() ** kind.weight)


def _tried(rng: random.Random, program: Program, kind: Kind) -> Program | None:
    new = kind.change(rng, program)
    return None if new == program else new
