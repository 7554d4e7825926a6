"""Grouped matmul for TPU: one launch over (column block, visit, contraction block).

A visit is one pair of row block and group that meet. A row block that several groups share is visited by each in
turn, and each stores its own rows only; an empty group is visited by none. How many visits there are is known at run
time only: the grid has room for the most there can be (row blocks + groups - 1), and what is too many does nothing
and moves nothing. In VMEM, per step:

    x            [block_rows, block_k]            x2   moves with row block and contraction block
    weights      [block_k, block_n]               x2   moves with the group; read once per group if block_k is k
    x scales     [block_rows, steps] fp32         x2   FP8 only; steps = block_k / step
    w scales     [steps, block_n] fp32            x2   FP8 only
    out          [block_rows, block_n]            x2   stays while visits share the row block
    accumulator  [block_rows, block_n] fp32
    product      [block_rows, block_n] fp32       x2   temporaries

`tuning.vmem_needed` is that sum. Rows never meet: whatever a partial block or a row of no group holds ends in rows
that aren't stored.

    visit        0        1        2        3 (too many)
    row block    0        0        1        1
    group        0        2        2        2
    rows 0..15   [000022222222222222|2222....]     group 1 is empty, the dots belong to nobody
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels.grouped_matmul.tuning import TuningParams

_MATMUL = (((1,), (0,)), ((), ()))


def multiply(
    x: jax.Array,  # [rows, k]
    weights: jax.Array,  # [experts, k, n]
    group_sizes: jax.Array,  # [experts] int32
    x_scales: jax.Array | None,  # [rows, k / step] fp32
    weight_scales: jax.Array | None,  # [experts, k / step, n] fp32
    *,
    out_dtype: Any,
    product_dtype: Any,
    params: TuningParams,
    vmem_limit_bytes: int,
    interpret: Any,
) -> jax.Array:
    """Rows [rows, n] of each group times that group's weights; rows of no group are undefined."""
    rows, k = x.shape
    experts, _, n = weights.shape
    block_rows, block_k, block_n = params.block_rows, params.block_k, params.block_n
    k_blocks = k // block_k
    scalars = visits(group_sizes, rows, block_rows)

    # A visit too many asks for what is there already, so that nothing is copied for it.
    def k_of(visit: Any, k_block: Any, total: Any) -> Any:
        return jnp.where(visit < total[0], k_block, k_blocks - 1)

    def x_map(c: Any, v: Any, i: Any, group: Any, block: Any, s: Any, e: Any, total: Any) -> Any:
        return (block[v], k_of(v, i, total))

    def w_map(c: Any, v: Any, i: Any, group: Any, block: Any, s: Any, e: Any, total: Any) -> Any:
        return (group[v], k_of(v, i, total), c)

    def out_map(c: Any, v: Any, i: Any, group: Any, block: Any, *_: Any) -> Any:
        return (block[v], c)

    in_specs = [
        pl.BlockSpec((block_rows, block_k), x_map),
        pl.BlockSpec((1, block_k, block_n), w_map),
    ]
    operands = [x, weights]
    if x_scales is not None and weight_scales is not None:
        # The steps of a contraction block get a dimension of their own: a block then holds all of it.
        steps = x_scales.shape[1] // k_blocks
        operands += [
            x_scales.reshape(rows, k_blocks, steps).transpose(1, 0, 2),
            weight_scales.reshape(experts, k_blocks, steps, n),
        ]
        in_specs += [
            pl.BlockSpec((1, block_rows, steps), lambda *a: (*x_map(*a)[::-1], 0)),
            pl.BlockSpec((1, 1, steps, block_n), lambda *a: (*w_map(*a)[:2], 0, a[0])),
        ]
    return pl.pallas_call(
        functools.partial(_body, k_blocks=k_blocks, product_dtype=product_dtype),
        name="grouped_matmul",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(pl.cdiv(n, block_n), scalars[0].shape[0], k_blocks),
            in_specs=in_specs,
            out_specs=pl.BlockSpec((block_rows, block_n), out_map),
            scratch_shapes=[pltpu.VMEM((block_rows, block_n), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((rows, n), out_dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
    )(*scalars, *operands)


def visits(group_sizes: jax.Array, rows: int, block_rows: int) -> tuple[jax.Array, ...]:
    """Who meets whom: group and row block of each visit, starts and ends of the groups, number of visits.

    All int32. Visits too many repeat the last one.
    """
    experts = group_sizes.shape[0]
    blocks = -(-rows // block_rows)
    ends = jnp.cumsum(group_sizes, dtype=jnp.int32)
    starts = ends - group_sizes
    first = starts // block_rows
    met = jnp.where(group_sizes > 0, (ends - 1) // block_rows - first + 1, 0)
    done = jnp.cumsum(met, dtype=jnp.int32)
    most = blocks + min(experts, rows) - 1
    visit = jnp.minimum(jnp.arange(most, dtype=jnp.int32), jnp.maximum(done[-1] - 1, 0))
    group = jnp.sum(done[None, :] <= visit[:, None], axis=1, dtype=jnp.int32)
    group = jnp.minimum(group, experts - 1)
    block = first[group] + visit - (done - met)[group]
    return group, jnp.clip(block, 0, blocks - 1), starts, ends, done[-1:]


def _body(
    group_ref: Any,
    block_ref: Any,
    starts_ref: Any,
    ends_ref: Any,
    total_ref: Any,
    x_ref: Any,
    weights_ref: Any,
    *rest: Any,
    k_blocks: int,
    product_dtype: Any,
) -> None:
    *scale_refs, out_ref, accumulator_ref = rest
    visit = pl.program_id(1)
    k_block = pl.program_id(2)

    @pl.when(visit < total_ref[0])
    def _visit() -> None:
        product = _product(x_ref, weights_ref, scale_refs, product_dtype)

        @pl.when(k_block == 0)
        def _start() -> None:
            accumulator_ref[...] = product

        @pl.when(k_block > 0)
        def _go_on() -> None:
            accumulator_ref[...] += product

        @pl.when(k_block == k_blocks - 1)
        def _store() -> None:
            group = group_ref[visit]
            row = block_ref[visit] * out_ref.shape[0] + jax.lax.broadcasted_iota(
                jnp.int32, out_ref.shape, 0
            )
            own = (row >= starts_ref[group]) & (row < ends_ref[group])
            out_ref[...] = jnp.where(own, accumulator_ref[...].astype(out_ref.dtype), out_ref[...])


def _product(x_ref: Any, weights_ref: Any, scale_refs: list[Any], product_dtype: Any) -> jax.Array:
    """One contraction block in fp32; with scales, step by step, as each step has its own."""
    if not scale_refs:
        # fp32 operands would be rounded to bf16 on the way into the matrix unit.
        precision = jax.lax.Precision.HIGHEST if x_ref.dtype == jnp.float32 else None
        return jax.lax.dot_general(
            x_ref[...], weights_ref[0], _MATMUL,
            precision=precision, preferred_element_type=jnp.float32,
        )  # fmt: skip
    x_scales_ref, weight_scales_ref = scale_refs
    steps = x_scales_ref.shape[2]
    step = x_ref.shape[1] // steps
    total = None
    for i in range(steps):
        columns = slice(i * step, (i + 1) * step)
        part = jax.lax.dot_general(
            x_ref[:, columns], weights_ref[0, columns, :], _MATMUL,
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        part = part.astype(product_dtype).astype(jnp.float32)
        part = part * x_scales_ref[0, :, i : i + 1] * weight_scales_ref[0, 0, i : i + 1, :]
        total = part if total is None else total + part
    assert total is not None
    return total
