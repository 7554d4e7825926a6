"""A program of `bench soundness` in JAX: traced, lowered, and with inputs to run on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coldstart.bench.soundness_spec import Program, Step, offsets

CASES = 2  # inputs that every program runs on: usual ones, and special ones


@dataclass(frozen=True, slots=True)
class Built:
    """A program, lowered, and where its two inputs lie."""

    lowered: Any
    shardings: tuple[Any, Any]  # of x and q


def build(program: Program, *, opaque: bool = False) -> Built:
    """Trace and lower a program.

    Args:
        opaque: lower for TPU, where Pallas kernels are opaque; else for this machine's CPU, in interpret mode.
    """
    import jax

    mesh = _mesh(program)
    shardings = _shardings(program, mesh)
    body = _Body(program, opaque, mesh)
    whole = (
        _spread_over(program, mesh, body.run_main) if program.family == "manual" else body.run_main
    )
    outer = _outer(program, whole)
    arguments = [
        jax.ShapeDtypeStruct(shape, program.dtype, sharding=sharding)
        for shape, sharding in zip((program.shape, program.pool), shardings, strict=True)
    ]
    # Kept where unused: JAX then leaves dead steps in the program, as other front ends do.
    jitted = jax.jit(outer, keep_unused=True, donate_argnums=(0,) if program.donate else ())
    platform = "tpu" if opaque else "cpu"
    return Built(jitted.trace(*arguments).lower(lowering_platforms=(platform,)), shardings)


def inputs(program: Program, seed: str, case: int) -> tuple[np.ndarray, np.ndarray]:
    """x and q for one run. The last case holds NaN, infinities, both zeros, the largest and the smallest numbers."""
    import jax.numpy as jnp

    numbers = np.random.default_rng(random.Random(f"{seed}/{case}").randrange(1 << 62))
    made = []
    for shape in (program.shape, program.pool):
        if program.dtype in ("int32", "uint32"):
            array = numbers.integers(-9, 10, shape).astype(program.dtype)
            special = np.array([0, -1, 1, 2**31 - 1, -(2**31)]).astype(program.dtype)
        else:
            dtype = jnp.dtype(program.dtype)
            array = (numbers.standard_normal(shape) * 3).astype(dtype)
            special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, 1e-40, -1e-40]).astype(
                dtype
            )
        if case == CASES - 1:
            places = numbers.random(shape) < 0.3
            array[places] = numbers.choice(special, int(places.sum()))
        made.append(array)
    return made[0], made[1]


def _mesh(program: Program) -> Any:
    import jax
    from jax.sharding import Mesh

    if not program.mesh:
        return None
    devices = np.array(jax.devices()[: int(np.prod(program.mesh))])
    if program.names.devices_turned:
        devices = devices[::-1]
    return Mesh(devices.reshape(program.mesh), program.names.axes[: len(program.mesh)])


def _shardings(program: Program, mesh: Any) -> tuple[Any, Any]:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    if program.family == "auto":
        q = PartitionSpec(program.names.axes[0])
        return NamedSharding(mesh, _spec(program, program.spread)), NamedSharding(mesh, q)
    if program.family == "manual":
        x = NamedSharding(mesh, _spec(program, program.spread))
        return x, NamedSharding(mesh, PartitionSpec())
    device = jax.devices()[0]
    if program.names.spelling == "none":
        return None, None
    one: Any = SingleDeviceSharding(device)
    if program.names.spelling == "named":
        one = NamedSharding(Mesh(np.array([device]), ("x",)), PartitionSpec("x"))
    elif program.names.spelling == "named two":
        one = NamedSharding(Mesh(np.array([[device]]), ("u", "v")), PartitionSpec(None, "v"))
    return one, one


def _spec(program: Program, spread: tuple[int | None, ...]) -> Any:
    from jax.sharding import PartitionSpec

    return PartitionSpec(*(None if a is None else program.names.axes[a] for a in spread))


def _spread_over(program: Program, mesh: Any, whole: Callable[..., Any]) -> Callable[..., Any]:
    import jax
    from jax.sharding import PartitionSpec

    spec = _spec(program, program.spread)
    return jax.shard_map(
        whole, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=(spec, spec), check_vma=False
    )


def _outer(program: Program, whole: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is jitted, from source of its own: its name, file and line are the program's."""
    names = program.names
    first, second = names.outputs
    pair = (
        f"{first!r}: b, {second!r}: a" if program.outputs_turned else f"{first!r}: a, {second!r}: b"
    )
    source = f"def {names.program}(x, q):\n    a, b = whole(x, q)\n    return {{{pair}}}\n"
    space: dict[str, Any] = {"whole": whole}
    exec(compile("\n" * names.line + source, names.file, "exec"), space)
    function: Callable[..., Any] = space[names.program]
    return function


