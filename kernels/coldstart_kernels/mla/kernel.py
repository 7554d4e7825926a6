"""Multi-head latent attention for TPU: one flash-style launch, rows of queries over blocks of keys.

Grid (group, row block, key block), key blocks innermost. A group is what shares one list of keys:
a sequence in the dense branch (rows = its tokens times own heads), a token in the sparse branch
(rows = all heads, keys = its gathered rows). In VMEM, per step:

    q read      [block_rows, width]      x2   moves with the row block
    q unread    [its heads, width]       x2   an operand that the branch never touches
    keys        [block_kv, width]        x2   moves with the key block; its first columns are the values
    mask        [block_rows, 1] or [1, block_kv] int32  x2
    out, lse    [block_rows, latent], [block_rows, 1]   x2   written at the last key block
    top, total  [block_rows, 1] fp32, accumulator [block_rows, latent] fp32

`tuning.vmem_needed` is that sum. Which query is read is decided in Python, while tracing: the branch that
is not taken leaves no trace in the body, so the unread operand has no use there. It is an operand all
the same, as where one op serves both branches.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from coldstart_kernels.mla import running
from coldstart_kernels.mla.tuning import TuningParams


def attend_dense(
    q_fragment: jax.Array,  # [tokens, own heads, width]
    q_replicated: jax.Array,  # [tokens, heads, width], unread
    cache: jax.Array,  # [sequences, positions, width]
    limits: jax.Array,  # [tokens] int32
    *,
    scale: float,
    latent_width: int,
    params: TuningParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """Own heads over the first `limits` positions of each token's sequence."""
    tokens, heads, width = q_fragment.shape
    sequences = cache.shape[0]
    rows = tokens // sequences * heads
    q = _pad_axis(q_fragment.reshape(sequences, rows, width), 1, params.block_rows)
    keys = _pad_axis(cache, 1, params.block_kv)
    # Padding rows get limit 0: they see nothing and come out as zero.
    row_limits = jnp.repeat(limits.reshape(sequences, -1), heads, axis=1)[..., None]
    row_limits = _pad_axis(row_limits, 1, params.block_rows)
    out, lse = _launch(
        (q, q_replicated), keys, row_limits,
        branch="dense", scale=scale, latent_width=latent_width, params=params, interpret=interpret,
    )  # fmt: skip
    return (
        out[:, :rows].reshape(tokens, heads, latent_width),
        lse[:, :rows].reshape(tokens, heads),
    )


def attend_sparse(
    q_fragment: jax.Array,  # [tokens, own heads, width], unread
    q_replicated: jax.Array,  # [tokens, heads, width]
    gathered: jax.Array,  # [tokens, index list, width], rows that don't count are zero
    valid: jax.Array,  # [tokens, index list] bool
    *,
    scale: float,
    latent_width: int,
    params: TuningParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """All heads over the rows that the index list chose."""
    heads = q_replicated.shape[1]
    q = _pad_axis(q_replicated, 1, params.block_rows)
    keys = _pad_axis(gathered, 1, params.block_kv)
    mask = _pad_axis(valid.astype(jnp.int32)[:, None, :], 2, params.block_kv)
    out, lse = _launch(
        (q_fragment, q), keys, mask,
        branch="sparse", scale=scale, latent_width=latent_width, params=params, interpret=interpret,
    )  # fmt: skip
    return out[:, :heads], lse[:, :heads, 0]


def _pad_axis(array: jax.Array, axis: int, multiple: int) -> jax.Array:
    missing = -array.shape[axis] % multiple
    if not missing:
        return array
    return jnp.pad(array, [(0, missing if a == axis else 0) for a in range(array.ndim)])


def _launch(
    queries: tuple[jax.Array, jax.Array],
    keys: jax.Array,
    mask: jax.Array,
    *,
    branch: str,
    scale: float,
    latent_width: int,
    params: TuningParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    read = 0 if branch == "dense" else 1
    groups, rows, width = queries[read].shape
    block_rows, block_kv = params.block_rows, params.block_kv
    read_spec = pl.BlockSpec((1, block_rows, width), lambda g, r, k: (g, r, 0))
    # The unread operand is pinned at its first block: it costs one copy, not one per step.
    unread_spec = pl.BlockSpec((1, *queries[1 - read].shape[1:]), lambda g, r, k: (0, 0, 0))
    if branch == "dense":
        mask_spec = pl.BlockSpec((1, block_rows, 1), lambda g, r, k: (g, r, 0))
    else:
        mask_spec = pl.BlockSpec((1, 1, block_kv), lambda g, r, k: (g, 0, k))
    return pl.pallas_call(
        functools.partial(_body, branch=branch, scale=scale, block_kv=block_kv),
        name=f"mla_{branch}",
        grid=(groups, rows // block_rows, keys.shape[1] // block_kv),
        in_specs=[
            read_spec if read == 0 else unread_spec,
            read_spec if read == 1 else unread_spec,
            pl.BlockSpec((1, block_kv, width), lambda g, r, k: (g, k, 0)),
            mask_spec,
        ],
        out_specs=[
            pl.BlockSpec((1, block_rows, latent_width), lambda g, r, k: (g, r, 0)),
            pl.BlockSpec((1, block_rows, 1), lambda g, r, k: (g, r, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((groups, rows, latent_width), queries[read].dtype),
            jax.ShapeDtypeStruct((groups, rows, 1), jnp.float32),
        ],
        scratch_shapes=running.scratch(block_rows, latent_width),
        interpret=interpret,
    )(*queries, keys, mask)


def _body(
    q_fragment_ref: Any,
    q_replicated_ref: Any,
    keys_ref: Any,
    mask_ref: Any,
    out_ref: Any,
    lse_ref: Any,
    top_ref: Any,
    total_ref: Any,
    accumulator_ref: Any,
    *,
    branch: str,
    scale: float,
    block_kv: int,
) -> None:
    key_block = pl.program_id(2)

    running_refs = (top_ref, total_ref, accumulator_ref)
    pl.when(key_block == 0)(lambda: running.start(*running_refs))

    q = (q_fragment_ref if branch == "dense" else q_replicated_ref)[0]
    keys = keys_ref[0]
    if branch == "dense":
        limits = mask_ref[0]  # [block_rows, 1]
        first = key_block * block_kv
        # Unused rows of the cache may hold anything, NaN included, and 0 * NaN is NaN.
        key_ids = first + jax.lax.broadcasted_iota(jnp.int32, (block_kv, 1), 0)
        keys = jnp.where(key_ids < jnp.max(limits), keys, jnp.zeros_like(keys))
        columns = first + jax.lax.broadcasted_iota(jnp.int32, (q.shape[0], block_kv), 1)
        allowed = columns < limits
    else:
        allowed = jnp.broadcast_to(mask_ref[0] != 0, (q.shape[0], block_kv))

    running.add(q, keys, allowed, scale, *running_refs)

    @pl.when(key_block == pl.num_programs(2) - 1)
    def _finish() -> None:
        running.finish(*running_refs, out_ref, lse_ref)
