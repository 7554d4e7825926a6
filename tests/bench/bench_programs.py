"""Programs for plans of tests: small ones that compile in no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Program:
    name: str
    bucket: Mapping[str, int]
    devices: int = 1

    def lower(self, devices: Sequence[Any]) -> Any:
        import jax
        import jax.numpy as jnp
        from jax.sharding import SingleDeviceSharding

        here = SingleDeviceSharding(devices[0])
        size = self.bucket["size"]
        return jax.jit(lambda x: jnp.sin(x) * size).lower(
            jax.ShapeDtypeStruct((size,), "float32", sharding=here)
        )


def small() -> list[Program]:
    return [Program("sine", {"size": size}) for size in (3, 4)]
