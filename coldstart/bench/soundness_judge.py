"""The judge of `bench soundness`: two programs go the way of the client to their keys; equal keys are executed.

Identity is the client's own: lower, describe, canonicalize, confirm and apply the rewrites, identify. Where two keys
are equal both raw programs are compiled and run, and the executable that the one would publish is loaded for the other
as a hit would be. Every bit of every output on every device is compared, and which inputs were donated away.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coldstart.bench import soundness_mutations as mutations
from coldstart.bench.soundness_build import CASES, Built, build, inputs
from coldstart.bench.soundness_mutations import Mutation
from coldstart.bench.soundness_spec import Program, Step, changed, walk
from coldstart.errors import ColdstartError, InvalidDescriptor
from coldstart.identity import rules
from coldstart.identity.rewrite import Rewrite, Rule

Line = dict[str, Any]
Ran = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Which pairs: a seed, kinds of mutations (all where none is named), and how what is executed is compiled."""

    seed: int
    kinds: tuple[str, ...] = ()
    optimized: bool = False  # as JAX does by default


class Side:
    """One program, its key and, where it comes to that, what it computes."""

    def __init__(self, program: Program, rewriting: Sequence[Rule], optimized: bool) -> None:
        self.program = program
        self.rewriting, self.optimized = rewriting, optimized
        self.opaque = program.family == "kernel"
        self.built, self.request = _lower(program, self.opaque)
        self._identities: dict[tuple[str, ...], Any] = {}

    @functools.cached_property
    def rewrites(self) -> tuple[Rewrite, ...]:
        from coldstart.client import jax_module
        from coldstart.identity.canonical import canonicalize

        if not jax_module.may_rewrite(self.request.computation):
            return ()
        try:
            descriptor = jax_module.describe(self.request.computation)
        except InvalidDescriptor:
            return ()
        return canonicalize(descriptor, rewriting=self.rewriting).rewrites

    def identity(self, off: tuple[str, ...] = ()) -> Any:
        """What the client makes of it, with rules switched off."""
        from coldstart.client.identify import identify

        if off not in self._identities:
            kept = [rewrite for rewrite in self.rewrites if rewrite.rule not in off]
            try:
                found = identify(self.request, rewrites=kept, rules_off=off)
            except InvalidDescriptor:  # confirmation refuses: compiled as it is
                found = identify(self.request, rules_off=off)
            self._identities[off] = found
        return self._identities[off]

    @functools.cached_property
    def raw_digest(self) -> str:
        """What a daemon remembers its rewrites and key under."""
        from coldstart.client.identify import raw_digest, surroundings

        return raw_digest(self.request, surroundings(self.request), canonical=True)

    @functools.cached_property
    def stock_key(self) -> str:
        from coldstart.client import jax_internals

        return jax_internals.stock_key(self.request)

    @functools.cached_property
    def runs(self) -> tuple[Built, Any]:
        """What is executed for it: itself, or the interpret-mode twin of opaque kernels."""
        return _lower(self.program, False) if self.opaque else (self.built, self.request)

    @functools.cached_property
    def parts(self) -> list[list[Any]]:
        """Which part of each input every device holds, in the order of the program's devices."""
        built, request = self.runs
        devices = list(request.devices.flat)
        shapes = (self.program.shape, self.program.pool)
        return [
            [None]
            if len(devices) == 1 or sharding is None
            else [sharding.devices_indices_map(shape)[device] for device in devices]
            for sharding, shape in zip(built.shardings, shapes, strict=True)
        ]

    @functools.cached_property
    def executable(self) -> Any:
        """The raw program, compiled by nobody else than JAX."""
        request = self.runs[1]
        return _compile(request, request.computation, self.optimized)

    @functools.cached_property
    def canonical(self) -> bytes:
        """The bytes that it would publish. Not for opaque kernels, which nothing here can run."""
        from coldstart.client import jax_internals

        module = self.identity().module
        executable = (
            self.executable if module is None else _compile(self.request, module, self.optimized)
        )
        return jax_internals.serialize(executable, self.request)

    def ran(self, seed: str) -> list[Ran]:
        built, request = self.runs
        return [_run(self.executable, request, built, self.program, seed, k) for k in range(CASES)]

    def ran_from(self, published: bytes, seed: str) -> list[Ran]:
        """What it computes where it is served an executable that somebody published."""
        from coldstart.client import jax_internals

        built, request = self.runs
        executable = jax_internals.load(published, request)
        return [_run(executable, request, built, self.program, seed, k) for k in range(CASES)]


