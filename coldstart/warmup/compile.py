"""The part of warm-up that has JAX: a plan's programs, lowered, identified and compiled for one target.

Runs in a worker process under the target's environment. `lower` captures the very request with which JAX would enter
the compiler in a pod, so the key that is made of it is the one that a pod asks for.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from coldstart.client import jax_internals
from coldstart.client import target as client_target
from coldstart.client.identify import Identity, identify
from coldstart.client.jax_internals import CompileRequest
from coldstart.errors import ConfigError
from coldstart.warmup.plan import Entry, Plan, did_you_mean, entry_of, expand
from coldstart.warmup.targets import Target


@dataclass(frozen=True, slots=True)
class Lowered:
    """One entry, ready to be asked for."""

    request: CompileRequest
    identity: Identity
    module_bytes: int
    trace_seconds: float
    identify_seconds: float


class Workshop:
    """A plan's programs and a target's devices, in one process."""

    def __init__(self, plan: Plan, target: Target) -> None:
        """Raises ConfigError: no such devices, function or bucket."""
        client_target.note_flags()  # before libtpu loads and reads them
        seam = jax_internals.seam()
        if not (seam.found and seam.known):
            raise ConfigError(
                f"can't warm with this JAX: {seam.problem}; use one of the tested stacks"
            )
        self._programs = _programs_of(plan)
        self.entries = _entries_of(plan, self._programs)
        self.devices = target.devices()
        for entry, program in zip(self.entries, self._programs, strict=True):
            needed = int(getattr(program, "devices", 1))
            if needed > len(self.devices):
                raise ConfigError(
                    f"plan {plan.source}: {entry} needs {needed} devices, --target {target.name} has "
                    f"{len(self.devices)}; a target that works: cpu:{needed}"
                )

    def lower(self, index: int, rules_off: Iterable[str] = ()) -> Lowered:
        """Trace, lower and identify one entry. Raises whatever the program raises."""
        began = time.monotonic()
        lowered: jax.stages.Lowered = self._programs[index].lower(self.devices)
        request = jax_internals.capture(lowered)
        traced = time.monotonic()
        identity = identify(request, rules_off=rules_off)
        identified = time.monotonic()
        return Lowered(
            request,
            identity,
            len(jax_internals.bytecode(request.computation)),
            traced - began,
            identified - traced,
        )


def compile_module(request: CompileRequest, module: Any) -> Any:
    """The executable for a module under a request's options and devices, from the compiler."""
    return _compile_function()(**{**jax_internals.arguments_of(request), "computation": module})


def _compile_function() -> jax_internals.Compile:
    """JAX's own compile function, which `capture` stands in front of now and then."""
    held: list[jax_internals.Compile] = []

    def look(original: jax_internals.Compile) -> jax_internals.Compile:
        held.append(original)
        return lambda *args, **kwargs: original(*args, **kwargs)

    jax_internals.wrap_compile(look)()
    return held[0]


# --- programs ------------------------------------------------------------------------------------


def _programs_of(plan: Plan) -> list[Any]:
    """The plan's programs: things with a name, a bucket, devices and `lower(devices)`."""
    entries = expand(plan)
    if entries is None:
        return _asked(plan)
    from coldstart.models.programs import demo_programs

    known = {
        entry_of(program.name, program.bucket): program
        for program in demo_programs(dict(plan.mesh)["tp"])
    }
    for entry in entries:
        if entry not in known:
            others = ", ".join(
                " ".join(f"{name}={size}" for name, size in other.bucket)
                for other in known
                if other.program == entry.program
            )
            raise ConfigError(
                f"plan {plan.source}: {plan.model} has no program {entry}; it has {others}"
            )
    return [known[entry] for entry in entries]


def _asked(plan: Plan) -> list[Any]:
    """What the plan's own function gives."""
    where = f"plan {plan.source}: programs = {plan.programs!r}"
    function = _function(plan, where)
    try:
        programs = list(function(**dict(plan.arguments)))
    except Exception as exc:
        raise ConfigError(f"{where}: it raised {type(exc).__name__}: {_words(exc)}") from exc
    if not programs:
        raise ConfigError(f"{where}: it gave no programs; give at least one")
    for program in programs:
        name, bucket = getattr(program, "name", None), getattr(program, "bucket", None)
        if not (
            isinstance(name, str)
            and isinstance(bucket, Mapping)
            and callable(getattr(program, "lower", None))
        ):
            raise ConfigError(
                f"{where}: {program!r:.80} is no program; one has a name, a bucket (sizes by name) and "
                "lower(devices), as coldstart.models.programs.Program has"
            )
    return programs


def _function(plan: Plan, where: str) -> Callable[..., Any]:
    module_name, _, attribute = plan.programs.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"{where}: no module {exc.name!r}; install it, or run from the folder that holds it"
        ) from exc
    except Exception as exc:
        raise ConfigError(
            f"{where}: importing {module_name} raised {type(exc).__name__}: {_words(exc)}"
        ) from exc
    function = getattr(module, attribute, None)
    if not callable(function):
        names = [name for name in dir(module) if not name.startswith("_")]
        raise ConfigError(
            f"{where}: {module_name} has no function {attribute!r}{did_you_mean(attribute, names)}"
        )
    found: Callable[..., Any] = function
    return found


def _entries_of(plan: Plan, programs: Sequence[Any]) -> tuple[Entry, ...]:
    return tuple(entry_of(program.name, program.bucket) for program in programs)


def _words(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:300]
