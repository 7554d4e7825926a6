"""Routed experts, one share of them on each device (EP over all devices).

Every device runs its own experts over all tokens, weighted by what the router gave them (mostly 0), and one sum
over the devices merges routed and shared part. Right for a handful of tokens; sorting them is a kernel's work.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from coldstart.models.config import Config
from coldstart.models.layers import AXIS, Params, gated_mlp


def route(x: jax.Array, router: jax.Array, bias: jax.Array, config: Config) -> jax.Array:
    """The weight of each expert for each token [tokens, experts], 0 where it wasn't chosen.

    Sigmoid scores; the bias takes part in choosing only; the chosen scores are made to sum to `routed_scale`.
    """
    scores = jax.nn.sigmoid((x @ router).astype(jnp.float32))
    _, chosen = jax.lax.top_k(scores + bias, config.experts_per_token)
    picked = jax.nn.one_hot(chosen, config.experts, dtype=jnp.float32).sum(axis=1) * scores
    weights = picked / picked.sum(axis=-1, keepdims=True) * config.routed_scale
    return weights.astype(x.dtype)


def moe(x: jax.Array, params: Params, config: Config) -> jax.Array:
    """Routed experts plus the shared one. Local; the result is whole."""
    weights = route(x, params["router"], params["router_bias"], config)
    own_experts = params["expert_gate"].shape[0]
    first = jax.lax.axis_index(AXIS) * own_experts
    own_weights = jax.lax.dynamic_slice_in_dim(weights, first, own_experts, axis=1)
    hidden = jax.nn.silu(jnp.einsum("th,ehm->etm", x, params["expert_gate"]))
    hidden = hidden * jnp.einsum("th,ehm->etm", x, params["expert_up"])
    routed = jnp.einsum("etm,emh,te->th", hidden, params["expert_down"], own_weights)
    shared = gated_mlp(x, params["gate"], params["up"], params["down"])
    return jax.lax.psum(routed + shared, AXIS)


def dense_mlp(x: jax.Array, params: Params) -> jax.Array:
    """The MLP of the leading layers. Local; the result is whole."""
    return jax.lax.psum(gated_mlp(x, params["gate"], params["up"], params["down"]), AXIS)
