"""Grouped matmul in plain JAX: dequantise, then every expert over all rows, keeping its own. fp32 throughout.

Takes what op.py has validated. Rows beyond the last group come out as NaN on purpose: they are undefined, and a
caller that forgets to zero them should see it here, not on a TPU.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels.grouped_matmul.quantize import spread


def multiply(
    x: jax.Array,  # [rows, k]
    weights: jax.Array,  # [experts, k, n]
    group_sizes: jax.Array,  # [experts] int32
    x_scales: jax.Array | None,  # [rows, k / step] fp32
    weight_scales: jax.Array | None,  # [experts, k / step, n] fp32
    *,
    out_dtype: Any,
) -> jax.Array:
    """Rows [rows, n] of each group times that group's weights."""
    rows, k = x.shape
    wide = x.astype(jnp.float32)
    if x_scales is not None:
        wide = wide * spread(x_scales, 1, k)
    ends = jnp.cumsum(group_sizes)
    row = jnp.arange(rows)[:, None]

    def add(out: jax.Array, expert: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        own, start, end, *scale = expert
        own = own.astype(jnp.float32)
        if scale:
            own = own * spread(scale[0], 0, k)
        product = jnp.matmul(wide, own, precision=jax.lax.Precision.HIGHEST)
        return jnp.where((row >= start) & (row < end), product, out), None

    operands = [weights, ends - group_sizes, ends]
    if weight_scales is not None:
        operands.append(weight_scales)
    undefined = jnp.full((rows, weights.shape[2]), jnp.nan, jnp.float32)
    return jax.lax.scan(add, undefined, tuple(operands))[0].astype(out_dtype)
