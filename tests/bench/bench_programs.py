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


def fleet(rank: int, participants: int, branch: str) -> list[Any]:
    """One backbone and two families, as the participant has them."""
    from coldstart.models.families import fleet_programs
    from coldstart.models.participant import PieceShape

    return fleet_programs(rank, participants, branch, shapes=(PieceShape(4, 32, layers=1),))[:3]
