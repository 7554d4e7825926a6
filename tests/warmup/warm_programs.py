"""Programs for plans of tests: small ones that compile, and some that don't."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Program:
    name: str
    bucket: Mapping[str, int]
    make: Callable[[Sequence[Any]], Any]
    devices: int = 1

    def lower(self, devices: Sequence[Any]) -> Any:
        return self.make(devices)


def small(count: int = 3, steps: int = 1, first: int = 0) -> list[Program]:
    """`count` programs; the more steps, the longer each compiles."""

    def lowering(number: int) -> Callable[[Sequence[Any]], Any]:
        def make(devices: Sequence[Any]) -> Any:
            import jax
            import jax.numpy as jnp
            from jax.sharding import SingleDeviceSharding

            def chain(x: Any) -> Any:
                for step in range(steps):
                    x = jnp.sin(x @ x.T) * (step + number + 2) + jnp.cumsum(x, axis=0)
                return x

            here = SingleDeviceSharding(devices[0])
            return jax.jit(chain).lower(jax.ShapeDtypeStruct((8, 8), "float32", sharding=here))

        return make

    return [Program("chain", {"number": first + i}, lowering(first + i)) for i in range(count)]


def wide() -> list[Program]:
    """One that needs more devices than tests have."""
    return [Program("wide", {}, lambda devices: None, devices=64)]


def troubled() -> list[Program]:
    """One that works, one twice, and one of each kind of trouble."""
    twin, good = small(2)

    def raises(devices: Sequence[Any]) -> Any:
        raise ValueError("a shape\nis wrong")

    def dies(devices: Sequence[Any]) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    return [
        twin,
        Program("twin", {"number": 0}, twin.make),
        Program("raises", {}, raises),
        Program("dies", {}, dies),
        Program("unknown-call", {}, unknown_call),
        Program("unknown-option", {}, unknown_option),
        Program("partitioned", {}, partitioned, devices=2),
        good,
    ]


def unknown_option(devices: Sequence[Any]) -> Any:
    """Lowers; every compiler of this build refuses it."""
    import jax

    argument = jax.ShapeDtypeStruct((4,), "float32")
    return jax.jit(lambda x: x + 1, compiler_options={"xla_no_such_option": "1"}).lower(argument)


def unknown_call(devices: Sequence[Any]) -> Any:
    """Lowers; the compiler of this process refuses it: another one may have the handler."""
    import jax

    result = jax.ShapeDtypeStruct((4,), "float32")
    call = jax.ffi.ffi_call("nobody_registered_this", result)
    return jax.jit(lambda x: call(x)).lower(result)


def partitioned(devices: Sequence[Any]) -> Any:
    """Carries the id of a Python object: can't be shared."""
    import jax
    import numpy as np
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    doubled = custom_partitioning(lambda x: x * 2)
    doubled.def_partition(
        infer_sharding_from_operands=lambda mesh, shapes, result: shapes[0].sharding,
        partition=lambda mesh, shapes, result: (
            mesh, (lambda x: x * 2), result.sharding, (shapes[0].sharding,)
        ),
        sharding_rule="i -> i",
    )  # fmt: skip
    split = NamedSharding(Mesh(np.array(devices[:2]), ("x",)), PartitionSpec("x"))
    argument = jax.ShapeDtypeStruct((8,), "float32", sharding=split)
    return jax.jit(lambda x: doubled(x)).lower(argument)
