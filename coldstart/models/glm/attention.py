"""Latent attention of one layer under decode context parallelism: choose positions, attend to the own ones, merge.

Each device of a head group attends with all heads of the group over the chosen positions that it caches. Base order:
partial latents are merged by their log-sum-exp and scattered by heads, go through W_UV and o_proj of the own heads, and
are summed over all devices. With `replicate_o_proj` they go through W_UV and o_proj of the whole group at once, and the
last sum, which merges both, is the only exchange of rows.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from coldstart.models.glm import ops, select
from coldstart.models.glm.cache import Pool
from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.exchange import Exchange
from coldstart.models.glm.fp8 import product
from coldstart.models.glm.layout import Layout
from coldstart.models.glm.ops import Implementation
from coldstart.models.glm.pieces import layer_norm, rms_norm, rotate_halves, rotate_pairs
from coldstart.models.glm.weights import Params


class Batch(NamedTuple):
    """What all layers of a step share. A token at position -1 is padding: it sees and writes nothing."""

    positions: jax.Array  # [tokens] int32
    requests: jax.Array  # [tokens] int32: rows of `rows`
    rows: jax.Array  # [requests, places] int32: the pool's row of each own place of a sequence
    places: jax.Array  # [places] int32: the position that a place is for
    targets: (
        jax.Array
    )  # [tokens] int32: the row to write, -1 where another device caches the position


def batch_of(
    positions: jax.Array,  # [tokens] int32
    requests: jax.Array,  # [tokens] int32
    page_table: jax.Array,  # [requests, pages] int32
    layout: Layout,
    rank: jax.Array,
) -> Batch:
    """The facts of a step, from its arguments and this device's place in its group."""
    page = layout.page
    rows = page_table[:, :, None] * page + jnp.arange(page, dtype=jnp.int32)
    rows = rows.reshape(page_table.shape[0], -1)
    places = layout.position(rank, jnp.arange(rows.shape[1], dtype=jnp.int32))
    mine = (positions >= 0) & (layout.owner(positions) == rank)
    targets = rows[requests, layout.local(jnp.maximum(positions, 0))]
    return Batch(positions, requests, rows, places, jnp.where(mine, targets, -1))


def _cached_row(x: jax.Array, positions: jax.Array, params: Params, config: GlmConfig) -> jax.Array:
    """What a token leaves in the cache [tokens, width]: latent, rope key."""
    c = config
    made = product(x, params["kv_a"])
    latent = rms_norm(made[:, : c.latent], params["kv_norm"], c.norm_epsilon)
    rope = rotate_pairs(made[:, c.latent :], positions, c.rope_theta)
    return jnp.concatenate([latent, rope], axis=-1)


def _queries(q_c: jax.Array, positions: jax.Array, params: Params, config: GlmConfig) -> jax.Array:
    """Absorbed queries [tokens, heads, width] of as many heads as the weights here have."""
    c = config
    q = product(q_c, params["q_b"]).reshape(q_c.shape[0], -1, c.head)
    latent = jnp.einsum(
        "thn,hnl->thl", q[..., : c.nope], params["w_uk"], preferred_element_type=jnp.float32
    )
    rope = rotate_pairs(q[..., c.nope :], positions, c.rope_theta)
    return jnp.concatenate([latent.astype(q.dtype), rope], axis=-1)


