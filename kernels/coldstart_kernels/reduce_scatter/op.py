"""Reduce-scatter of partial sums over devices: the one public function.

After an expert-parallel layer every device holds partial sums for all tokens; the owner of each token wants the total.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device
from coldstart_kernels.reduce_scatter import kernel, reference
from coldstart_kernels.reduce_scatter.tuning import TuningKey, TuningParams, heuristic

_IMPLEMENTATIONS = ("reference", "pallas")
_DTYPES = ("float32", "bfloat16")


def reduce_scatter(
    partial: jax.Array,  # [tokens, hidden]
    *,
    axis: str,
    implementation: str | None = None,
    tuning: TuningParams | None = None,
    collective_id: int = 0,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> jax.Array:
    """Sum over the devices of a mesh axis, and keep the rows of this device. Called inside `shard_map`.

    Args:
        partial: this device's part of the sum, for all tokens; device i owns rows i * tokens / devices on.
        axis: the axis to sum over. The kernel needs 2, 4, 8, ... chips of two devices, in the order
            that `topology.check_order` checks (ascending ids): plain meshes of JAX's helper aren't.
        implementation: "reference", "pallas", or None to pick by the default backend.
        tuning: how the Pallas kernel cuts the columns; the heuristic by default.
        collective_id: tells kernels apart that meet their neighbours at the same time.
        interpret: Pallas only: `pltpu.InterpretParams` (plain HLO knows no remote copies).
        device_kind: whose VMEM the heuristic plans for.

    Returns:
        [tokens / devices, hidden] in the type of `partial`.

    Raises:
        ValueError: shapes, types or names that don't go together; the message prints them.
    """
    devices = jax.lax.axis_size(axis)
    _check(partial, devices, implementation)
    if implementation is None:
        implementation = device.default_implementation()
    if implementation == "reference":
        return reference.run(partial, axis=axis)
    tokens, hidden = partial.shape
    key = TuningKey(devices, tokens, hidden, jnp.dtype(partial.dtype).itemsize, device_kind)
    key.cube.check()
    params = heuristic(key) if tuning is None else tuning
    params.check(key)
    rows = tokens // devices
    padded = partial.reshape(devices, rows, hidden)
    if key.rows != rows:
        padded = jnp.pad(padded, ((0, 0), (0, key.rows - rows), (0, 0)))
    total = kernel.run(
        padded.reshape(devices * key.rows, hidden),
        axis=axis, devices=devices, params=params,
        collective_id=collective_id, interpret=interpret,
    )  # fmt: skip
    return total[:rows]


def _check(partial: jax.Array, devices: int, implementation: str | None) -> None:
    if implementation is not None and implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {_IMPLEMENTATIONS}")
    if partial.ndim != 2 or 0 in partial.shape:
        raise ValueError(f"partial {partial.shape} is not [tokens, hidden]")
    if partial.shape[0] % devices:
        raise ValueError(f"partial {partial.shape}: {devices} devices don't divide the tokens")
    if str(partial.dtype) not in _DTYPES:
        raise ValueError(f"partial needs a type of {_DTYPES}, got {partial.dtype}")
