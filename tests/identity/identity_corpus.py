"""The corpus: pairs of programs that must share a key, and pairs that must not. Other tests share this table.

A pair is made of two functions that lower a program. `identity` is what the cache computes of one: rewrites decided on
the descriptor, applied to a clone, normal form of the result. Flags, options and targets are other components of the
key and have their own tests; here only the `program` component speaks.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import fragment_programs as fp
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from coldstart.client import jax_internals, jax_module
from coldstart.client.normal_form import normal_form
from coldstart.client.pointers import scan_pointers
from coldstart.identity import rules
from coldstart.identity.canonical import Canonical, canonicalize

S = jax.ShapeDtypeStruct
F32 = jnp.float32


@dataclass(frozen=True)
class Identity:
    """What the cache makes of one module."""

    digest: str
    canonical: Canonical
    notes: tuple[str, ...]
    pointer: str | None


def identity(
    module: Any, rules_off: Iterable[str] = (), rewriting: Any = rules.REWRITES
) -> Identity:
    attributes = module.operation.attributes
    counts = [
        int(attributes[name].value) if name in attributes else 1
        for name in ("mhlo.num_partitions", "mhlo.num_replicas")
    ]
    canonical = canonicalize(jax_module.describe(module), rules_off, rewriting=rewriting)
    clone = jax_internals.clone(module)
    jax_module.apply_rewrites(clone, canonical.rewrites)
    data, notes = normal_form(clone, one_device=counts == [1, 1], rules_off=rules_off)
    return Identity(hashlib.sha256(data).hexdigest(), canonical, notes, scan_pointers(module))


@dataclass(frozen=True)
class Pair:
    name: str
    left: Callable[[], Any]  # -> module
    right: Callable[[], Any]

    def __str__(self) -> str:
        return self.name


def lower(f: Any, *arguments: Any, platform: str = "cpu", **options: Any) -> Any:
    traced = jax.jit(f, **options).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,)).compiler_ir()


def text_pair(name: str, build: Callable[[], Any], old: str, new: str) -> Pair:
    """A program and its text with one edit, both parsed from text."""

    def side(edit: bool) -> Any:
        module = build()
        text = module.operation.get_asm(enable_debug_info=False)
        assert old in text, text
        ir = jax_internals.ir
        with module.context:
            return ir.Module.parse(text.replace(old, new) if edit else text)

    return Pair(name, lambda: side(False), lambda: side(True))


X = S((8, 16), F32)
X2 = S((16, 8), F32)


def parse(text: str) -> Any:
    """A module from text, in a context that knows JAX's dialects."""
    with lower(lambda x: x, X).context:
        return jax_internals.ir.Module.parse(text)


def _same(name: str, f: Any, g: Any, *arguments: Any) -> Pair:
    return Pair(name, lambda: lower(f, *arguments), lambda: lower(g, *arguments))


# --- fragments -----------------------------------------------------------------------------------

_TPU = (
    "plain",
    "layers",
    "argument_of_a_function",
    "cut_in_scan",
    "with_grid",
    "with_prefetch",
    "carried",
)


def _fragments(kernel: Any) -> list[Pair]:
    pairs = []

    def add(label: str, program: str, left: Any, right: Any, interpret: bool) -> None:
        def side(cut: Any) -> Any:
            return lambda: fp.lowered(program, cut, kernel, interpret=interpret).compiler_ir()

        pairs.append(Pair(f"{kernel.__name__} {label} {program}", side(left), side(right)))

    for program in fp.PROGRAMS:
        add("static", program, fp.static_cut(1), fp.static_cut(13), True)
        add("dynamic", program, fp.dynamic_cut(2), fp.dynamic_cut(7), True)
    add("first", "plain", fp.static_cut(0), fp.static_cut(3), True)
    add("strided", "plain", fp.strided_cut(1), fp.strided_cut(4), True)
    for program in _TPU:
        add("tpu static", program, fp.static_cut(1), fp.static_cut(13), False)
        add("tpu dynamic", program, fp.dynamic_cut(2), fp.dynamic_cut(7), False)
    return pairs


# --- names and spellings -------------------------------------------------------------------------


def _named(name: str) -> Any:
    def inner_a(x: Any) -> Any:
        return jnp.sin(x) + jnp.sort(x)

    def inner_b(x: Any) -> Any:
        return jnp.cos(x)

    inner_a.__name__, inner_b.__name__ = f"{name}_a", f"{name}_b"
    a, b = jax.jit(inner_a), jax.jit(inner_b)

    def outer(x: Any) -> Any:
        return a(x) + b(x) + a(x * 2)

    outer.__name__ = name
    return outer


