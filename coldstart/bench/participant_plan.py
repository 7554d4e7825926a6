"""A plan's programs as one participant has them, with inputs and a digest of what they give.

The plan's `programs` function is told `rank`, `participants` and `branch`, as far as it has such parameters; what
doesn't depend on them is equal for all, as in a fleet. There is no reference for programs of any kind: what they give
is compared, bit for bit, with what the same program gave under JAX's own cache.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from typing import Any

from coldstart.errors import ConfigError
from coldstart.warmup.plan import Plan, read_plan


def programs_of(word: str, rank: int, participants: int, branch: str) -> list[Any]:
    """The programs of one participant. Raises ConfigError for a plan that has no function, or one that fails."""
    plan = read_plan(word)
    if not plan.programs:
        raise ConfigError(
            f'plan {plan.source}: bench reuse needs programs = "module:function", whose function takes rank, '
            "participants and branch; a plan that works: fleet"
        )
    given = {"rank": rank, "participants": participants, "branch": branch}
    try:
        function = _function(plan)
        wanted = inspect.signature(function).parameters
        told = {name: value for name, value in given.items() if name in wanted}
        found = list(function(**{**dict(plan.arguments), **told}))
    except Exception as exc:
        raise ConfigError(f"plan {plan.source}: {plan.programs}: {exc}") from exc
    if not found:
        raise ConfigError(f"plan {plan.source}: {plan.programs} gave no programs")
    return found


def name_of(program: Any) -> str:
    sizes = ",".join(f"{name}={size}" for name, size in program.bucket.items())
    return f"{program.name} {sizes}"


def arguments_for(lowered: Any, seed: int) -> list[Any]:
    """Inputs of the lowered program's shapes and types: normal floats, small integers, the same for a seed."""
    import jax
    import numpy as np

    random = np.random.default_rng(seed)

    def make(info: Any) -> Any:
        if np.issubdtype(info.dtype, np.integer):
            return random.integers(0, 2, info.shape).astype(info.dtype)
        if info.dtype == np.bool_:
            return random.integers(0, 2, info.shape).astype(bool)
        return (random.standard_normal(info.shape) * 0.3).astype(info.dtype)

    positional, named = lowered.args_info
    if named:
        raise ConfigError("bench reuse runs programs of positional arguments only")
    return [jax.tree.map(make, argument) for argument in positional]


def digest_of(output: Any) -> str:
    """sha256 (hex) of every leaf's type, shape and bytes."""
    import jax
    import numpy as np

    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(output):
        array = np.asarray(leaf)
        digest.update(f"{array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def _function(plan: Plan) -> Any:
    module, _, attribute = plan.programs.partition(":")
    return getattr(importlib.import_module(module), attribute)
