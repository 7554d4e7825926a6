"""Random programs for `bench soundness`, as plain data: what a program does, and what everything in it is called.

A program takes `x` and `q`, changes `x` step by step and returns it beside a copy that was doubled. `q` is what
fragments are cut from. Four families:

    solo     one device
    kernel   one device, and Pallas kernels that are opaque: lowered for TPU; an interpret-mode twin runs in their place
    manual   `shard_map` over a mesh, with collectives
    auto     one sharded `jit` over a mesh, with sharding constraints
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

FAMILIES = ("solo", "kernel", "manual", "auto")
DEVICES = 16
FLOATS = (0.0, -0.0, 1.5, 2.0, -1.0, 0.5, 3.0)
INTEGERS = (0, 1, 2, 3, 5, -7)
OPS = ("add", "from", "times", "larger", "smaller", "negate", "size")
OPAQUE = ("kernel", "grid", "map", "alias")  # uses of a fragment by a Pallas kernel
PLAIN = ("argument", "loop", "scanned", "branch", "idle", "steer")
# Whatever the body does: an index map, an output, a loop's bound reads it.
ALWAYS_READ = ("map", "alias", "steer")
_MESHES = ((16,), (4, 4), (2, 8), (8, 2), (2, 2), (4,), (2, 2, 4))


@dataclass(frozen=True, slots=True)
class Step:
    """One change of `x`. What `of` holds depends on the kind; loops and branches hold steps."""

    kind: str
    of: tuple[Any, ...] = ()
    body: tuple[Step, ...] = ()
    other: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """What is for people: nothing here may change what a program computes."""

    program: str = "step"
    file: str = "/app/model.py"
    line: int = 1
    functions: tuple[str, ...] = ("inner", "outer")
    kernel: str = "attend"
    axes: tuple[str, ...] = ("x", "y", "z")
    outputs: tuple[str, str] = ("first", "second")
    spelling: str = "none"  # of one device
    functions_turned: bool = False  # private functions stand in reverse order
    devices_turned: bool = False  # the mesh holds its devices in reverse order


@dataclass(frozen=True, slots=True)
class Program:
    """A program as data; equal programs lower to equal modules."""

    family: str
    steps: tuple[Step, ...]
    functions: tuple[tuple[Step, ...], ...]
    shape: tuple[int, int]  # of x, over all devices
    dtype: str
    mesh: tuple[int, ...] = ()
    spread: tuple[int | None, ...] = (
        None,
        None,
    )  # the mesh axis over which each dimension of x lies
    donate: bool = False
    outputs_turned: bool = False
    merged: bool = False  # equal ops of a block are one, as other front ends have it: constants have several uses
    names: Names = Names()

    @property
    def block(self) -> tuple[int, int]:
        """The shape of x as steps see it: a device's part in the family `manual`, else all of it."""
        if self.family != "manual":
            return self.shape
        parts = [1 if axis is None else self.mesh[axis] for axis in self.spread]
        return self.shape[0] // parts[0], self.shape[1] // parts[1]

    @property
    def pool(self) -> tuple[int, int]:
        """The shape of q: room for four fragments."""
        return self.shape[0] * 4, self.shape[1]

    @property
    def is_integer(self) -> bool:
        return self.dtype == "int32"


def walk(program: Program) -> Iterator[tuple[tuple[Any, ...], Step]]:
    """Every step that can be reached, with its path: where it hangs ("steps" or a function's number), then places."""
    waiting: list[Any] = ["steps"]
    for root in waiting:
        steps = program.steps if root == "steps" else program.functions[root]
        for path, step in _walk((root,), steps):
            if step.kind == "call" and step.of[0] not in waiting:
                waiting.append(step.of[0])
            yield path, step


def _walk(path: tuple[Any, ...], steps: tuple[Step, ...]) -> Iterator[tuple[tuple[Any, ...], Step]]:
    for place, step in enumerate(steps):
        here = (*path, place)
        yield here, step
        yield from _walk((*here, "body"), step.body)
        yield from _walk((*here, "other"), step.other)


def changed(program: Program, path: tuple[Any, ...], step: Step) -> Program:
    """The program with another step at `path`."""
    root = path[0]
    if root == "steps":
        return replace(program, steps=_changed(program.steps, path[1:], step))
    functions = list(program.functions)
    functions[root] = _changed(functions[root], path[1:], step)
    return replace(program, functions=tuple(functions))


def _changed(steps: tuple[Step, ...], path: tuple[Any, ...], step: Step) -> tuple[Step, ...]:
    place, *rest = path
    if rest:
        branch, old = rest[0], steps[place]
        step = replace(old, **{branch: _changed(getattr(old, branch), tuple(rest[1:]), step)})
    return (*steps[:place], step, *steps[place + 1 :])


# --- random programs -----------------------------------------------------------------------------