def _from_file(path: str, lines: int) -> Any:
    space: dict[str, Any] = {"jnp": jnp, "pl": pl, "jax": jax}
    body = (
        "def kernel(a, b, o):\n    o[...] = a[...] + b[...]\n"
        "def f(x, y):\n"
        "    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)\n"
    )
    exec(compile("\n" * lines + body, path, "exec"), space)
    return space["f"]


def _kernel_named(name: str) -> Any:
    def kernel(a: Any, b: Any, o: Any) -> None:
        o[...] = a[...] - b[...]

    kernel.__name__ = name
    return lambda x, y: pl.pallas_call(kernel, out_shape=S(x.shape, x.dtype), name=name)(x, y)


TILE = (S((8, 128), F32), S((8, 128), F32))


def _mesh(a: str, b: str, shape: tuple[int, int] = (4, 4)) -> Mesh:
    return Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), (a, b))


def _meshed(kind: str, a: str, b: str, shape: tuple[int, int] = (4, 4)) -> Any:
    mesh = _mesh(a, b, shape)

    def spread(*spec: Any) -> Any:
        return S((16, 16), F32, sharding=NamedSharding(mesh, P(*spec)))

    if kind == "elementwise":
        return lower(lambda x, y: jnp.sin(x) + y, spread(a, None), spread(b, None))
    if kind == "matmul":
        return lower(lambda x, y: (x @ y).reshape(4, 4, 16), spread(None, a), spread(b, None))
    if kind == "tuple axes":
        return lower(lambda x, y: jnp.concatenate([x, y]), spread((b, a)), spread(None, (b, a)))
    if kind == "constraint":
        f = lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(b, a)))  # noqa: E731
        return lower(f, spread(a, b))

    def inner(x: Any) -> Any:
        y = lax.psum(x, b)
        return lax.all_gather(y, a, tiled=True) + lax.axis_index(b)

    g = jax.shard_map(inner, mesh=mesh, in_specs=P(a, b), out_specs=P(None, None), check_vma=False)
    return lower(g, spread(a, b))


_MESHED = ("elementwise", "matmul", "tuple axes", "constraint", "collectives")


def _spelling(which: str, f: Any) -> Any:
    device = jax.devices()[0]
    sharding = {
        "none": None,
        "single": SingleDeviceSharding(device),
        "named": NamedSharding(Mesh(np.array([device]), ("x",)), P("x")),
        "named two": NamedSharding(Mesh(np.array([[device]]), ("u", "v")), P(None, "v")),
    }[which]
    return lower(f, S((8, 16), F32, sharding=sharding) if sharding else X)


_ONE_DEVICE = {
    "elementwise": lambda x: x * 2 + 1,
    "scan": lambda x: lax.scan(lambda c, r: (c + r, c), x[0], x),
    "sort": lambda x: (jnp.sort(x), x.sum()),
}

_ORDER = """
module @jit_f {{
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = call @{a}(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @{b}(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }}
{functions}
}}
"""


def _ordered(a: str, b: str, *, swapped: bool) -> Any:
    one = f"""  func.func private @{a}(%arg0: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = stablehlo.sine %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }}"""
    two = one.replace(f"@{a}", f"@{b}").replace("sine", "cosine")
    return parse(
        _ORDER.format(a=a, b=b, functions="\n".join([two, one] if swapped else [one, two]))
    )


