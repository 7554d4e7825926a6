"""Multi-head latent attention over a paged cache, for TPU: two launches that share the running softmax.

Dense, grid (token block, page): a block of tokens of one sequence walks over that sequence's pages. The page table is
prefetched into SMEM and read by the index map, so Pallas' own pipeline fetches the next page meanwhile. Pages past the
block's largest limit repeat the last needed one (no copy) and are skipped.

Sparse, grid (token, key block): the chosen rows stay in HBM until the kernel copies them, two tiles a row (see
cache.py), into one half of a buffer while it works on the other:

    step n      start copies of n + 1 -> half (n+1)%2 | wait for n | widen, zero, attend | ...
    SMEM        row numbers of step n and of n + 1 (two views of one operand), how many rows of each step count

A step whose rows don't count copies nothing: a rank that holds 128 of 2048 chosen keys does a sixteenth of the work.
In a step with some, entries that don't count copy *some* row, spread over the cache so that no page is asked by all.
So nothing of size [tokens, list, width] exists: at 4096 tokens by 2048 keys the gathered rows would be 9.7 GB in bf16.
Row numbers and marks are two [tokens, list] int32 arrays, 67 MB there.

In VMEM, per step:

    q read      [block rows, width]          x2
    q unread    [1 token, its heads, width]  x2   an operand that the branch never touches, pinned at its first block
    rows        [page + page/4 | 2 * block_kv] tiles of 4 x 128   x2
    mask        [block rows, 1] or [1, block_kv] int32            x2
    out, lse    [block rows, latent], [block rows, 1]             x2
    top, total  [block rows, 1] fp32, accumulator [block rows, latent] fp32
    keys        [page | block_kv, 640] in the queries' type, twice; scores and weights, fp32

`paged_tuning.vmem_needed` is that sum.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels.mla import running
from coldstart_kernels.mla.cache import GROUP, LATENT, ROPE, PagedCache, lookup, page_size
from coldstart_kernels.mla.paged_tuning import PagedParams
from coldstart_kernels.mla.reference import SMALLEST
from coldstart_kernels.ragged import into_blocks, out_of_blocks, token_blocks

_SPREAD = 7919
"""A prime: neighbouring entries that don't count ask for rows this far apart."""