@dataclass(slots=True)
class _First:
    """The program that several pairs share, and what is known of it."""

    side: Side
    seed: str
    ran: list[Ran] = field(default_factory=list)
    wrong: str | None = None  # how its canonical program differs; None: not tried yet


class Judge:
    """Judges pairs of one question. Keeps the last first program, which the next pair usually shares."""

    def __init__(self, question: Question, *, rewriting: Sequence[Rule] = rules.REWRITES) -> None:
        _check_process()
        self.question = question
        self.kinds = mutations.known(question.kinds)
        self._rewriting = rewriting
        self._number = -1
        self._kept: _First | None = None

    def pair(self, number: int) -> Line:
        """Judge one pair. Whatever fails is told in the line, as `failed`."""
        began = time.process_time()
        line: Line = {"pair": number, "kinds": [], "same": False, "shared": False, "stock": False}
        line |= {"executed": False, "fired": [], "wrong": "", "failed": ""}
        try:
            first, second = self._draw(number)
            line |= {"kinds": [kind.name for kind in second.kinds], "same": second.same}
            line |= {"family": first.side.program.family}
            self._judge(first, second, line)
        except ColdstartError:
            raise
        except Exception as exc:
            line["failed"] = f"{type(exc).__name__}: {' '.join(str(exc).split())[:300]}"
        return line | {"cpu": round(time.process_time() - began, 4)}

    def _draw(self, number: int) -> tuple[_First, Mutation]:
        program, mutation = mutations.pair(self.question.seed, self.kinds, number)
        if self._kept is None or self._number != number // mutations.TOGETHER:
            seed = f"{self.question.seed}/inputs/{number // mutations.TOGETHER}"
            self._kept = _First(self._side(program), seed)
            self._number = number // mutations.TOGETHER
        return self._kept, mutation

    def _side(self, program: Program) -> Side:
        return Side(program, self._rewriting, self.question.optimized)

    def _judge(self, first: _First, mutation: Mutation, line: Line) -> None:
        left, right = first.side, self._side(mutation.program)
        line["stock"] = left.stock_key == right.stock_key
        refused = left.identity().refusal or right.identity().refusal
        line["shared"] = refused is None and left.identity().key == right.identity().key
        if first.wrong is None:
            first.ran = left.ran(first.seed)
            first.wrong = _canonical_differs(first)
        line["wrong"] = first.wrong
        if line["shared"]:
            line["executed"] = True
            line["wrong"] = first.wrong or _differs(first, right)
            line["fired"] = fired(left, right, mutation.rules)
        elif left.raw_digest == right.raw_digest:
            line["wrong"] = "two keys, but what is remembered of the one is recalled for the other"


def fired(left: Side, right: Side, plausible: Iterable[str]) -> list[str]:
    """The rules without which two programs with equal keys would have two."""
    return [r for r in plausible if left.identity((r,)).key != right.identity((r,)).key]


def _canonical_differs(first: _First) -> str:
    """How what a program publishes differs from the program; "" where it doesn't."""
    side = first.side
    if side.opaque:
        # The twin of the canonical program is the one whose unread fragments begin at zero, if its key says so.
        zero = _unread_at_zero(side.program)
        if zero == side.program:
            return ""
        twin = Side(zero, side.rewriting, side.optimized)
        if twin.identity().key != side.identity().key:
            return ""
        return _compared(first.ran, twin.ran(first.seed), "the twin of the canonical program")
    if side.identity().module is None:
        return ""
    return _compared(first.ran, side.ran_from(side.canonical, first.seed), "the canonical program")


def _unread_at_zero(program: Program) -> Program:
    for path, step in walk(program):
        if step.kind == "cut" and step.of[3] == "unread":
            program = changed(program, path, Step("cut", (step.of[0], 0, *step.of[2:])))
    return program


