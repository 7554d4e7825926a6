"""Top-k by repeated row maximum, for TPU: one launch over blocks of rows, no sort.

In VMEM, per step:

    scores   [block_rows, experts] fp32   x2   moves with the row block
    bias     [1, experts] fp32            x2   pinned
    picked   [block_rows, chosen] fp32    x2
    ids      [block_rows, chosen] int32   x2
    keys, columns, and what one pass compares  [block_rows, experts]  x4   temporaries

`tuning.vmem_needed` is that sum. Rows never meet, so what a last, partial block reads beyond the operand
ends in rows that are not stored.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from coldstart_kernels.moe_routing.reference import SMALLEST, selection_key
from coldstart_kernels.moe_routing.tuning import TuningParams


def choose_by_row_maximum(
    scores: jax.Array,  # [tokens, experts] fp32
    bias: jax.Array,  # [experts] fp32
    *,
    chosen: int,
    params: TuningParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """Unbiased scores and ids [tokens, chosen] of the largest keys."""
    tokens, experts = scores.shape
    rows = params.block_rows
    out_spec = pl.BlockSpec((rows, chosen), lambda r: (r, 0))
    picked, ids = pl.pallas_call(
        functools.partial(_body, chosen=chosen),
        name="moe_router_topk",
        grid=(pl.cdiv(tokens, rows),),
        in_specs=[
            pl.BlockSpec((rows, experts), lambda r: (r, 0)),
            pl.BlockSpec((1, experts), lambda r: (0, 0)),
        ],
        out_specs=[out_spec, out_spec],
        out_shape=[
            jax.ShapeDtypeStruct((tokens, chosen), jnp.float32),
            jax.ShapeDtypeStruct((tokens, chosen), jnp.int32),
        ],
        interpret=interpret,
    )(scores, bias.reshape(1, experts))
    return picked, ids


def _body(scores_ref: Any, bias_ref: Any, picked_ref: Any, ids_ref: Any, *, chosen: int) -> None:
    scores = scores_ref[...]
    keys = selection_key(scores, bias_ref[...])
    columns = jax.lax.broadcasted_iota(jnp.int32, keys.shape, 1)
    slots = jax.lax.broadcasted_iota(jnp.int32, picked_ref.shape, 1)

    def strike(slot: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        keys, picked, ids = carry
        largest = jnp.max(keys, axis=1, keepdims=True)
        first = jnp.min(jnp.where(keys == largest, columns, keys.shape[1]), axis=1, keepdims=True)
        here = columns == first
        # The score of one column: the others are masked, not multiplied by 0, as they may be NaN.
        value = jnp.sum(jnp.where(here, scores, 0.0), axis=1, keepdims=True)
        picked = jnp.where(slots == slot, value, picked)
        ids = jnp.where(slots == slot, first, ids)
        return jnp.where(here, SMALLEST, keys), picked, ids

    picked = jnp.zeros(picked_ref.shape, jnp.float32)
    ids = jnp.zeros(ids_ref.shape, jnp.int32)
    # A loop and not `chosen` copies of its body: the same time, and a quarter of the compile.
    _, picked, ids = jax.lax.fori_loop(0, chosen, strike, (keys, picked, ids))
    picked_ref[...] = picked
    ids_ref[...] = ids
