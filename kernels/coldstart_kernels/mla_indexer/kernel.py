"""Index scores for TPU: blocks of tokens of one sequence against that sequence's pages of FP8 keys.

Grid (token block, page). The page table is prefetched into SMEM for the index map; pages past the block's largest limit
repeat the last needed one (no copy) and are written as minus infinity. FP8 goes into the matrix unit as it is:
products of two FP8 numbers are exact in fp32, sums are fp32. In VMEM, per step:

    q           [block * heads, width] FP8      x2
    keys        [page, width] FP8               x2   moves with the page
    weights     [block * heads, 1] fp32         x2
    limits      [block, 1] int32                x2
    scales      [1, page] fp32                  x2
    scores      [block, page] fp32              x2   written at every step
    products    [block * heads, page] fp32, twice: before and after the weights

`tuning.vmem_needed` is that sum. There is no reduction over keys, so what an unwritten slot holds (NaN
included) stays in its own column, which the mask replaces.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels.mla_indexer.cache import IndexCache, scales

_CONTRACT_LAST = (((1,), (1,)), ((), ()))


def score(
    q: jax.Array,  # [blocks, block, heads, width] float8_e4m3fn
    weights: jax.Array,  # [blocks, block, heads] fp32
    limits: jax.Array,  # [blocks, block] int32
    sequence: jax.Array,  # [blocks] int32
    cache: IndexCache,
    *,
    interpret: Any,
) -> jax.Array:
    """scale(s) * sum over heads of weight * max(0, q . key(s)) [blocks, block, positions], -inf where not seen."""
    count, block, heads, width = q.shape
    held, page, _ = cache.keys.shape
    pages = cache.page_table.shape[1]
    last_page = jnp.clip((jnp.max(limits, axis=1) - 1) // page, -1, pages - 1)

    def page_of(b: Any, k: Any, sequence: Any, last: Any, table: Any) -> Any:
        entry = sequence[b] * pages + jnp.clip(k, 0, jnp.maximum(last[b], 0))
        return (jnp.clip(table[entry], 0, held - 1), 0, 0)

    def pinned(b: Any, k: Any, *_: Any) -> Any:
        return (b, 0, 0)

    return pl.pallas_call(
        functools.partial(_body, heads=heads, pages=pages, held=held),
        name="mla_index_scores",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(count, pages),
            in_specs=[
                pl.BlockSpec((1, block * heads, width), pinned),
                pl.BlockSpec((1, page, width), page_of),
                pl.BlockSpec((1, block * heads, 1), pinned),
                pl.BlockSpec((1, block, 1), pinned),
                pl.BlockSpec((1, 1, page), lambda b, k, sequence, *_: (sequence[b], 0, k)),
            ],
            out_specs=pl.BlockSpec((1, block, page), lambda b, k, *_: (b, 0, k)),
        ),
        out_shape=jax.ShapeDtypeStruct((count, block, pages * page), jnp.float32),
        interpret=interpret,
    )(
        sequence, last_page, cache.page_table.reshape(-1),
        q.reshape(count, block * heads, width), cache.keys,
        weights.reshape(count, block * heads, 1), limits[..., None], scales(cache)[:, None],
    )  # fmt: skip


def _body(
    sequence_ref: Any,
    last_ref: Any,
    table_ref: Any,
    q_ref: Any,
    keys_ref: Any,
    weights_ref: Any,
    limits_ref: Any,
    scales_ref: Any,
    out_ref: Any,
    *,
    heads: int,
    pages: int,
    held: int,
) -> None:
    b, k = pl.program_id(0), pl.program_id(1)
    block, page = out_ref.shape[1:]
    entry = table_ref[sequence_ref[b] * pages + k]
    seen = (k <= last_ref[b]) & (entry >= 0) & (entry < held)

    @pl.when(seen)
    def _score() -> None:
        dots = jax.lax.dot_general(
            q_ref[0], keys_ref[0], _CONTRACT_LAST, preferred_element_type=jnp.float32
        )
        products = jnp.maximum(dots, 0.0) * weights_ref[0]
        summed = jnp.sum(products.reshape(block, heads, page), axis=1)
        columns = k * page + jax.lax.broadcasted_iota(jnp.int32, (block, page), 1)
        allowed = columns < limits_ref[0]
        out_ref[0] = jnp.where(allowed, summed * scales_ref[0], -jnp.inf)

    @pl.when(jnp.logical_not(seen))
    def _nothing() -> None:
        out_ref[0] = jnp.full((block, page), -jnp.inf, jnp.float32)
