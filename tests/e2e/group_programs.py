"""An SPMD program over all devices with three independent collectives, for members of a job and for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROWS, COLUMNS = 2, 8  # of each device's piece


def inputs(devices: int) -> list[np.ndarray[Any, Any]]:
    """Whole numbers, so that sums are exact in whatever order."""
    random = np.random.default_rng(7)
    shape = (devices * ROWS, COLUMNS)
    return [random.integers(-50, 50, shape).astype(np.float32) for _ in range(3)]


def expected(devices: int, factor: float) -> list[np.ndarray[Any, Any]]:
    """What `collectives` gives, by NumPy: a sum, a maximum, and pieces handed to the next device."""
    a, b, c = (x.reshape(devices, ROWS, COLUMNS) for x in inputs(devices))
    moved = np.roll(c, 1, axis=0).reshape(devices * ROWS, COLUMNS)
    return [(a * factor).sum(axis=0), b.max(axis=0), moved]


def collectives(mesh: Any, factor: float = 2.0) -> Any:
    """The jitted program over `mesh`'s one axis `x`."""
    import jax
    from jax.sharding import PartitionSpec as P

    def step(a: Any, b: Any, c: Any) -> Any:
        count = mesh.size
        following = [(i, (i + 1) % count) for i in range(count)]
        return (
            jax.lax.psum(a * factor, "x"),
            jax.lax.pmax(b, "x"),
            jax.lax.ppermute(c, "x", following),
        )

    spread = (P("x"),) * 3
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=spread, out_specs=(P(), P(), P("x"))))


def mesh_of(devices: Sequence[Any]) -> Any:
    from jax.sharding import Mesh

    return Mesh(np.array(devices), ("x",))


def lower(devices: Sequence[Any], factor: float = 2.0) -> Any:
    """`collectives`, lowered for its arguments over `devices`, live or described."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = mesh_of(devices)
    spread = NamedSharding(mesh, P("x"))
    shape = (len(devices) * ROWS, COLUMNS)
    arguments = [jax.ShapeDtypeStruct(shape, np.float32, sharding=spread)] * 3
    return collectives(mesh, factor).lower(*arguments)


def wrong(devices: Sequence[Any], executable: Any, factor: float = 2.0) -> list[int]:
    """Run it on `inputs`: which of its outputs are not what NumPy says, on this process's devices."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    spread = NamedSharding(mesh_of(devices), P("x"))

    def put(whole: np.ndarray[Any, Any]) -> Any:
        return jax.make_array_from_callback(whole.shape, spread, lambda index: whole[index])

    outputs = executable(*map(put, inputs(len(devices))))
    found = []
    for n, (output, right) in enumerate(zip(outputs, expected(len(devices), factor), strict=True)):
        pieces = output.addressable_shards
        if not all(np.array_equal(np.asarray(piece.data), right[piece.index]) for piece in pieces):
            found.append(n)
    return found


@dataclass(frozen=True)
class Planned:
    """The program as an entry of a plan."""

    name: str = "collectives"
    bucket: dict[str, int] = field(default_factory=dict)
    devices: int = 2

    def lower(self, devices: Sequence[Any]) -> Any:
        return lower(devices)


def plan() -> list[Planned]:
    return [Planned()]
