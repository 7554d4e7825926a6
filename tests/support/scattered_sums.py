"""A reduce-scatter over simulated devices, as a function and as a program.

    python scattered_sums.py DEVICES TOKENS HIDDEN MICRO_BATCHES

As a program because of JAX's simulator: every simulated device holds a thread of the CPU client while it waits
for another, and needs a second one to go on. The client has as many as it has devices, so 16 devices that
exchange something need a process that pretends to have 32.
"""

from __future__ import annotations

import json
import sys

import jax
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, PartitionSpec

from coldstart_kernels import reduce_scatter
from coldstart_kernels.reduce_scatter import TuningParams


def scattered(partial: np.ndarray, devices: int, micro_batches: int | None) -> np.ndarray:
    """All owners' rows [tokens, hidden] of partial [devices, tokens, hidden]; None: the reference."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("d",))
    options: dict = {"implementation": "reference"}
    if micro_batches is not None:
        options = {
            "implementation": "pallas",
            "tuning": TuningParams(micro_batches, 46 << 20),
            "interpret": pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"),
        }

    def own(rows: jax.Array) -> jax.Array:
        return reduce_scatter(rows, axis="d", **options)

    spec = PartitionSpec("d")
    run = jax.jit(
        jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False),
        compiler_options={"xla_backend_optimization_level": 0},
    )
    return np.asarray(run(partial.reshape(-1, partial.shape[2])))


def whole_numbers(devices: int, tokens: int, hidden: int) -> np.ndarray:
    """Parts whose sums are exact in any order and any type."""
    rng = np.random.default_rng(devices)
    return rng.integers(-4, 5, (devices, tokens, hidden)).astype(np.float32)


def races_found() -> bool:
    """The detector only prints (newest JAX: raises); its verdict is a module's variable."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    assert simulator.races is not None, "the race detector did not run"
    return bool(simulator.races.races_found)


def main(devices: int, tokens: int, hidden: int, micro_batches: int) -> None:
    partial = whole_numbers(devices, tokens, hidden)
    wrong = int((scattered(partial, devices, micro_batches) != partial.sum(axis=0)).sum())
    print(json.dumps({"devices": devices, "wrong": wrong, "races": races_found()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