def draw(rng: random.Random, families: tuple[str, ...] = FAMILIES) -> Program:
    """A program, small enough to compile in some tens of milliseconds."""
    family = rng.choice(families)
    dtype = rng.choice(("float32", "float32", "int32", "bfloat16"))
    if family == "kernel":
        dtype, shape = rng.choice(("float32", "float32", "int32")), (8, 128)
    elif family == "solo":
        shape = rng.choice(((4, 8), (4, 8), (2, 16)))
    else:
        shape = (16, 16)
    program = Program(family, (), (), shape, dtype, names=_draw_names(rng, family))
    if family in ("manual", "auto"):
        mesh = rng.choice(_MESHES)
        spread: list[int | None] = [rng.randrange(len(mesh)), None]
        if len(mesh) > 1 and rng.random() < 0.5:
            spread[1] = next(k for k in range(len(mesh)) if k != spread[0])
        rng.shuffle(spread)
        program = replace(program, mesh=mesh, spread=tuple(spread))
    inner = (_step(rng, program, "pure"), *_maybe(rng, 0.2, lambda: _cut(rng, program)))
    outer = (
        _step(rng, program, "pure", but=inner[0]),
        *_maybe(rng, 0.4, lambda: Step("call", (0,))),
    )
    program = replace(program, functions=(inner, outer), donate=rng.random() < 0.2)
    program = replace(program, merged=rng.random() < 0.3)
    steps = [_step(rng, program, "any")]
    steps += _maybe(rng, 0.75, lambda: _cut(rng, program))
    steps += _maybe(rng, 0.6, lambda: Step("call", (0,)))
    steps += _maybe(rng, 0.6, lambda: Step("call", (1,)))
    steps += _maybe(rng, 0.2, lambda: Step("call", (rng.randrange(2),)))
    steps += _maybe(rng, 0.3, lambda: _region(rng, program))
    if family == "manual":
        steps += [_collective(rng, program)]
    if family == "auto":
        steps += [_spreading(rng, program)]
    rng.shuffle(steps)
    return replace(program, steps=tuple(steps))


def _maybe(rng: random.Random, chance: float, make: Callable[[], Step]) -> list[Step]:
    return [make()] if rng.random() < chance else []


def _draw_names(rng: random.Random, family: str) -> Names:
    spelling = rng.choice(("none", "single", "named", "named two")) if family == "solo" else "none"
    return Names(line=rng.randrange(1, 40), spelling=spelling, functions_turned=rng.random() < 0.2)


def _constant(rng: random.Random, program: Program) -> float:
    return rng.choice(INTEGERS if program.is_integer else FLOATS)


def _step(rng: random.Random, program: Program, what: str, but: Step | None = None) -> Step:
    step = _any_step(rng, program, what)
    while step == but:
        step = _any_step(rng, program, what)
    return step


def _any_step(rng: random.Random, program: Program, what: str) -> Step:
    kind = rng.choice(("op", "op", "op", "flip", "roll", "mix"))
    if what == "any" and rng.random() < 0.2:
        return _region(rng, program)
    if kind == "flip":
        return Step("flip", (rng.randrange(2),))
    if kind == "roll":
        return Step("roll", (rng.randrange(1, max(2, program.block[1])), 1))
    if kind == "mix":
        return Step("mix", (rng.choice(("minus", "plus")), rng.random() < 0.5))
    return Step("op", (rng.choice(OPS), _constant(rng, program)))


def _region(rng: random.Random, program: Program) -> Step:
    """A loop or a branch. No collective in it: a predicate or bound of data differs between devices."""
    body = (_step(rng, program, "pure"), *_maybe(rng, 0.3, lambda: _cut(rng, program)))
    kind = rng.choice(("scan", "for", "while", "bound", "branch", "branch"))
    if kind == "branch":
        return Step("branch", (rng.choice((0, 1, -1)),), body, (_step(rng, program, "pure"),))
    return Step("loop", (kind, rng.randrange(2, 5)), body)


def _cut(rng: random.Random, program: Program) -> Step:
    """A fragment: how it is cut, where, who gets it, who reads it, and a number for its user.

    Read by: nobody; its user; a second user beside one that doesn't; or nobody, but where it begins is read.
    """
    how = rng.choice(("static", "static", "dynamic", "dynamic", "strided", "function", "wrapped"))
    if program.family == "kernel":
        use = rng.choice((*OPAQUE, "kernel", "kernel", rng.choice(PLAIN)))
    elif program.family == "solo":
        use = rng.choice((*PLAIN, rng.choice(OPAQUE)))
    else:
        use = rng.choice(PLAIN)
    reading = rng.choice(("unread", "unread", "unread", "read", "second"))
    if use in ALWAYS_READ:
        reading = "read"
    elif use == "idle" and reading == "read":
        reading = "second"
    elif how == "dynamic" and program.is_integer and rng.random() < 0.4:
        reading = "counted"
    return Step("cut", (how, rng.randrange(0, offsets(program)), use, reading, rng.choice((2, 3))))


def offsets(program: Program) -> int:
    """Fragments of this program begin at 0 up to this, exclusive, however they are cut."""
    return program.pool[0] - 2 * program.block[0] + 1


def _collective(rng: random.Random, program: Program) -> Step:
    axis = rng.randrange(len(program.mesh))
    kind = rng.choice(("psum", "pmax", "gather", "permute", "index"))
    if kind in ("gather", "permute"):
        return Step(kind, (axis, rng.randrange(1, program.mesh[axis])))
    return Step(kind, (axis,))


def _spreading(rng: random.Random, program: Program) -> Step:
    if rng.random() < 0.3:
        return Step("total", (rng.randrange(2),))
    return Step("constrain", another_spread(rng, program.mesh, program.spread))


def another_spread(
    rng: random.Random, mesh: tuple[int, ...], old: tuple[int | None, ...]
) -> tuple[int | None, ...]:
    """A sharding of two dimensions over the mesh, other than `old`."""
    axes: list[int | None] = [None, *range(len(mesh))]
    every = [(a, b) for a in axes for b in axes if (a is None or a != b) and (a, b) != old]
    return rng.choice(every)
