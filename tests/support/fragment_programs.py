"""Programs in which a participant cuts its own fragment of `q` and hands it to a kernel that may ignore it.

Each builder takes `cut(q)`, which makes the fragment, and a kernel. With a sparse kernel the fragment is never read:
every cut must give one key. With the dense twin each cut has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

S = jax.ShapeDtypeStruct
Cut = Callable[[Any], Any]
ROWS, COLUMNS = 8, 256


def sparse(q_ref: Any, kv_ref: Any, o_ref: Any) -> None:
    o_ref[...] = kv_ref[...] * 2


def dense(q_ref: Any, kv_ref: Any, o_ref: Any) -> None:
    o_ref[...] = kv_ref[...] * 2 + q_ref[...]


def static_cut(rank: int) -> Cut:
    return lambda q: lax.slice(q, (rank * ROWS, 0), (rank * ROWS + ROWS, COLUMNS))


def dynamic_cut(rank: int) -> Cut:
    return lambda q: lax.dynamic_slice_in_dim(q, rank * ROWS, ROWS)


def strided_cut(rank: int) -> Cut:
    return lambda q: lax.slice(q, (rank, 0), (rank + 2 * ROWS - 1, COLUMNS), (2, 1))


def poison(value: float) -> Cut:
    """The fragment's place taken by other data, at its definition."""
    return lambda q: jnp.full((ROWS, COLUMNS), value, q.dtype)


def _call(kernel: Any, interpret: bool, *args: Any, **options: Any) -> Any:
    kv = args[-1]
    return pl.pallas_call(kernel, out_shape=S(kv.shape, kv.dtype), interpret=interpret, **options)(
        *args
    )


def plain(cut: Cut, kernel: Any, interpret: bool) -> Any:
    return lambda q, kv: _call(kernel, interpret, cut(q), kv)


def through_pure_ops(cut: Cut, kernel: Any, interpret: bool) -> Any:
    return lambda q, kv: _call(kernel, interpret, jnp.tanh(cut(q).T * 2).T + 1, kv)


def layers(cut: Cut, kernel: Any, interpret: bool) -> Any:
    def f(q: Any, kv: Any) -> Any:
        for layer in range(3):
            kv = _call(kernel, interpret, cut(q) + layer, kv)
        return kv

    return f


def one_fragment_two_kernels(cut: Cut, kernel: Any, interpret: bool) -> Any:
    def f(q: Any, kv: Any) -> Any:
        fragment = cut(q)
        return _call(kernel, interpret, fragment, _call(kernel, interpret, fragment, kv) + 1)

    return f


def cut_in_scan(cut: Cut, kernel: Any, interpret: bool) -> Any:
    def f(q: Any, kv: Any) -> Any:
        last, sums = lax.scan(
            lambda x, _: (_call(kernel, interpret, cut(q), x), x.sum()), kv, None, length=3
        )
        return last + sums.sum()

    return f


def carried(cut: Cut, kernel: Any, interpret: bool) -> Any:
    def f(q: Any, kv: Any) -> Any:
        def body(_: Any, state: Any) -> Any:
            fragment, x = state
            return fragment, _call(kernel, interpret, fragment, x)

        return lax.fori_loop(0, 3, body, (cut(q), kv))[1]

    return f


def argument_of_a_function(cut: Cut, kernel: Any, interpret: bool) -> Any:
    inner = jax.jit(lambda fragment, kv: _call(kernel, interpret, fragment, kv) + 1)
    return lambda q, kv: inner(cut(q), inner(cut(q), kv))


def through_a_function_that_others_call(cut: Cut, kernel: Any, interpret: bool) -> Any:
    inner = jax.jit(lambda x: jnp.tanh(x) * 2)
    return lambda q, kv: _call(kernel, interpret, inner(cut(q)), inner(kv)) + inner(kv)


def cut_in_a_function(cut: Cut, kernel: Any, interpret: bool) -> Any:
    inner = jax.jit(lambda q, kv: _call(kernel, interpret, cut(q), kv))
    return lambda q, kv: inner(q, inner(q, kv) * 3)


def in_a_branch(cut: Cut, kernel: Any, interpret: bool) -> Any:
    def f(q: Any, kv: Any) -> Any:
        return lax.cond(
            kv[0, 0] > 0, lambda: _call(kernel, interpret, cut(q), kv), lambda: kv + q[0, 0]
        )

    return f


def fragment_from_a_branch(cut: Cut, kernel: Any, interpret: bool) -> Any:
    def f(q: Any, kv: Any) -> Any:
        fragment = lax.cond(kv[0, 0] > 0, lambda: cut(q), lambda: q[:ROWS] * 0)
        return _call(kernel, interpret, fragment, kv)

    return f


def checkpointed(cut: Cut, kernel: Any, interpret: bool) -> Any:
    return jax.checkpoint(lambda q, kv: jnp.sin(_call(kernel, interpret, cut(q), kv)))


def with_grid(cut: Cut, kernel: Any, interpret: bool) -> Any:
    block = pl.BlockSpec((8, 128), lambda i: (0, i))
    return lambda q, kv: _call(
        kernel, interpret, cut(q), kv, grid=(2,), in_specs=[block, block], out_specs=block
    )


def with_prefetch(cut: Cut, kernel: Any, interpret: bool) -> Any:
    def body(index_ref: Any, q_ref: Any, kv_ref: Any, o_ref: Any, scratch_ref: Any) -> None:
        kernel(q_ref, kv_ref, o_ref)
        scratch_ref[...] = o_ref[...]

    def f(q: Any, kv: Any) -> Any:
        index = (kv[0, :2] > 0).astype(jnp.int32)
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(2,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i, index: (0, i)),
                pl.BlockSpec((8, 128), lambda i, index: (0, index[i])),
            ],
            out_specs=pl.BlockSpec((8, 128), lambda i, index: (0, i)),
            scratch_shapes=[pltpu.VMEM((8, 128), kv.dtype)],
        )
        return _call(body, interpret, index, cut(q), kv, grid_spec=spec)

    return f


def in_shard_map(cut: Cut, kernel: Any, interpret: bool) -> Any:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))

    def inner(q: Any, kv: Any) -> Any:
        return lax.psum(_call(kernel, interpret, cut(q), kv), "x")

    return jax.shard_map(inner, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)


PROGRAMS: dict[str, Callable[[Cut, Any, bool], Any]] = {
    f.__name__: f
    for f in (
        plain,
        through_pure_ops,
        layers,
        one_fragment_two_kernels,
        cut_in_scan,
        carried,
        argument_of_a_function,
        through_a_function_that_others_call,
        cut_in_a_function,
        in_a_branch,
        fragment_from_a_branch,
        checkpointed,
        with_grid,
        with_prefetch,
        in_shard_map,
    )
}
ARGUMENTS = (S((160, COLUMNS), jnp.float32), S((ROWS, COLUMNS), jnp.float32))


def lowered(
    name: str, cut: Cut, kernel: Any, *, interpret: bool = True, arguments: Any = ARGUMENTS
) -> Any:
    """One program lowered: interpret mode for this machine's CPU, else for a TPU that needn't be there."""
    traced = jax.jit(PROGRAMS[name](cut, kernel, interpret)).trace(*arguments)
    return traced.lower(lowering_platforms=("cpu" if interpret else "tpu",))
