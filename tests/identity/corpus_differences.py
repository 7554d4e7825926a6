"""Pairs that differ in something that matters, or might."""

from __future__ import annotations

import functools
from typing import Any

import fragment_programs as fp
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from corpus_base import F32, X2, Pair, S, X, lower, parse, same_form, text_pair
from corpus_names import MESHED, mesh_of, meshed, ordered
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# --- what must differ ----------------------------------------------------------------------------


def _constant(array: Any) -> Any:
    return lambda: lower(lambda x: (x, jnp.asarray(array)), S((2,), F32))


def _floats(bits: list[int]) -> Any:
    return np.array(bits, np.uint32).view(np.float32)


def constants() -> list[Pair]:
    big = np.arange(1 << 16, dtype=np.float32)
    late = big.copy()
    late[-1] += 1
    rows: list[tuple[str, Any, Any]] = [
        ("zero's sign", np.zeros(3, np.float32), -np.zeros(3, np.float32)),
        ("zero's sign, mixed", np.array([0.0, 1], np.float32), np.array([-0.0, 1], np.float32)),
        ("NaN payload", _floats([0x7FC00000, 1]), _floats([0x7FC00001, 1])),
        ("late element", big, late),
        ("bf16", np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 3], ml_dtypes.bfloat16)),
        (
            "f8",
            np.array([1, 2], ml_dtypes.float8_e4m3fn),
            np.array([1, 3], ml_dtypes.float8_e4m3fn),
        ),
        ("f8 kinds", np.array([1], ml_dtypes.float8_e4m3fn), np.array([1], ml_dtypes.float8_e5m2)),
        ("i4", np.array([1, 2], ml_dtypes.int4), np.array([1, 3], ml_dtypes.int4)),
        ("bool", np.array([True, False, True]), np.array([True, True, True])),
        ("type", np.array([1, 2], np.int32), np.array([1, 2], np.uint32)),
        ("shape", np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)),
    ]
    return [Pair(f"constant: {n}", _constant(a), _constant(b)) for n, a, b in rows]


def _effect_loop(rank: int) -> Any:
    def f(x: Any) -> Any:
        def body(i: Any, c: Any) -> Any:
            jax.debug.callback(lambda v: None, i)
            return c + 1

        lax.fori_loop(0, rank + 2, body, 0)
        return x

    return lambda: lower(f, X)


_COLLECTIVE_LOOP = """
module @jit_f attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main(%arg0: tensor<16xf32>) -> tensor<16xf32> {{
    %rank = stablehlo.constant dense<{rank}> : tensor<i32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %dead = stablehlo.dynamic_slice %arg0, %rank, sizes = [4] : (tensor<16xf32>, tensor<i32>) -> tensor<4xf32>
    %0:2 = stablehlo.while(%i = %zero, %x = %arg0) : tensor<i32>, tensor<16xf32>
     cond {{
      %2 = stablehlo.compare LT, %i, %rank, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %i, %one : tensor<i32>
      %4 = {op} : (tensor<16xf32>) -> tensor<16xf32>
      stablehlo.return %3, %4 : tensor<i32>, tensor<16xf32>
    }}
    return %arg0 : tensor<16xf32>
  }}
}}
"""
_REDUCE = """"stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
      })"""


def _dead_loop(rank: int, op: str) -> Any:
    """A loop of `rank` rounds whose result nobody uses; JAX would drop it, other front ends don't."""
    return lambda: parse(_COLLECTIVE_LOOP.format(rank=rank, op=op))


def _collectives(first: str) -> Any:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))

    def inner(x: Any) -> Any:
        u, v = x * 2, x + 1000
        if first == "psum":
            a = lax.psum(u, "x")
            return a, lax.pmax(v + 0 * a, "x")
        b = lax.pmax(v, "x")
        return lax.psum(u + 0 * b, "x"), b

    f = jax.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
    return lambda: lower(f, S((4,), F32))


