"""Multi-head latent attention in plain JAX: slow, short, fp32 throughout.

Takes the arguments that kernel.py takes, already validated by op.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from coldstart_kernels.mla.cache import PagedCache, page_size, read, stored_query

SMALLEST = float(jnp.finfo(jnp.float32).min)
"""Stands for minus infinity: the difference of two of them is 0 and not NaN."""


def attend_dense(
    q_fragment: jax.Array,  # [tokens, own heads, width]
    q_replicated: jax.Array,  # [tokens, heads, width], unread
    cache: jax.Array,  # [sequences, positions, width]
    limits: jax.Array,  # [tokens] int32
    *,
    scale: float,
    latent_width: int,
) -> tuple[jax.Array, jax.Array]:
    """Own heads over the first `limits` positions of each token's sequence."""
    del q_replicated
    tokens, heads, width = q_fragment.shape
    sequences, positions, _ = cache.shape
    q = q_fragment.reshape(sequences, tokens // sequences, heads, width)
    seen = jnp.arange(positions) < limits.reshape(sequences, -1, 1)
    # Unused rows of the cache may hold anything, NaN included, and 0 * NaN is NaN.
    used = jnp.arange(positions) < jnp.max(limits.reshape(sequences, -1), axis=1, keepdims=True)
    keys = jnp.where(used[..., None], cache, 0).astype(jnp.float32)
    scores = jnp.einsum("bqhw,bkw->bqhk", q.astype(jnp.float32), keys) * scale
    out, lse = _softmax_times(
        scores, seen[:, :, None, :], keys[..., :latent_width], "bqhk,bkl->bqhl"
    )
    return (
        out.reshape(tokens, heads, latent_width).astype(q_fragment.dtype),
        lse.reshape(tokens, heads),
    )


def attend_sparse(
    q_fragment: jax.Array,  # [tokens, own heads, width], unread
    q_replicated: jax.Array,  # [tokens, heads, width]
    gathered: jax.Array,  # [tokens, index list, width], rows that don't count are zero
    valid: jax.Array,  # [tokens, index list] bool
    *,
    scale: float,
    latent_width: int,
) -> tuple[jax.Array, jax.Array]:
    """All heads over the rows that the index list chose."""
    del q_fragment
    keys = gathered.astype(jnp.float32)
    scores = jnp.einsum("thw,tkw->thk", q_replicated.astype(jnp.float32), keys) * scale
    out, lse = _softmax_times(scores, valid[:, None, :], keys[..., :latent_width], "thk,tkl->thl")
    return out.astype(q_replicated.dtype), lse


def _softmax_times(
    scores: jax.Array, allowed: jax.Array, values: jax.Array, subscripts: str
) -> tuple[jax.Array, jax.Array]:
    masked = jnp.where(allowed, scores, SMALLEST)
    top = jnp.max(masked, axis=-1, keepdims=True)
    weights = jnp.where(allowed, jnp.exp(masked - top), 0)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    empty = total == 0
    out = jnp.einsum(subscripts, weights / jnp.where(empty, 1, total), values)
    lse = jnp.where(empty, SMALLEST, top + jnp.log(jnp.where(empty, 1, total)))
    return out, lse[..., 0]


def attend_paged(
    q: jax.Array,  # [tokens, heads, width]
    cache: PagedCache,
    sequence: jax.Array,  # [tokens] int32, -1 for padding
    limits: jax.Array,  # [tokens] int32
    indices: jax.Array | None,  # [tokens, index list] int32; None: all positions (dense)
    *,
    scale: float,
    latent_width: int,
    out_dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
    """The heads given over each token's positions, dequantized row by row."""
    if indices is None:
        positions = cache.page_table.shape[1] * page_size(cache.rows)
        indices = jnp.arange(positions, dtype=jnp.int32)[None]
    indices = jnp.broadcast_to(indices, (q.shape[0], indices.shape[1]))
    rows, inside = read(cache, sequence[:, None], indices)
    valid = inside & (indices < limits[:, None])
    keys = jnp.where(valid[..., None], rows, 0)
    q = stored_query(q, latent_width).astype(jnp.float32)
    scores = jnp.einsum("thw,tkw->thk", q, keys[..., : q.shape[-1]]) * scale
    out, lse = _softmax_times(scores, valid[:, None, :], keys[..., :latent_width], "thk,tkl->thl")
    return out.astype(out_dtype), lse
