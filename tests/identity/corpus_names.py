"""Pairs that differ in names, places and spellings only."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from corpus_base import F32, Pair, S, X, lower, parse, same_form
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

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


def mesh_of(a: str, b: str, shape: tuple[int, int] = (4, 4)) -> Mesh:
    return Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), (a, b))


def meshed(kind: str, a: str, b: str, shape: tuple[int, int] = (4, 4)) -> Any:
    mesh = mesh_of(a, b, shape)

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


MESHED = ("elementwise", "matmul", "tuple axes", "constraint", "collectives")


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


def ordered(a: str, b: str, *, swapped: bool) -> Any:
    one = f"""  func.func private @{a}(%arg0: tensor<4xf32>) -> tensor<4xf32> {{
    %0 = stablehlo.sine %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }}"""
    two = one.replace(f"@{a}", f"@{b}").replace("sine", "cosine")
    return parse(
        _ORDER.format(a=a, b=b, functions="\n".join([two, one] if swapped else [one, two]))
    )


def names() -> list[Pair]:
    pairs = [
        same_form("function names", _named("f"), _named("g"), X),
        same_form("function names that swap", _named("f_b"), _named("f_a"), X),
        same_form(
            "output names", lambda x: {"a": x * 2, "b": x}, lambda x: {"c": x * 2, "d": x}, X
        ),
        same_form("argument names", lambda x, y: x - y, lambda p, q: p - q, X, X),
        Pair(
            "order of private functions",
            lambda: ordered("s", "c", swapped=False),
            lambda: ordered("s", "c", swapped=True),
        ),
        Pair(
            "names and order of private functions",
            lambda: ordered("s", "c", swapped=False),
            lambda: ordered("c", "s", swapped=True),
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
                pairs.append(same_form(f"program {what}", _plain_file(a, b), _plain_file(c, d), X))
    for kind in MESHED:
        for a, b in (("u", "v"), ("y", "x"), ("zeta", "alpha")):
            pairs.append(
                Pair(
                    f"mesh axes {kind} {a} {b}",
                    functools.partial(meshed, kind, "x", "y"),
                    functools.partial(meshed, kind, a, b),
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