def _names() -> list[Pair]:
    pairs = [
        _same("function names", _named("f"), _named("g"), X),
        _same("function names that swap", _named("f_b"), _named("f_a"), X),
        _same("output names", lambda x: {"a": x * 2, "b": x}, lambda x: {"c": x * 2, "d": x}, X),
        _same("argument names", lambda x, y: x - y, lambda p, q: p - q, X, X),
        Pair(
            "order of private functions",
            lambda: _ordered("s", "c", swapped=False),
            lambda: _ordered("s", "c", swapped=True),
        ),
        Pair(
            "names and order of private functions",
            lambda: _ordered("s", "c", swapped=False),
            lambda: _ordered("c", "s", swapped=True),
        ),
    ]
    for platform in ("cpu", "tpu"):
        for what, left, right in (
            ("file", _from_file("/a/k.py", 0), _from_file("/b/other.py", 0)),
            ("line", _from_file("/a/k.py", 0), _from_file("/a/k.py", 12)),
            ("name", _kernel_named("k"), _kernel_named("another_kernel")),
        ):
            if platform == "tpu":
                pairs.append(
                    Pair(
                        f"kernel {what} tpu",
                        functools.partial(lower, left, *TILE, platform="tpu"),
                        functools.partial(lower, right, *TILE, platform="tpu"),
                    )
                )
            elif what != "name":
                plain = {"file": ("/a/m.py", 0, "/b/m.py", 0), "line": ("/a/m.py", 0, "/a/m.py", 9)}
                a, b, c, d = plain[what]
                pairs.append(_same(f"program {what}", _plain_file(a, b), _plain_file(c, d), X))
    for kind in _MESHED:
        for a, b in (("u", "v"), ("y", "x"), ("zeta", "alpha")):
            pairs.append(
                Pair(
                    f"mesh axes {kind} {a} {b}",
                    functools.partial(_meshed, kind, "x", "y"),
                    functools.partial(_meshed, kind, a, b),
                )
            )
    for name, f in _ONE_DEVICE.items():
        for which in ("single", "named", "named two"):
            pairs.append(
                Pair(
                    f"one device {name} {which}",
                    functools.partial(_spelling, "none", f),
                    functools.partial(_spelling, which, f),
                )
            )
    return pairs


def _plain_file(path: str, lines: int) -> Any:
    space: dict[str, Any] = {"jnp": jnp}
    exec(compile("\n" * lines + "def f(x):\n    return jnp.tanh(x) * 3\n", path, "exec"), space)
    return space["f"]


# --- what must differ ----------------------------------------------------------------------------


def _constant(array: Any) -> Any:
    return lambda: lower(lambda x: (x, jnp.asarray(array)), S((2,), F32))


def _floats(bits: list[int]) -> Any:
    return np.array(bits, np.uint32).view(np.float32)


def _constants() -> list[Pair]:
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


def _kernel_case(rank: int, kind: str) -> Any:
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


def _different() -> list[Pair]:
    def add(x: Any) -> Any:
        return x + 1

    pairs = [
        Pair("shape", lambda: lower(add, S((4,), F32)), lambda: lower(add, S((5,), F32))),
        Pair("dtype", lambda: lower(add, S((4,), F32)), lambda: lower(add, S((4,), jnp.bfloat16))),
        _same("rank in arithmetic", lambda x: x + 0.0, lambda x: x + 1.0, X),
        _same("live slice", lambda x: x[0:4], lambda x: x[4:8], X),
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
        _same(
            "precision",
            lambda x, y: lax.dot(x, y, precision="default"),
            lambda x, y: lax.dot(x, y, precision="highest"),
            X,
            X2,
        ),
        _same("sort order", lambda x: lax.sort(x), lambda x: -lax.sort(-x), X),
        _same("output order", lambda x: (x, x * 2), lambda x: (x * 2, x), X),
        _same("argument order", lambda x, y: x - y, lambda x, y: y - x, X, X),
        _same("comparator", lambda x: lax.approx_max_k(x, 4), lambda x: lax.approx_min_k(x, 4), X),
        _same(
            "recall target",
            lambda x: lax.approx_max_k(x, 4, recall_target=0.9),
            lambda x: lax.approx_max_k(x, 4, recall_target=0.8),
            X,
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
            functools.partial(_meshed, "elementwise", "x", "y", (2, 2)),
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
        pairs.append(Pair(f"kernel {kind}", _kernel_case(1, kind), _kernel_case(2, kind)))
    for kind in _MESHED:
        pairs.append(
            Pair(
                f"mesh shape {kind}",
                functools.partial(_meshed, kind, "x", "y"),
                functools.partial(_meshed, kind, "x", "y", (2, 8)),
            )
        )
    for kind in ("matmul", "tuple axes", "constraint", "collectives"):
        # The same mesh with the two axes in each other's place: not a rename.
        pairs.append(
            Pair(
                f"axes that swap places {kind}",
                functools.partial(_meshed, kind, "x", "y"),
                lambda kind=kind: _transposed_axes(kind),
            )
        )
    sine = functools.partial(_ordered, "s", "c", swapped=False)
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
    """`_meshed` with every use of x and y exchanged, over the unchanged mesh."""
    mesh = _mesh("x", "y")

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


MUST_SAME: list[Pair] = _fragments(fp.sparse) + _names()
MUST_DIFFER: list[Pair] = _fragments(fp.dense) + _constants() + _different()