class _Body:
    """What a program does, step by step. One object a trace: its inner functions are jitted once."""

    def __init__(self, program: Program, opaque: bool, mesh: Any) -> None:
        import jax

        self.program, self.opaque, self.mesh = program, opaque, mesh
        self.functions = []
        for steps, name in zip(program.functions, program.names.functions, strict=True):

            def inner(q: Any, x: Any, steps: tuple[Step, ...] = steps) -> Any:
                return self.run(steps, q, x)

            inner.__name__ = inner.__qualname__ = name
            self.functions.append(jax.jit(inner))

    def run_main(self, x: Any, q: Any) -> tuple[Any, Any]:
        x = self.run(self.program.steps, q, x)
        return x, x + x

    def run(self, steps: tuple[Step, ...], q: Any, x: Any) -> Any:
        for step in steps:
            x = getattr(self, f"_{step.kind}")(step, q, x)
        return x

    # --- local steps ---

    def _op(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        name, number = step.of
        c = lax.full(x.shape, number, x.dtype)
        ops: dict[str, Callable[[], Any]] = {
            "add": lambda: x + c,
            "from": lambda: c - x,
            "times": lambda: x * c,
            "larger": lambda: lax.max(x, c),
            "smaller": lambda: lax.min(x, c),
            "negate": lambda: -x,
            "size": lambda: lax.abs(x) if x.dtype != "uint32" else x + x,
        }
        return ops[name]()

    def _flip(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        return lax.rev(x, (step.of[0],))

    def _roll(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        by, dimension = step.of[0] % x.shape[step.of[1]], step.of[1]
        head = lax.slice_in_dim(x, 0, by, axis=dimension)
        return lax.concatenate([lax.slice_in_dim(x, by, None, axis=dimension), head], dimension)

    def _mix(self, step: Step, q: Any, x: Any) -> Any:
        name, turned = step.of
        y = q[: x.shape[0], : x.shape[1]]
        a, b = (y, x) if turned else (x, y)
        return a - b if name == "minus" else a + b

    def _call(self, step: Step, q: Any, x: Any) -> Any:
        return self.functions[step.of[0]](q, x)

    # --- regions ---

    def _loop(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        kind, rounds = step.of
        if kind == "scan":
            return lax.scan(lambda c, _: (self.run(step.body, q, c), None), x, None, length=rounds)[
                0
            ]
        if kind == "for":
            return lax.fori_loop(0, rounds, lambda _, c: self.run(step.body, q, c), x)
        bound = rounds
        if kind == "bound":
            bound = rounds + (x[0, 0] > 0).astype("int32")
        return lax.while_loop(
            lambda state: state[0] < bound,
            lambda state: (state[0] + 1, self.run(step.body, q, state[1])),
            (np.int32(0), x),
        )[1]

    def _branch(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        return lax.cond(
            x[0, 0] > lax.full((), step.of[0], x.dtype),
            lambda: self.run(step.body, q, x),
            lambda: self.run(step.other, q, x),
        )

    # --- fragments ---

    def _cut(self, step: Step, q: Any, x: Any) -> Any:
        import jax.numpy as jnp

        how, offset, use, reading, number = step.of
        start: Any = offset % offsets(self.program)
        if how == "wrapped":
            start = jnp.int32(start)
        cut = self._cutter(how, start, x.shape)
        x = getattr(self, f"_use_{use}")(cut(q), x, reading == "read", number)
        if reading == "second":
            return x + cut(q)
        return x + start if reading == "counted" else x

    def _cutter(self, how: str, start: Any, shape: tuple[int, int]) -> Callable[[Any], Any]:
        import jax
        from jax import lax

        rows, columns = shape
        if how in ("dynamic", "wrapped"):
            negative = how == "wrapped"
            return lambda q: lax.dynamic_slice(
                q, (start, np.int32(0)), shape, allow_negative_indices=negative
            )
        if how == "strided":
            end = start + 2 * rows - 1
            return lambda q: lax.slice(q, (start, 0), (end, columns), (2, 1))

        def cut(q: Any) -> Any:
            return lax.slice(q, (start, 0), (start + rows, columns))

        return jax.jit(cut) if how == "function" else cut

    def _use_argument(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        import jax

        def use(fragment: Any, x: Any) -> Any:
            return x * number + fragment if read else x * number

        return jax.jit(use)(fragment, x)

    def _use_loop(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        from jax import lax

        def again(_: Any, state: Any) -> Any:
            fragment, x = state
            return fragment, x * number + fragment if read else x * number

        return lax.fori_loop(0, 2, again, (fragment, x))[1]

    def _use_scanned(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        from jax import lax

        def again(x: Any, piece: Any) -> Any:
            return x * number + piece if read else x * number, None

        return lax.scan(again, x, fragment[None])[0]

    def _use_steer(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        """How often a loop runs depends on the fragment; nothing else does."""
        from jax import lax

        bound = 1 + (fragment[0, 0] > 0).astype("int32")
        return lax.while_loop(
            lambda state: state[0] < bound,
            lambda state: (state[0] + 1, state[1] * number),
            (np.int32(0), x),
        )[1]

    def _use_branch(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        from jax import lax

        return lax.cond(
            x[0, 0] > lax.full((), 0, x.dtype),
            lambda fragment, x: x * number + fragment if read else x * number,
            lambda fragment, x: x + number,
            fragment,
            x,
        )

    def _use_idle(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        fragment * number + x  # nobody looks at it
        return x * number

    def _use_kernel(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        return self._pallas(self._kernel(read, number), fragment, x)

    def _use_grid(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        from jax.experimental import pallas as pl

        block = pl.BlockSpec(x.shape, lambda i: (0, 0))
        options = {"grid": (1,), "in_specs": [block, block], "out_specs": block}
        return self._pallas(self._kernel(read, number), fragment, x, **options)

    def _use_map(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        """A scalar of the fragment says which block is read; the body never sees it."""
        from jax import lax
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import tpu as pltpu

        which = (fragment[0, :1] > 0).astype("int32")
        both = lax.concatenate([x, -x], 0)

        def body(which_ref: Any, x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * number

        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec(x.shape, lambda i, which: (which[0], 0))],
            out_specs=pl.BlockSpec(x.shape, lambda i, which: (0, 0)),
        )
        return self._pallas(self._named(body), which, both, out=x, grid_spec=spec)

    def _use_alias(self, fragment: Any, x: Any, read: bool, number: int) -> Any:
        """The output lies where the fragment lies, and the body writes only a part of it."""

        def body(fragment_ref: Any, x_ref: Any, o_ref: Any) -> None:
            o_ref[0:1, :] = x_ref[0:1, :] * number

        return self._pallas(self._named(body), fragment, x, input_output_aliases={0: 0})

    def _kernel(self, read: bool, number: int) -> Callable[..., None]:
        def body(fragment_ref: Any, x_ref: Any, o_ref: Any) -> None:
            new = x_ref[...] * number
            o_ref[...] = new + fragment_ref[...] if read else new

        return self._named(body)

    def _named(self, body: Callable[..., None]) -> Callable[..., None]:
        body.__name__ = body.__qualname__ = self.program.names.kernel
        return body

    def _pallas(self, body: Any, *arguments: Any, out: Any = None, **options: Any) -> Any:
        import jax
        from jax.experimental import pallas as pl

        out = arguments[-1] if out is None else out
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(out.shape, out.dtype),
            interpret=not self.opaque,
            name=self.program.names.kernel,
            **options,
        )(*arguments)

    # --- between devices ---

    def _axis(self, step: Step) -> str:
        return str(self.program.names.axes[step.of[0]])

    def _psum(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        return lax.psum(x, self._axis(step))

    def _pmax(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        return lax.pmax(x, self._axis(step))

    def _gather(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        return lax.all_gather(x, self._axis(step))[step.of[1]]

    def _permute(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        size = self.program.mesh[step.of[0]]
        pairs = [(k, (k + step.of[1]) % size) for k in range(size)]
        return lax.ppermute(x, self._axis(step), pairs)

    def _index(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax

        return x + lax.axis_index(self._axis(step)).astype(x.dtype)

    def _constrain(self, step: Step, q: Any, x: Any) -> Any:
        from jax import lax
        from jax.sharding import NamedSharding

        return lax.with_sharding_constraint(
            x, NamedSharding(self.mesh, _spec(self.program, step.of))
        )

    def _total(self, step: Step, q: Any, x: Any) -> Any:
        return x - x.sum(step.of[0], keepdims=True, dtype=x.dtype)
