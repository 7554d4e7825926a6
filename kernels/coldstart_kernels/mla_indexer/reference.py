"""Index scores in plain JAX: slow, short, fp32 throughout. Takes what kernel.py takes, validated by op.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from coldstart_kernels.mla_indexer.cache import IndexCache, scales


def score(
    q: jax.Array,  # [blocks, block, heads, width] float8_e4m3fn
    weights: jax.Array,  # [blocks, block, heads] fp32
    limits: jax.Array,  # [blocks, block] int32
    sequence: jax.Array,  # [blocks] int32
    cache: IndexCache,
) -> jax.Array:
    """scale(s) * sum over heads of weight * max(0, q . key(s)) [blocks, block, positions], -inf where not seen."""
    page = cache.keys.shape[1]
    table = cache.page_table[sequence]
    there = (table >= 0) & (table < cache.keys.shape[0])
    keys = cache.keys[jnp.where(there, table, 0)]
    keys = keys.reshape(table.shape[0], -1, keys.shape[-1]).astype(jnp.float32)
    dots = jnp.einsum("bthw,bpw->bthp", q.astype(jnp.float32), keys)
    summed = jnp.einsum("bthp,bth->btp", jnp.maximum(dots, 0), weights)
    positions = jnp.arange(keys.shape[1], dtype=jnp.int32)
    seen = (positions < limits[..., None]) & jnp.repeat(there, page, axis=1)[:, None]
    return jnp.where(seen, summed * scales(cache)[sequence][:, None], -jnp.inf)