def _differs(first: _First, right: Side) -> str:
    left = first.side
    if (left.program.shape, left.program.dtype) != (right.program.shape, right.program.dtype):
        return "equal keys, but the inputs have other shapes or types"
    if (
        left.parts != right.parts
    ):  # running the one's executable on the other's inputs could end the process
        return "equal keys, but the inputs lie on the devices in other parts"
    found = _compared(first.ran, right.ran(first.seed), "the other program")
    if not found and not left.opaque:
        found = _compared(
            first.ran, right.ran_from(left.canonical, first.seed), "the other program, served"
        )
    return found


def _compared(wanted: list[Ran], got: list[Ran], what: str) -> str:
    for case, (a, b) in enumerate(zip(wanted, got, strict=True)):
        if a != b:
            facts = ("outputs", "donated inputs")
            which = [fact for fact, x, y in zip(facts, a, b, strict=True) if x != y]
            return f"{what} differs on inputs {case}: {', '.join(which)}"
    return ""


# --- the process -----------------------------------------------------------------------------------


@functools.cache
def _compiler() -> Callable[..., Any]:
    """JAX's own compile function. Raises ColdstartError where Coldstart's hook stands before it."""
    from coldstart.client import jax_internals

    _check_process()
    found: list[Callable[..., Any]] = []

    def take(original: Any) -> Any:
        found.append(original)
        return original

    jax_internals.wrap_compile(take)()
    return found[0]


def _check_process() -> None:
    from coldstart.client import jax_hook, jax_internals

    if jax_hook.installed() is not None or jax_internals.stock_cache().directory:
        raise ColdstartError("a cache is on in this process: the judge must compile by itself")


def _lower(program: Program, opaque: bool) -> tuple[Built, Any]:
    from coldstart.client import jax_internals

    built = build(program, opaque=opaque)
    request = jax_internals.capture(built.lowered)
    if program.names.functions_turned or program.merged:
        module = jax_internals.clone(request.computation)
        if program.merged:
            with module.context:
                jax_internals.run_pass(module.operation, "cse")
        if program.names.functions_turned:
            _turn_functions(module)
        request = replace(request, computation=module)
    return built, request


def _turn_functions(module: Any) -> None:
    """Put a module's private functions into the reverse order."""
    found = [op.operation for op in module.body.operations]
    private = [
        op
        for op in found
        if op.name == "func.func" and "private" in str(op.attributes.get("sym_visibility", ""))
    ]
    for op in private:
        op.move_after(found[-1] if found[-1] not in private else _last_other(found, private))


def _last_other(found: list[Any], private: list[Any]) -> Any:
    return [op for op in found if op not in private][-1]


def _compile(request: Any, module: Any, optimized: bool) -> Any:
    from coldstart.client import jax_internals

    options = copy.deepcopy(request.compile_options)
    if not optimized:
        options.env_option_overrides = [*options.env_option_overrides, *_quick_options()]
    arguments = {**jax_internals.arguments_of(request), "compile_options": options}
    return _compiler()(**{**arguments, "computation": module})


# Half of the time would go into making programs fast that run twice. Whatever isn't known to this XLA is left out.
_QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
}


@functools.cache
def _quick_options() -> tuple[tuple[str, Any], ...]:
    import jax

    found = []
    for name, value in _QUICK.items():
        try:
            jax.jit(lambda x: x).lower(1.0).compile({name: value})
        except jax.errors.JaxRuntimeError:
            continue
        found.append((name, value))
    return tuple(found)


def _run(
    executable: Any, request: Any, built: Built, program: Program, seed: str, case: int
) -> Ran:
    """(outputs as bytes device by device, which inputs are gone)."""
    import jax
    import numpy as np

    place = {device.id: k for k, device in enumerate(request.devices.flat)}
    arrays = [
        jax.device_put(array, sharding)
        for array, sharding in zip(inputs(program, seed, case), built.shardings, strict=True)
    ]
    results = executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
    outputs = []
    for parts in results:
        host = sorted((place[next(iter(part.devices())).id], np.asarray(part)) for part in parts)
        outputs.append(tuple((str(p.dtype), p.shape, p.tobytes()) for _, p in host))
    return tuple(outputs), tuple(array.is_deleted() for array in arrays)
