"""Routed experts in plain JAX: by groups (the base path), and streamed with the kernel's own roundings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels.grouped_matmul import grouped_matmul, quantize_blocks
from coldstart_kernels.grouped_matmul.quantize import FP8
from coldstart_kernels.moe_routing import moe_combine, moe_dispatch, moe_permute
from coldstart_kernels.moe_routing.permutation import local_keys
from coldstart_kernels.moe_streaming.admission import BLOCK

ACTIVATIONS = {"silu": jax.nn.silu, "gelu": jax.nn.gelu}


def by_groups(
    x: jax.Array,  # [tokens, hidden]
    weights: jax.Array,  # [tokens, chosen] fp32
    ids: jax.Array,  # [tokens, chosen] int32
    w1: jax.Array,  # [experts, hidden, 2 * intermediate], gate then up
    w2: jax.Array,  # [experts, intermediate, hidden]
    s1: jax.Array | None,
    s2: jax.Array | None,
    b1: jax.Array | None,  # [experts, 2 * intermediate]
    b2: jax.Array | None,  # [experts, hidden]
    experts_start: jax.Array,
    *,
    activation: str,
    packed_sort: bool,
    **options: Any,
) -> jax.Array:
    """The base path: order rows by expert, two grouped matmuls, weighted sum back."""
    order = moe_permute(
        ids, local_experts=w1.shape[0], experts_start=experts_start, packed=packed_sort
    )
    rows = moe_dispatch(x, order)
    ends = jnp.cumsum(order.group_sizes)
    # Rows of nobody take the last expert's bias; the combine drops them.
    row = jnp.arange(rows.shape[0])[:, None]
    expert = jnp.minimum(jnp.sum(ends[None, :] <= row, axis=1), w1.shape[0] - 1)

    def multiply(
        rows: jax.Array, weight: jax.Array, scale: jax.Array | None, bias: jax.Array | None
    ) -> jax.Array:
        rows, scales = _quantised(rows, scale)
        out = grouped_matmul(
            rows, weight, order.group_sizes, out_dtype=jnp.float32, **scales, **options
        )
        return out if bias is None else out + bias[expert]

    gate, up = jnp.split(multiply(rows, w1, s1, b1), 2, axis=1)
    middle = (ACTIVATIONS[activation](gate) * up).astype(x.dtype)
    out = multiply(middle, w2, s2, b2).astype(x.dtype)
    return moe_combine(out, order, weights)


def _quantised(rows: jax.Array, scale: jax.Array | None) -> tuple[jax.Array, dict[str, Any]]:
    """Rows and the scales that the grouped matmul gets with them.

    Scales per channel go with the roundings of streaming: activations in blocks of 512 with scales in bf16, each
    block's product in bf16. Other roundings tip 3 % of the middle values into the next FP8 number, 9 % away,
    and the two paths would differ by 1.5 %. Block scales are left to the grouped matmul.
    """
    if scale is None:
        return rows, {}
    if scale.ndim == 3:
        return rows, {"weight_scales": scale}
    width = rows.shape[1]
    rows, x_scales = quantize_blocks(rows, width if width % BLOCK else BLOCK, jnp.bfloat16)
    return rows, {
        "x_scales": x_scales,
        "weight_scales": scale[:, 0],
        "product_dtype": jnp.bfloat16,
    }


def coefficients(
    weights: jax.Array, ids: jax.Array, experts_start: jax.Array, experts: int
) -> tuple[jax.Array, jax.Array]:
    """What each token gives each local expert [tokens, experts] fp32, and which are chosen [experts] bool.

    A token that names an expert twice gives it the sum.
    """
    local = local_keys(ids, experts_start, experts)
    hot = local[..., None] == jnp.arange(experts, dtype=jnp.int32)
    given = jnp.sum(jnp.where(hot, weights[..., None], 0.0), axis=1)
    return given, jnp.any(hot, axis=(0, 1))


def stream(
    x: jax.Array,  # [tokens, hidden] bf16
    given: jax.Array,  # [tokens, experts] fp32
    chosen: jax.Array,  # [experts] bool
    w1: jax.Array,  # [experts, hidden, 2 * intermediate] FP8
    w2: jax.Array,  # [experts, intermediate, hidden] FP8
    s1: jax.Array,  # [experts, 1, 1, 2 * intermediate] fp32
    s2: jax.Array,  # [experts, 1, 1, hidden] fp32
) -> jax.Array:
    """All tokens past every chosen expert in turn, with the roundings of the kernel."""

    def add(total: jax.Array, expert: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        own, is_chosen, w1, w2, s1, s2 = expert
        gate, up = jnp.split(_multiply(x, w1, s1[0]), 2, axis=1)
        out = _multiply((jax.nn.silu(gate) * up).astype(x.dtype), w2, s2[0])
        # Masked before it is added: what an expert makes of others' tokens may be Inf or NaN.
        counts = is_chosen & (own != 0)[:, None]
        return total + jnp.where(counts, own[:, None] * out, 0.0), None

    zero = jnp.zeros(x.shape, jnp.float32)
    return jax.lax.scan(add, zero, (given.T, chosen, w1, w2, s1, s2))[0].astype(x.dtype)


def _multiply(x: jax.Array, weight: jax.Array, scale: jax.Array) -> jax.Array:
    values, x_scales = quantize_blocks(x, BLOCK, jnp.bfloat16)
    total = jnp.zeros((x.shape[0], weight.shape[1]), jnp.float32)
    for block in range(x.shape[1] // BLOCK):
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        part = jnp.matmul(
            values[:, columns], weight[columns], preferred_element_type=jnp.float32
        ).astype(jnp.bfloat16)
        total += part.astype(jnp.float32) * x_scales[:, block, None]
    return total * scale


def dequantised(weight: jax.Array, scale: jax.Array, dtype: str) -> jax.Array:
    """FP8 weights times their scales, in another type."""
    wide = scale[:, 0] if scale.ndim == 4 else scale
    for axis in (1, 2):
        wide = jnp.repeat(wide, weight.shape[axis] // wide.shape[axis], axis=axis)
    return (weight.astype(jnp.float32) * wide).astype(dtype) if weight.dtype == FP8 else weight
