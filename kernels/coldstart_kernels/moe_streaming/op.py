"""Routed experts of one device: few tokens stream past a ring of expert weights, all else goes by groups.

Collectives stay outside: what comes out is this device's part of the sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device
from coldstart_kernels.moe_routing.switches import check_threshold
from coldstart_kernels.moe_streaming import kernel, reference
from coldstart_kernels.moe_streaming.admission import Request
from coldstart_kernels.moe_streaming.tuning import TuningKey, TuningParams, heuristic

_IMPLEMENTATIONS = ("reference", "pallas")


def moe_streaming(
    x: jax.Array,  # [tokens, hidden]
    weights: jax.Array,  # [tokens, chosen] fp32
    ids: jax.Array,  # [tokens, chosen] int32
    w1: jax.Array,  # [experts, hidden, 2 * intermediate], gate then up
    w2: jax.Array,  # [experts, intermediate, hidden]
    s1: jax.Array | None = None,
    s2: jax.Array | None = None,
    *,
    experts_start: jax.Array,  # [] int32
    threshold: int = 0,
    b1: jax.Array | None = None,  # [experts, 2 * intermediate]
    b2: jax.Array | None = None,  # [experts, hidden]
    activation: str = "silu",
    weight_dtype: str | None = None,
    packed_sort: bool = False,
    implementation: str | None = None,
    tuning: TuningParams | None = None,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> jax.Array:
    """Run this device's experts over the tokens that chose them.

    Args:
        weights, ids: of `moe_route`; ids are global, those of no local expert count for nothing.
        w1, w2: in the type of x, or FP8 with scales.
        s1, s2: fp32 scales of FP8 weights: per channel, [experts, 1, 1, n] (the form that streams), or of
            blocks, [experts, k blocks, n blocks].
        experts_start: global number of the first local expert, an operand of the program: as a constant it
            would make the programs of ranks differ.
        threshold: up to how many tokens experts are streamed (`MOE_DENSE_EXPERT_THRESHOLD`); 0 is never. What
            `Request.refusal` names takes the base path instead, silently.
        activation: "silu" or "gelu", of the gate.
        weight_dtype: multiply the weights in this type; FP8 or None leaves them as they are.
        packed_sort: for the base path (`MOE_PACKED_SORT`).
        implementation: "reference", "pallas", or None to pick by the default backend.
        tuning: slots of the ring; by the device's VMEM by default.
        interpret: Pallas only: `pltpu.InterpretParams`, or True.
        device_kind: whose VMEM is planned for, and may be used up to.

    Returns:
        [tokens, hidden] in the type of x; exactly 0 for tokens without a local expert or with zero weights.

    Raises:
        ValueError: shapes, types, names or a threshold that can't be; the message prints them.
    """
    check_threshold(threshold)
    _check(x, weights, ids, w1, w2, experts_start, activation)
    if (s1 is None) is not (s2 is None):
        raise ValueError("s1 and s2 come together")
    if implementation is None:
        implementation = device.default_implementation()
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {_IMPLEMENTATIONS}")
    tokens, hidden = x.shape
    experts, intermediate, _ = w2.shape
    request = Request(
        tokens=tokens,
        hidden=hidden,
        intermediate=intermediate,
        experts=experts,
        hidden_dtype=str(x.dtype),
        w1_dtype=str(w1.dtype),
        w2_dtype=str(w2.dtype),
        per_channel_scales=_per_channel(s1, w1) and _per_channel(s2, w2),
        biased=b1 is not None or b2 is not None,
        activation=activation,
        weight_dtype=weight_dtype,
    )
    options = {"implementation": implementation, "interpret": interpret, "device_kind": device_kind}
    if request.refusal(threshold) is not None:
        if weight_dtype not in (None, "float8_e4m3fn") and s1 is not None and s2 is not None:
            w1 = reference.dequantised(w1, s1, weight_dtype)
            w2 = reference.dequantised(w2, s2, weight_dtype)
            s1 = s2 = None
        return reference.by_groups(
            x, weights, ids, w1, w2, s1, s2, b1, b2, experts_start,
            activation=activation, packed_sort=packed_sort, **options,
        )  # fmt: skip
    assert s1 is not None and s2 is not None
    given, chosen = reference.coefficients(weights, ids, experts_start, experts)
    if implementation == "reference":
        return reference.stream(x, given, chosen, w1, w2, s1, s2)
    key = TuningKey(tokens, hidden, intermediate, experts, device_kind)
    params = heuristic(key) if tuning is None else tuning
    params.check()
    return kernel.stream(
        x, given, chosen, w1, w2, s1, s2,
        params=params, vmem_limit_bytes=device.vmem_bytes(device_kind), interpret=interpret,
    )  # fmt: skip


def _per_channel(scales: jax.Array | None, weight: jax.Array) -> bool:
    if scales is None:
        return False
    return scales.shape == (weight.shape[0], 1, 1, weight.shape[2]) and scales.dtype == jnp.float32


def _check(
    x: jax.Array,
    weights: jax.Array,
    ids: jax.Array,
    w1: jax.Array,
    w2: jax.Array,
    experts_start: jax.Array,
    activation: str,
) -> None:
    shapes = f"x {x.shape}, weights {weights.shape}, ids {ids.shape}, w1 {w1.shape}, w2 {w2.shape}"
    if activation not in reference.ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {tuple(reference.ACTIVATIONS)}")
    if not isinstance(experts_start, jax.Array) or experts_start.shape != ():
        raise ValueError(f"experts_start needs an int32 array of no dimension: {experts_start!r}")
    if experts_start.dtype != jnp.int32 or ids.dtype != jnp.int32:
        raise ValueError(f"ids and experts_start need int32: {ids.dtype}, {experts_start.dtype}")
    if (x.ndim, weights.ndim, ids.ndim, w1.ndim, w2.ndim) != (2, 2, 2, 3, 3):
        raise ValueError(f"x, weights and ids need two dimensions, w1 and w2 three: {shapes}")
    if 0 in (*x.shape, *weights.shape, *w1.shape, *w2.shape):
        raise ValueError(f"empty operand: {shapes}")
    if weights.shape != ids.shape or ids.shape[0] != x.shape[0]:
        raise ValueError(f"x, weights and ids differ in tokens or choices: {shapes}")
    if weights.dtype != jnp.float32:
        raise ValueError(f"weights need float32, got {weights.dtype}")
    experts, intermediate, hidden = w2.shape
    if x.shape[1] != hidden or w1.shape != (experts, hidden, 2 * intermediate):
        raise ValueError(f"x, w1 and w2 don't go together: {shapes}")