def _permute(pairs: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    f = jax.shard_map(
        lambda x: lax.ppermute(x, "x", pairs), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    return lambda: lower(f, S((4,), F32))


def _callbacks(swapped: bool) -> Any:
    def one(x: Any) -> Any:
        return x + 1

    def f(x: Any, y: Any) -> Any:
        if swapped:
            b = jax.pure_callback(one, S((4,), F32), y)
            return jax.pure_callback(one, S((4,), F32), x), b
        a = jax.pure_callback(one, S((4,), F32), x)
        return a, jax.pure_callback(one, S((4,), F32), y)

    return lambda: lower(f, S((4,), F32), S((4,), F32))


def _metadata(**metadata: Any) -> Any:
    def f(x: Any) -> Any:
        with set_xla_metadata(**metadata):
            y = jnp.sin(x)
        return y + 1

    return lambda: lower(f, X)


def _composite(name: str, version: int = 1, **attributes: Any) -> Any:
    f = lax.composite(lambda x, **_: jnp.sin(x) * 2, name=name, version=version)
    return lambda: lower(lambda x: f(x, **attributes), X)


def _fragment_uses(rank: int, kind: str, *, interpret: bool) -> Any:
    """H5: a fragment with one dead use and one live one."""
    cut = fp.static_cut(rank)

    def call(kernel: Any, fragment: Any, kv: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=S(kv.shape, kv.dtype), interpret=interpret)(
            fragment, kv
        )

    def f(q: Any, kv: Any) -> Any:
        fragment = cut(q)
        if kind == "output":
            return call(fp.sparse, fragment, kv), fragment
        if kind == "two kernels":
            return call(fp.sparse, fragment, kv), call(fp.dense, fragment, kv)
        if kind == "constant":
            start = jnp.int32(rank)
            unread = lax.dynamic_slice(q, (start, jnp.int32(0)), (8, 256))
            return call(fp.sparse, unread, kv) + start.astype(F32)
        sliced = jax.jit(lambda q: lax.slice(q, (rank * 8, 0), (rank * 8 + 8, 256)))
        return call(fp.sparse, sliced(q), kv), call(fp.dense, sliced(q + 1), kv)

    platform = "cpu" if interpret else "tpu"
    return lambda: lower(f, *fp.ARGUMENTS, platform=platform)


def _index_map_only(rank: int) -> Any:
    """The shape of megablox' group_offset: a prefetched scalar that only an index map reads."""

    def body(offset: Any, kv: Any, o: Any) -> None:
        o[...] = kv[...] * 2

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(1,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, offset: (offset[0] + i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, offset: (i, 0)),
    )

    def f(offsets: Any, kv: Any) -> Any:
        offset = lax.slice(offsets, (rank,), (rank + 1,))
        return pl.pallas_call(body, out_shape=S((8, 128), F32), grid_spec=spec)(offset, kv)

    return lambda: lower(f, S((16,), jnp.int32), S((160, 128), F32), platform="tpu")


def kernel_case(rank: int, kind: str) -> Any:
    """TPU kernels whose first operand has no use in the body and is read all the same, or may be."""
    any_space = pl.BlockSpec(memory_space=pl.ANY)
    cut = fp.static_cut(rank)

    def nothing(a: Any, b: Any, o: Any) -> None:
        o[...] = b[...]

    def barrier(a: Any, b: Any, o: Any) -> None:
        semaphore = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(semaphore)
        pl.semaphore_wait(semaphore)
        o[...] = b[...]

    def start(x: Any, o: Any, sem: Any) -> None:
        pltpu.make_async_copy(x, o, sem).start()

    def done(x: Any, o_in: Any, sem: Any, o: Any) -> None:
        pltpu.make_async_copy(o_in, o_in, sem).wait()

    out = S((8, 256), F32)

    def f(q: Any, kv: Any) -> Any:
        x = cut(q)
        if kind == "aliased":
            return pl.pallas_call(
                lambda a, b, o: None,
                out_shape=out,
                in_specs=[any_space] * 2,
                out_specs=any_space,
                input_output_aliases={0: 0},
            )(x, kv)
        if kind == "side effect":
            params = pltpu.CompilerParams(has_side_effects=True)
            return pl.pallas_call(nothing, out_shape=out, compiler_params=params)(x, kv)
        if kind == "collective id":
            params = pltpu.CompilerParams(collective_id=3)
            return pl.pallas_call(barrier, out_shape=out, compiler_params=params)(x, kv)
        if kind == "dynamic grid":
            block = pl.BlockSpec((8, 256), lambda i: (0, 0))
            steps = lax.slice(q, (rank, 0), (rank + 1, 1)).astype(jnp.int32)[0, 0]
            return pl.pallas_call(
                nothing, out_shape=out, grid=(steps,), in_specs=[block, block], out_specs=block
            )(kv, kv)
        semaphores = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
        o, sem = pl.pallas_call(
            start,
            out_shape=(out, pltpu.SemaphoreType.DMA(())),
            in_specs=[any_space],
            out_specs=(any_space, semaphores),
        )(kv)
        return pl.pallas_call(
            done,
            out_shape=out,
            in_specs=[any_space, any_space, semaphores],
            out_specs=any_space,
            input_output_aliases={1: 0},
        )(x, o, sem)

    return lambda: lower(f, *fp.ARGUMENTS, platform="tpu")


def _axes_and_a_text(first: str, second: str) -> Any:
    """A custom call names an axis in a text, in the words that normal form has for axes."""
    return lambda: parse(
        f"""module @m attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
          sdy.mesh @mesh = <["{first}"=2, "{second}"=2]>
          func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {{
            %0 = stablehlo.custom_call @gather(%a) {{
              api_version = 4 : i32, mhlo.backend_config = {{over = "cs_axis0"}}
            }} : (tensor<8xf32>) -> tensor<8xf32>
            return %0 : tensor<8xf32>
          }}
        }}"""
    )


def differences() -> list[Pair]:
    def add(x: Any) -> Any:
        return x + 1

    pairs = [
        Pair("shape", lambda: lower(add, S((4,), F32)), lambda: lower(add, S((5,), F32))),
        Pair("dtype", lambda: lower(add, S((4,), F32)), lambda: lower(add, S((4,), jnp.bfloat16))),
        same_form("rank in arithmetic", lambda x: x + 0.0, lambda x: x + 1.0, X),
        same_form("live slice", lambda x: x[0:4], lambda x: x[4:8], X),
        Pair(
            "live dynamic start",
            lambda: lower(lambda x: lax.dynamic_slice_in_dim(x, 1, 2), X),
            lambda: lower(lambda x: lax.dynamic_slice_in_dim(x, 3, 2), X),
        ),
        Pair(
            "donation",
            lambda: lower(add, X),
            lambda: lower(add, X, donate_argnums=0),
        ),
        same_form(
            "precision",
            lambda x, y: lax.dot(x, y, precision="default"),
            lambda x, y: lax.dot(x, y, precision="highest"),
            X,
            X2,
        ),
        same_form("sort order", lambda x: lax.sort(x), lambda x: -lax.sort(-x), X),
        same_form("output order", lambda x: (x, x * 2), lambda x: (x * 2, x), X),
        same_form("argument order", lambda x, y: x - y, lambda x, y: y - x, X, X),
        same_form(
            "comparator", lambda x: lax.approx_max_k(x, 4), lambda x: lax.approx_min_k(x, 4), X
        ),
        same_form(
            "recall target",
            lambda x: lax.approx_max_k(x, 4, recall_target=0.9),
            lambda x: lax.approx_max_k(x, 4, recall_target=0.8),
            X,
        ),
        Pair(
            "mesh axes and a text in normal form's words",
            _axes_and_a_text("x", "y"),
            _axes_and_a_text("cs_axis0", "cs_axis1"),
        ),
        Pair("composite name", _composite("my.op"), _composite("my.other")),
        Pair("composite version", _composite("my.op"), _composite("my.op", 2)),
        Pair("composite attribute", _composite("my.op", a=1), _composite("my.op", a=2)),
        Pair("must_fuse", _metadata(must_fuse="1"), _metadata(must_fuse="0")),
        Pair(
            "scheduling group",
            _metadata(_scheduling_group_id="7"),
            _metadata(_scheduling_group_id="8"),
        ),
        Pair(
            "compute type",
            _metadata(_xla_compute_type="host"),
            _metadata(_xla_compute_type="dense"),
        ),
        Pair("frontend key", _metadata(must_fuse="1"), _metadata(inlineable="1")),
        Pair("effect under a loop of rank", _effect_loop(0), _effect_loop(1)),
        Pair(
            "dead collective under a loop of rank", _dead_loop(1, _REDUCE), _dead_loop(2, _REDUCE)
        ),
        Pair(
            "dead pure loop of rank",
            _dead_loop(1, '"stablehlo.sine"(%x)'),
            _dead_loop(2, '"stablehlo.sine"(%x)'),
        ),
        Pair("swapped collectives", _collectives("psum"), _collectives("pmax")),
        Pair("permutation", _permute([(0, 1), (1, 0)]), _permute([(0, 2), (2, 0)])),
        Pair("swapped callbacks", _callbacks(False), _callbacks(True)),
        text_pair(
            "device order of a mesh",
            functools.partial(meshed, "elementwise", "x", "y", (2, 2)),
            '"y"=2]',
            '"y"=2], device_ids=[1, 0, 2, 3]',
        ),
        Pair(
            "index map only",
            _index_map_only(1),
            _index_map_only(2),
        ),
    ]
    for kind in ("output", "two kernels", "function called twice", "constant"):
        for interpret in (True, False):
            pairs.append(
                Pair(
                    f"fragment with a live use: {kind} {'cpu' if interpret else 'tpu'}",
                    _fragment_uses(1, kind, interpret=interpret),
                    _fragment_uses(2, kind, interpret=interpret),
                )
            )
    for kind in ("aliased", "side effect", "collective id", "dynamic grid", "keep-alive"):
        pairs.append(Pair(f"kernel {kind}", kernel_case(1, kind), kernel_case(2, kind)))
    for kind in MESHED:
        pairs.append(
            Pair(
                f"mesh shape {kind}",
                functools.partial(meshed, kind, "x", "y"),
                functools.partial(meshed, kind, "x", "y", (2, 8)),
            )
        )
    for kind in ("matmul", "tuple axes", "constraint", "collectives"):
        # The same mesh with the two axes in each other's place: not a rename.
        pairs.append(
            Pair(
                f"axes that swap places {kind}",
                functools.partial(meshed, kind, "x", "y"),
                lambda kind=kind: _transposed_axes(kind),
            )
        )
    sine = functools.partial(ordered, "s", "c", swapped=False)
    pairs += [
        text_pair("callee", sine, "%0 = call @s", "%0 = call @c"),
        text_pair("visibility", sine, "func.func private @s", "func.func public @s"),
        text_pair(
            "while condition",
            lambda: lower(lambda x: lax.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, x), X),
            "compare  LT" if "compare  LT" in str(lower(lambda x: x < 1, X)) else "compare LT",
            "compare GT",
        ),
        text_pair(
            "memory kind",
            lambda: lower(lambda x: x, S((4,), F32)),
            "%arg0: tensor<4xf32>",
            '%arg0: tensor<4xf32> {mhlo.memory_kind = "pinned_host"}',
        ),
        text_pair(
            "layout mode",
            lambda: lower(lambda x: x, S((4,), F32)),
            "%arg0: tensor<4xf32>",
            '%arg0: tensor<4xf32> {mhlo.layout_mode = "{0}"}',
        ),
    ]
    return pairs


def _transposed_axes(kind: str) -> Any:
    """`meshed` with every use of x and y exchanged, over the unchanged mesh."""
    mesh = mesh_of("x", "y")

    def spread(*spec: Any) -> Any:
        return S((16, 16), F32, sharding=NamedSharding(mesh, P(*spec)))

    if kind == "matmul":
        return lower(lambda x, y: (x @ y).reshape(4, 4, 16), spread(None, "y"), spread("x", None))
    if kind == "tuple axes":
        pair = ("x", "y")
        return lower(lambda x, y: jnp.concatenate([x, y]), spread(pair), spread(None, pair))
    if kind == "constraint":
        return lower(
            lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("x", "y"))),
            spread("y", "x"),
        )

    def inner(x: Any) -> Any:
        y = lax.psum(x, "x")
        return lax.all_gather(y, "y", tiled=True) + lax.axis_index("x")

    g = jax.shard_map(
        inner, mesh=mesh, in_specs=P("y", "x"), out_specs=P(None, None), check_vma=False
    )
    return lower(g, spread("y", "x"))
