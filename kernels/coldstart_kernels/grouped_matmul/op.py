"""Grouped matmul: each row times the weights of the expert that it belongs to.

Rows stand in expert order (`moe_dispatch`), so a group is a run of rows. bf16 or fp32, or FP8 with block scales.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device
from coldstart_kernels.grouped_matmul import kernel, reference
from coldstart_kernels.grouped_matmul.quantize import (
    CHECKPOINT_BLOCK,
    FP8,
    quantize_blocks,
    spread,
)
from coldstart_kernels.grouped_matmul.tuning import TuningKey, TuningParams, heuristic

_IMPLEMENTATIONS = ("reference", "pallas")
_DTYPES = ("float32", "bfloat16")


def grouped_matmul(
    x: jax.Array,  # [rows, k]
    weights: jax.Array,  # [experts, k, n]
    group_sizes: jax.Array,  # [experts] int32
    *,
    weight_scales: jax.Array | None = None,  # [experts, k blocks, n blocks] fp32
    x_scales: jax.Array | None = None,  # [rows, k blocks] fp32
    out_dtype: Any = None,
    product_dtype: Any = jnp.float32,
    implementation: str | None = None,
    tuning: TuningParams | None = None,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> jax.Array:
    """Multiply each group's rows with that group's weights, accumulating in fp32.

    Args:
        x: rows in expert order: the first group_sizes[0] of them belong to expert 0, and so on. What comes
            after the last group may hold anything, NaN included.
        weights: in the type of x; or FP8 (e4m3) with `weight_scales`.
        group_sizes: rows of each group, 0 allowed; their sum must not exceed the rows.
        weight_scales: one scale per block of an FP8 weight, blocks being equal parts of k and n:
            [experts, k/128, n/128] as the checkpoints have it, [experts, 1, n] for scales per channel.
        x_scales: for an x that is FP8 already (`quantize_blocks`). Otherwise, with FP8 weights, x is
            quantised here: each row by blocks of 128 columns, or of all of k where 128 doesn't divide it.
        out_dtype: by default that of x, bf16 if that is FP8.
        product_dtype: FP8 only: bf16 rounds the product over each scale's columns before it is scaled and
            added, as some engines do. Their figures can only be met so.
        implementation: "reference", "pallas", or None to pick by the default backend.
        tuning: block sizes of the Pallas kernel; the heuristic by default.
        interpret: Pallas only: True (plain HLO, any backend), or `pltpu.InterpretParams`.
        device_kind: whose VMEM the heuristic plans for, and may be used up to.

    Returns:
        [rows, n]. Rows after the last group are undefined (`moe_combine` zeroes them).

    Raises:
        ValueError: shapes, types or names that don't go together; the message prints them.
    """
    _check(x, weights, group_sizes, weight_scales, x_scales)
    if implementation is None:
        implementation = device.default_implementation()
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {_IMPLEMENTATIONS}")
    if out_dtype is None:
        out_dtype = jnp.bfloat16 if x.dtype == FP8 else x.dtype
    rows, k = x.shape
    experts, _, n = weights.shape
    step = 0
    if weight_scales is not None:
        if x_scales is None:
            x, x_scales = quantize_blocks(x, k if k % CHECKPOINT_BLOCK else CHECKPOINT_BLOCK)
        step = _step(k, x_scales, weight_scales)
        x_scales = spread(x_scales, 1, k // step)
        weight_scales = spread(spread(weight_scales, 1, k // step), 2, n)
    if implementation == "reference":
        return reference.multiply(
            x, weights, group_sizes, x_scales, weight_scales,
            out_dtype=out_dtype, product_dtype=product_dtype,
        )  # fmt: skip
    key = TuningKey(
        rows=rows,
        experts=experts,
        k=k,
        n=n,
        itemsize=jnp.dtype(x.dtype).itemsize,
        out_itemsize=jnp.dtype(out_dtype).itemsize,
        step=step,
        device_kind=device_kind,
    )
    params = heuristic(key) if tuning is None else tuning
    params.check(key)
    return kernel.multiply(
        x, weights, group_sizes, x_scales, weight_scales,
        out_dtype=out_dtype, product_dtype=product_dtype, params=params, interpret=interpret,
        vmem_limit_bytes=device.vmem_bytes(device_kind),
    )  # fmt: skip


def _step(k: int, x_scales: jax.Array, weight_scales: jax.Array) -> int:
    """Columns of x over which neither its scale nor the weight's changes."""
    blocks = (k // x_scales.shape[1], k // weight_scales.shape[1])
    if max(blocks) % min(blocks):
        raise ValueError(
            f"blocks of k don't nest: {blocks[0]} of x, {blocks[1]} of the weights; "
            f"x_scales {x_scales.shape}, weight_scales {weight_scales.shape}"
        )
    return min(blocks)


def _check(
    x: jax.Array,
    weights: jax.Array,
    group_sizes: jax.Array,
    weight_scales: jax.Array | None,
    x_scales: jax.Array | None,
) -> None:
    shapes = (
        f"x {x.shape}, weights {weights.shape}, group_sizes {group_sizes.shape}, "
        f"weight_scales {None if weight_scales is None else weight_scales.shape}, "
        f"x_scales {None if x_scales is None else x_scales.shape}"
    )
    if x.ndim != 2 or weights.ndim != 3 or group_sizes.ndim != 1:
        raise ValueError(
            f"need x [rows, k], weights [experts, k, n], group_sizes [experts]: {shapes}"
        )
    if 0 in (*x.shape, *weights.shape):
        raise ValueError(f"empty operand: {shapes}")
    if weights.shape[1] != x.shape[1]:
        raise ValueError(f"x and weights differ in k: {shapes}")
    if group_sizes.shape[0] != weights.shape[0]:
        raise ValueError(f"weights and group_sizes differ in experts: {shapes}")
    if group_sizes.dtype != jnp.int32:
        raise ValueError(f"group_sizes need int32, got {group_sizes.dtype}")
    if weights.dtype == FP8:
        _check_scales(x, weights, weight_scales, x_scales, shapes)
        return
    if str(weights.dtype) not in _DTYPES or x.dtype != weights.dtype:
        raise ValueError(
            f"x and weights need one type of {_DTYPES}, or FP8 weights: {x.dtype}, {weights.dtype}"
        )
    if weight_scales is not None or x_scales is not None:
        raise ValueError(f"scales need FP8 weights, got {weights.dtype}: {shapes}")


def _check_scales(
    x: jax.Array,
    weights: jax.Array,
    weight_scales: jax.Array | None,
    x_scales: jax.Array | None,
    shapes: str,
) -> None:
    experts, k, n = weights.shape
    if weight_scales is None or weight_scales.ndim != 3 or weight_scales.shape[0] != experts:
        raise ValueError(f"FP8 weights need weight_scales [experts, k blocks, n blocks]: {shapes}")
    _, k_blocks, n_blocks = weight_scales.shape
    if 0 in (k_blocks, n_blocks) or k % k_blocks or n % n_blocks:
        raise ValueError(f"weight_scales don't divide the weights into equal blocks: {shapes}")
    if (x.dtype == FP8) is (x_scales is None):
        raise ValueError(f"x_scales go with an x in FP8, and only with one; x is {x.dtype}")
    if x.dtype != FP8 and str(x.dtype) not in _DTYPES:
        raise ValueError(f"x needs one type of {_DTYPES}, or FP8: {x.dtype}")
    if x_scales is not None and (
        x_scales.ndim != 2
        or x_scales.shape[0] != x.shape[0]
        or x_scales.shape[1] == 0
        or k % x_scales.shape[1]
    ):
        raise ValueError(f"x_scales don't divide x into equal blocks: {shapes}")
    if {str(a.dtype) for a in (weight_scales, x_scales) if a is not None} != {"float32"}:
        raise ValueError("scales need float32")
