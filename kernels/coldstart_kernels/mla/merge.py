"""Put attention over disjoint keys together by the log of each part's denominator.

Each rank of a context-parallel group attends to the keys it holds and has a latent and its log-sum-exp. Only the latter
are gathered; a rank then weighs its own latents and the group sums them (`psum_scatter` by heads, or `psum`). A
rank without keys weighs exactly 0, whatever its latents hold, and where no rank has keys all weights are 0. No
difference of two infinities is ever formed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from coldstart_kernels.mla.reference import SMALLEST


def merge_weights(lse: jax.Array) -> jax.Array:
    """The weight of each rank's part [ranks, ...] fp32: a softmax over ranks.

    Args:
        lse: log-sum-exp of each part [ranks, ...] fp32; the smallest finite fp32 or minus infinity: no keys.
    """
    empty = ~(lse > SMALLEST)
    # NaN isn't "no keys": it must show in the result.
    empty = empty & ~jnp.isnan(lse)
    raw = jnp.where(empty, SMALLEST, lse)
    weights = jnp.where(empty, 0.0, jnp.exp(raw - jnp.max(raw, axis=0, keepdims=True)))
    total = jnp.sum(weights, axis=0, keepdims=True)
    return weights / jnp.where(total == 0, 1.0, total)


def merged_lse(lse: jax.Array) -> jax.Array:
    """The log-sum-exp over all ranks' keys [...] fp32; the smallest finite fp32 where no rank has any."""
    raw = jnp.where(lse == -jnp.inf, SMALLEST, lse)
    top = jnp.max(raw, axis=0)
    empty = top == SMALLEST
    total = jnp.sum(jnp.where(raw == SMALLEST, 0.0, jnp.exp(raw - top)), axis=0)
    return jnp.where(empty, SMALLEST, top + jnp.log(jnp.where(empty, 1.0, total)))


def weighted(latent: jax.Array, weights: jax.Array) -> jax.Array:
    """A rank's latents [..., latent] times its own weights [...], in fp32; exactly 0 where the weight is."""
    weights = weights[..., None]
    return jnp.where(weights == 0, 0.0, latent.astype(jnp.float32) * weights)


def merge(latents: jax.Array, lse: jax.Array) -> tuple[jax.Array, jax.Array]:
    """All of it in one place: latents [ranks, ..., latent], lse [ranks, ...] to the whole's, in fp32."""
    return weighted(latents, merge_weights(lse)).sum(0), merged_lse(lse)