def attend_dense(
    q_fragment: jax.Array,  # [tokens, own heads, width]
    q_replicated: jax.Array,  # [tokens, heads, width], unread
    cache: PagedCache,
    limits: jax.Array,  # [tokens] int32, 0 for padding
    *,
    scale: float,
    latent_width: int,
    out_dtype: jnp.dtype,
    params: PagedParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """Own heads over the first `limits` positions of each token's sequence."""
    tokens, heads, width = q_fragment.shape
    page = page_size(cache.rows)
    pages = cache.page_table.shape[1]
    blocks = token_blocks(cache.cu_q_lens, tokens, params.block_tokens)
    count, rows = blocks.tokens.shape[0], params.block_tokens * heads
    q = into_blocks(q_fragment, blocks).reshape(count, rows, width)
    block_limits = into_blocks(limits, blocks)  # places without a token see nothing
    last_page = jnp.clip((jnp.max(block_limits, axis=1) - 1) // page, -1, pages - 1)
    row_limits = jnp.repeat(block_limits, heads, axis=1)[..., None]

    def page_of(block: Any, k: Any, sequence: Any, last: Any, table: Any) -> Any:
        entry = sequence[block] * pages + jnp.clip(k, 0, jnp.maximum(last[block], 0))
        return (jnp.clip(table[entry], 0, cache.rows.shape[0] - 1), 0, 0, 0)

    def pinned(block: Any, k: Any, *_: Any) -> Any:
        return (block, 0, 0)

    out, lse = pl.pallas_call(
        functools.partial(
            _dense_body, scale=scale, pages=pages, held=cache.rows.shape[0], page=page
        ),
        name="mla_dense_paged",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(count, pages),
            in_specs=[
                pl.BlockSpec((1, rows, width), pinned),
                _unread(q_replicated),
                pl.BlockSpec((1, *cache.rows.shape[1:]), page_of),
                pl.BlockSpec((1, rows, 1), pinned),
                pl.BlockSpec((1, 1), lambda *_: (0, 0), memory_space=pltpu.SMEM),
            ],
            out_specs=[
                pl.BlockSpec((1, rows, latent_width), pinned),
                pl.BlockSpec((1, rows, 1), pinned),
            ],
            scratch_shapes=running.scratch(rows, latent_width),
        ),
        out_shape=[
            jax.ShapeDtypeStruct((count, rows, latent_width), out_dtype),
            jax.ShapeDtypeStruct((count, rows, 1), jnp.float32),
        ],
        interpret=interpret,
    )(
        blocks.sequence, last_page, cache.page_table.reshape(-1),
        q, q_replicated, cache.rows, row_limits, cache.scale.reshape(1, 1),
    )  # fmt: skip
    per_token = (count, params.block_tokens, heads)
    return (
        out_of_blocks(out.reshape(*per_token, latent_width), blocks),
        out_of_blocks(lse.reshape(per_token), blocks, SMALLEST),
    )


def attend_sparse(
    q_fragment: jax.Array,  # [tokens, own heads, width], unread
    q_replicated: jax.Array,  # [tokens, heads, width]
    cache: PagedCache,
    sequence: jax.Array,  # [tokens] int32, -1 for padding
    limits: jax.Array,  # [tokens] int32, 0 for padding
    indices: jax.Array,  # [tokens, index list] int32
    *,
    scale: float,
    latent_width: int,
    out_dtype: jnp.dtype,
    params: PagedParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """All heads over the positions that the index list chose."""
    tokens, heads, width = q_replicated.shape
    block_kv = params.block_kv
    missing = -indices.shape[1] % block_kv
    indices = jnp.pad(indices, ((0, 0), (0, missing)), constant_values=-1)
    steps = indices.shape[1] // block_kv
    row_ids, marks, counts = _requests(cache, sequence, limits, indices, steps)

    def now(t: Any, k: Any, *_: Any) -> Any:
        return (t, 0, k)

    def after(t: Any, k: Any, *_: Any) -> Any:
        step = jnp.minimum(t * steps + k + 1, tokens * steps - 1)
        return (jax.lax.div(step, steps), 0, jax.lax.rem(step, steps))

    def whole(t: Any, k: Any, *_: Any) -> Any:
        return (t, 0, 0)

    ids_block = (1, 1, block_kv)
    out, lse = pl.pallas_call(
        functools.partial(_sparse_body, scale=scale, page=page_size(cache.rows), block_kv=block_kv),
        name="mla_sparse_paged",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(tokens, steps),
            in_specs=[
                _unread(q_fragment),
                pl.BlockSpec((1, heads, width), whole),
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec(ids_block, now, memory_space=pltpu.SMEM),
                pl.BlockSpec(ids_block, after, memory_space=pltpu.SMEM),
                pl.BlockSpec(ids_block, now),
                pl.BlockSpec((1, 1), lambda *_: (0, 0), memory_space=pltpu.SMEM),
            ],
            out_specs=[
                pl.BlockSpec((1, heads, latent_width), whole),
                pl.BlockSpec((1, heads, 1), whole),
            ],
            scratch_shapes=[
                *running.scratch(heads, latent_width),
                pltpu.VMEM((2, block_kv, GROUP, ROPE), cache.rows.dtype),
                pltpu.VMEM((2, block_kv, GROUP, ROPE), cache.rows.dtype),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((tokens, heads, latent_width), out_dtype),
            jax.ShapeDtypeStruct((tokens, heads, 1), jnp.float32),
        ],
        interpret=interpret,
    )(
        counts, q_fragment, q_replicated, cache.rows,
        row_ids, row_ids, marks, cache.scale.reshape(1, 1),
    )  # fmt: skip
    return out, lse[..., 0]


def _unread(q: jax.Array) -> pl.BlockSpec:
    """One token of the operand that isn't read, whatever the step."""
    return pl.BlockSpec((1, *q.shape[1:]), lambda *_: (0, 0, 0))


def _requests(
    cache: PagedCache, sequence: jax.Array, limits: jax.Array, indices: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What the sparse kernel is told of the index lists.

    Returns:
        row numbers page * P + slot [tokens, 1, list], always of a row that exists; marks [tokens, 1, list]: slot % 4,
        or -1 for entries that don't count; how many count per step [tokens * steps].
    """
    tokens, length = indices.shape
    page = page_size(cache.rows)
    found, inside = lookup(cache, sequence[:, None], indices)
    valid = inside & (indices < limits[:, None])
    spread = jnp.arange(tokens * length, dtype=jnp.uint32).reshape(tokens, length) * _SPREAD
    anywhere = (spread % (cache.rows.shape[0] * page)).astype(jnp.int32)
    row_ids = jnp.where(valid, found * page + indices % page, anywhere)
    marks = jnp.where(valid, row_ids % GROUP, -1)
    counts = valid.reshape(tokens * steps, length // steps).sum(1, dtype=jnp.int32)
    return row_ids[:, None], marks[:, None], counts


def _dense_body(
    sequence_ref: Any,
    last_ref: Any,
    table_ref: Any,
    q_ref: Any,
    unread_ref: Any,
    rows_ref: Any,
    limits_ref: Any,
    scale_ref: Any,
    out_ref: Any,
    lse_ref: Any,
    top_ref: Any,
    total_ref: Any,
    accumulator_ref: Any,
    *,
    scale: float,
    pages: int,
    held: int,
    page: int,
) -> None:
    block, k = pl.program_id(0), pl.program_id(1)
    running_refs = (top_ref, total_ref, accumulator_ref)
    pl.when(k == 0)(lambda: running.start(*running_refs))
    entry = table_ref[sequence_ref[block] * pages + k]

    @pl.when((k <= last_ref[block]) & (entry >= 0) & (entry < held))
    def _attend() -> None:
        q = q_ref[0]
        limits = limits_ref[0]  # [rows, 1]
        tiles = rows_ref[0].astype(q.dtype)
        latents = tiles[:page].reshape(page, LATENT)
        keys = jnp.concatenate([latents, tiles[page:].reshape(page, ROPE)], axis=1)
        # Slots that were never written may hold NaN, and 0 * NaN is NaN.
        ids = k * page + jax.lax.broadcasted_iota(jnp.int32, (page, 1), 0)
        keys = jnp.where(ids < jnp.max(limits), keys, jnp.zeros_like(keys))
        columns = k * page + jax.lax.broadcasted_iota(jnp.int32, (q.shape[0], page), 1)
        running.add(
            q, keys[:, : q.shape[1]], columns < limits, scale * scale_ref[0, 0], *running_refs
        )

    @pl.when(k == pl.num_programs(1) - 1)
    def _finish() -> None:
        running.finish(*running_refs, out_ref, lse_ref, scale_ref[0, 0])


def _sparse_body(
    counts_ref: Any,
    unread_ref: Any,
    q_ref: Any,
    rows_ref: Any,
    ids_ref: Any,
    next_ids_ref: Any,
    marks_ref: Any,
    scale_ref: Any,
    out_ref: Any,
    lse_ref: Any,
    top_ref: Any,
    total_ref: Any,
    accumulator_ref: Any,
    latents_ref: Any,
    ropes_ref: Any,
    semaphores: Any,
    *,
    scale: float,
    page: int,
    block_kv: int,
) -> None:
    steps = pl.num_programs(1)
    step = pl.program_id(0) * steps + pl.program_id(1)
    count = counts_ref[step]
    half = jax.lax.rem(step, 2)
    running_refs = (top_ref, total_ref, accumulator_ref)

    def fetch(ids: Any, into: Any) -> None:
        def one(i: Any, carry: Any) -> Any:
            row = ids[0, 0, i]
            number, slot = row >> page.bit_length() - 1, row & page - 1
            rope = page + (slot >> 2)
            semaphore = semaphores.at[into]
            pltpu.make_async_copy(
                rows_ref.at[number, slot], latents_ref.at[into, i], semaphore
            ).start()
            pltpu.make_async_copy(
                rows_ref.at[number, rope], ropes_ref.at[into, i], semaphore
            ).start()
            return carry

        jax.lax.fori_loop(0, block_kv, one, 0)

    following = jnp.minimum(step + 1, pl.num_programs(0) * steps - 1)
    pl.when((step == 0) & (count > 0))(lambda: fetch(ids_ref, 0))
    pl.when((following > step) & (counts_ref[following] > 0))(lambda: fetch(next_ids_ref, 1 - half))
    pl.when(pl.program_id(1) == 0)(lambda: running.start(*running_refs))

    @pl.when(count > 0)
    def _attend() -> None:
        for landed in (latents_ref, ropes_ref):  # a whole half each: all copies of this step
            pltpu.make_async_copy(landed.at[half], landed.at[half], semaphores.at[half]).wait()
        q = q_ref[0]
        marks = marks_ref[0]  # [1, block_kv]
        upright = jnp.transpose(jnp.broadcast_to(marks, (8, block_kv)))[:, :1]
        latents = latents_ref[half].astype(q.dtype).reshape(block_kv, LATENT)
        ropes = ropes_ref[half].astype(q.dtype)
        rope = ropes[:, 0, :]
        for row in range(1, GROUP):
            rope = jnp.where(upright == row, ropes[:, row, :], rope)
        keys = jnp.concatenate([latents, rope], axis=1)
        # What doesn't count may be NaN, and 0 * NaN is NaN.
        keys = jnp.where(upright >= 0, keys, jnp.zeros_like(keys))
        allowed = jnp.broadcast_to(marks >= 0, (q.shape[0], block_kv))
        running.add(q, keys[:, : q.shape[1]], allowed, scale * scale_ref[0, 0], *running_refs)

    @pl.when(pl.program_id(1) == steps - 1)
    def _finish() -> None:
        running.finish(*running_refs, out_ref, lse_ref, scale_ref[0, 0])
