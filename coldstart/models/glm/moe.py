"""Routed experts, a share of them on each device, and the shared one, split over all devices.

Every device has all tokens, so nothing is dispatched: each takes the rows that chose its experts, in order of expert,
and one sum over all devices joins routed and shared parts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from coldstart.models.glm import ops
from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.exchange import Exchange
from coldstart.models.glm.pieces import gated_mlp
from coldstart.models.glm.weights import Params


def route(x: jax.Array, params: Params, config: GlmConfig) -> tuple[jax.Array, jax.Array]:
    """The chosen experts [tokens, k] int32 and their weights [tokens, k] fp32.

    In fp32: sigmoid scores; the correction takes part in choosing only; chosen scores are made to sum to
    `routed_scale`.
    """
    logits = jnp.dot(
        x.astype(jnp.float32),
        params["router"].astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    scores = jax.nn.sigmoid(logits)
    _, chosen = jax.lax.top_k(scores + params["correction"], config.experts_per_token)
    picked = jnp.take_along_axis(scores, chosen, axis=1)
    return chosen, picked / jnp.sum(picked, axis=1, keepdims=True) * config.routed_scale


def experts(
    x: jax.Array, chosen: jax.Array, weights: jax.Array, params: Params, rank: jax.Array, own: int
) -> jax.Array:
    """This device's part of the routed sum [tokens, hidden]; `rank` is its place among all devices."""
    tokens, k = chosen.shape
    local = chosen.reshape(-1) - rank * own
    mine = (local >= 0) & (local < own)
    expert = jnp.where(mine, local, own)  # rows of others go last
    order = jnp.argsort(expert, stable=True)
    sizes = jnp.sum(expert[:, None] == jnp.arange(own, dtype=jnp.int32), axis=0, dtype=jnp.int32)
    rows = x[order // k]
    gate = ops.grouped_product(rows, params["expert_gate"], sizes)
    up = ops.grouped_product(rows, params["expert_up"], sizes)
    made = ops.grouped_product(jax.nn.silu(gate) * up, params["expert_down"], sizes)
    # What stands in rows of others is masked and not multiplied by 0: it may be NaN.
    weighed = jnp.where(mine[order][:, None], made * weights.reshape(-1)[order][:, None], 0)
    summed = jnp.zeros((tokens, x.shape[1]), jnp.float32).at[order // k].add(weighed)
    return summed.astype(x.dtype)


def feed_forward(x: jax.Array, params: Params, config: GlmConfig, exchange: Exchange) -> jax.Array:
    """Experts and the shared one, or the plain MLP of leading layers; whole on every device."""
    partial = gated_mlp(x, params["gate"], params["up"], params["down"])
    if "router" in params:
        chosen, weights = route(x, params, config)
        own = jax.tree.leaves(params["expert_gate"])[0].shape[0]
        partial += experts(x, chosen, weights, params, exchange.tp_rank(), own)
    return exchange.sum_all(partial)
