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
    product_dtype: Any,
) -> jax.Array:
    """Rows [rows, n] of each group times that group's weights."""
    rows, k = x.shape
    ends = jnp.cumsum(group_sizes)
    row = jnp.arange(rows)[:, None]

    def add(out: jax.Array, expert: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        own, start, end, *scale = expert
        if x_scales is None:
            product = _matmul(x, own)
        elif product_dtype == jnp.float32:
            product = _matmul(
                x.astype(jnp.float32) * spread(x_scales, 1, k),
                own.astype(jnp.float32) * spread(scale[0], 0, k),
            )
        else:
            product = _rounded_products(x, own, x_scales, scale[0], product_dtype)
        return jnp.where((row >= start) & (row < end), product, out), None

    operands = [weights, ends - group_sizes, ends]
    if weight_scales is not None:
        operands.append(weight_scales)
    undefined = jnp.full((rows, weights.shape[2]), jnp.nan, jnp.float32)
    return jax.lax.scan(add, undefined, tuple(operands))[0].astype(out_dtype)


def _matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.matmul(
        x.astype(jnp.float32), weight.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST
    )


def _rounded_products(
    x: jax.Array, weight: jax.Array, x_scales: jax.Array, scales: jax.Array, product_dtype: Any
) -> jax.Array:
    """One block of k after the other, as here each product is rounded before it is scaled."""
    rows, blocks = x_scales.shape
    parts = (
        x.reshape(rows, blocks, -1).swapaxes(0, 1),
        weight.reshape(blocks, -1, weight.shape[1]),
        x_scales.T[..., None],
        scales[:, None, :],
    )

    def add(total: jax.Array, part: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        x, weight, x_scale, scale = part
        product = _matmul(x, weight).astype(product_dtype).astype(jnp.float32)
        return total + product * x_scale * scale, None

    return jax.lax.scan(add, jnp.zeros((rows, weight.shape[1]), jnp.float32), parts)[0]
