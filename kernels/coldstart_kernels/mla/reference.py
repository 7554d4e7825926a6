"""Multi-head latent attention in plain JAX: slow, short, fp32 throughout.

Takes the arguments that kernel.py takes, already validated by op.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

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