def _choose(
    x: jax.Array,
    q_c: jax.Array,
    pool: Pool,
    batch: Batch,
    params: Params,
    config: GlmConfig,
    exchange: Exchange,
) -> tuple[jax.Array, Pool]:
    """Rows of this device among the best `index_top` positions [tokens, list], -1 behind them.

    Each device scores its own places and keeps its best; only these scores travel, and from all of them each device
    sees which of its own are among the best of all.
    """
    c = config
    keys = layer_norm(
        product(x, params["index_k"]), params["index_norm"], params["index_norm_bias"],
        c.norm_epsilon,
    )  # fmt: skip
    keys = rotate_halves(keys, batch.positions, c.rope_theta, c.index_rope)
    pool = pool.with_index_keys(batch.targets, keys)

    q = product(q_c, params["index_q"]).reshape(x.shape[0], c.index_heads, c.index_width)
    q = rotate_halves(q, batch.positions, c.rope_theta, c.index_rope)
    weight = jnp.dot(x, params["index_weight"], preferred_element_type=jnp.float32)
    weight *= c.index_heads**-0.5 * c.index_width**-0.5

    count = min(c.index_top, batch.rows.shape[1])

    def own_best(
        q: jax.Array, weight: jax.Array, positions: jax.Array, requests: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        rows = batch.rows[requests]
        scores = ops.index_scores(q, weight, pool, rows)
        scores = jnp.where(batch.places <= positions[:, None], scores, -jnp.inf)
        own = select.places(select.best(scores, count), count)
        top = jnp.take_along_axis(scores, own, axis=1)
        return top, jnp.where(top > -jnp.inf, jnp.take_along_axis(rows, own, axis=1), -1)

    per_place = c.index_heads * 4 + c.index_width * 4
    top, rows = ops.by_blocks(
        own_best, per_place * batch.rows.shape[1], q, weight, batch.positions, batch.requests
    )
    every = exchange.gather_scores(top)
    winners = select.best(every, min(c.index_top, every.shape[1]))
    own = jax.lax.dynamic_slice_in_dim(winners, exchange.dcp_rank() * count, count, axis=1)
    kept = select.places(own & (rows >= 0), count)
    chosen = jnp.where(kept >= 0, jnp.take_along_axis(rows, jnp.maximum(kept, 0), axis=1), -1)
    return chosen, pool


def _merge_weights(lse: jax.Array, exchange: Exchange) -> jax.Array:
    """What this device's partial latents count [tokens, heads] fp32; 0 where it has none of the keys."""
    every = exchange.gather_lse(lse)
    rank = exchange.dcp_rank()
    # A device without keys has the smallest finite number, so no difference is NaN; its latents are 0.
    weights = jax.nn.softmax(every, axis=0)
    return jax.lax.dynamic_index_in_dim(weights, rank, axis=0, keepdims=False)


def _values_out(latents: jax.Array, params: Params, config: GlmConfig) -> jax.Array:
    """Latents of as many heads as the weights here have, through W_UV and o_proj: a part of a sum."""
    values = jnp.einsum("thl,hlv->thv", latents, params["w_uv"], preferred_element_type=jnp.float32)
    values = values.astype(latents.dtype)
    values = values.reshape(values.shape[0], -1)
    return product(values, params["o_proj"], rounded=config.round_o_proj_input)


def attention(
    x: jax.Array,  # [tokens, hidden], normed
    pool: Pool,
    batch: Batch,
    chosen: jax.Array | None,  # [tokens, list] int32 of the nearest earlier layer with an indexer
    params: Params,
    config: GlmConfig,
    layout: Layout,
    exchange: Exchange,
    implementation: Implementation,
) -> tuple[jax.Array, Pool, jax.Array]:
    """One layer's attention, the pool with this step's rows, and what was chosen."""
    c = config
    q_c = rms_norm(product(x, params["q_a"]), params["q_norm"], c.norm_epsilon)
    q = _queries(q_c, batch.positions, params, c)
    own_heads = layout.own_heads(c)
    if layout.replicate_q:
        q_fragment, q_group = exchange.fragment(q, own_heads), q
    else:
        q_fragment, q_group = q, exchange.gather_heads(q)

    row = _cached_row(x, batch.positions, params, c)
    pool = pool.with_rows(batch.targets, row)
    if "index_q" in params:
        chosen, pool = _choose(x, q_c, pool, batch, params, c, exchange)
    assert chosen is not None, "the first layer has an indexer"
    partial, lse = ops.sparse_attention(
        q_fragment, q_group, pool, chosen,
        latent=c.latent, scale=c.scale, implementation=implementation,
    )  # fmt: skip

    if layout.dcp > 1:
        weighed = partial * _merge_weights(lse, exchange)[..., None]
        partial = weighed.astype(partial.dtype)
        if not layout.replicate_o_proj:
            partial = exchange.scatter_heads(partial)
    return exchange.sum_all(_values_out(partial, params, c)), pool, chosen
