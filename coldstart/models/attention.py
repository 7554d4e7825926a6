"""Latent attention of one layer: dense over a prompt, sparse over the cache of a decode step.

The cache of a layer is [slots, positions, latent | rope | index key], split by position: position p lives on device
p % n, row p // n, so that short sequences use all devices too. As a whole array it is in the devices' order: position
p is at row (p % n) * (positions // n) + p // n.

Prefill (tensor parallel): each device attends with its own heads, its *fragment* of the query, over the whole prompt.
Decode (context parallel): each device attends with all heads, the *replicated* query, over the rows it owns among
the positions that the indexer chose; the pieces are merged by their log-sum-exp and scattered by heads. The
fragment is handed to the op all the same, which leaves it unread.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from coldstart.models.config import Config
from coldstart.models.layers import AXIS, Params, rms_norm, rotate
from coldstart_kernels import mla_attention


class _Projected(NamedTuple):
    q: jax.Array  # [tokens, heads, width]
    row: jax.Array  # [tokens, cache width]
    index_q: jax.Array  # [tokens, index heads, index width]
    index_weight: jax.Array  # [tokens, index heads]


def _project(x: jax.Array, positions: jax.Array, params: Params, config: Config) -> _Projected:
    c = config
    tokens = x.shape[0]
    q_c = rms_norm(x @ params["q_a"], params["q_norm"], c.norm_epsilon)
    q = (q_c @ params["q_b"]).reshape(tokens, c.heads, c.nope + c.rope)
    q_latent = jnp.einsum("thn,hnl->thl", q[..., : c.nope], params["w_uk"])
    q_rope = rotate(q[..., c.nope :], positions, c.rope_theta)

    kv = x @ params["kv_a"]
    latent = rms_norm(kv[:, : c.latent], params["kv_norm"], c.norm_epsilon)
    k_rope = rotate(kv[:, c.latent :], positions, c.rope_theta)
    row = jnp.concatenate([latent, k_rope, x @ params["index_k"]], axis=-1)

    index_q = (q_c @ params["index_q"]).reshape(tokens, c.index_heads, c.index_width)
    return _Projected(
        jnp.concatenate([q_latent, q_rope], axis=-1), row, index_q, x @ params["index_weight"]
    )


def _own_fragment(q: jax.Array) -> jax.Array:
    """This device's heads. The rank is runtime data here: one program serves all devices."""
    own_heads = q.shape[1] // jax.lax.axis_size(AXIS)
    first = jax.lax.axis_index(AXIS) * own_heads
    return jax.lax.dynamic_slice_in_dim(q, first, own_heads, axis=1)


def _out(attended: jax.Array, params: Params) -> jax.Array:
    """Own heads' latents [tokens, own heads, latent] to the whole residual."""
    values = jnp.einsum("thl,hlv->thv", attended, params["w_uv"])
    return jax.lax.psum(values.reshape(values.shape[0], -1) @ params["o_proj"], AXIS)


def prefill_attention(
    x: jax.Array,  # [tokens, hidden], one sequence from its start
    cache: jax.Array,  # [slots, own positions, cache width]
    slot: jax.Array,  # int32
    params: Params,
    config: Config,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """Attend causally within the prompt and write this device's rows of it. Local."""
    tokens, devices = x.shape[0], jax.lax.axis_size(AXIS)
    positions = jnp.arange(tokens, dtype=jnp.int32)
    made = _project(x, positions, params, config)
    # Padding beyond the prompt writes rows too; every later step's limits keep them out of sight.
    by_owner = made.row.reshape(tokens // devices, devices, -1)
    own = jax.lax.dynamic_index_in_dim(by_owner, jax.lax.axis_index(AXIS), axis=1, keepdims=False)
    cache = jax.lax.dynamic_update_slice(cache, own[None], (slot, jnp.int32(0), jnp.int32(0)))
    attended, _ = mla_attention(
        _own_fragment(made.q), made.q, made.row[None, :, : config.width], positions + 1,
        branch="dense", latent_width=config.latent, scale=config.scale,
        implementation="pallas", interpret=interpret,
    )  # fmt: skip
    return _out(attended, params), cache


def decode_attention(
    x: jax.Array,  # [batch, hidden], one token each of the first slots
    cache: jax.Array,  # [slots, own positions, cache width]
    positions: jax.Array,  # [batch] int32
    params: Params,
    config: Config,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """Write one row per sequence, choose positions, attend to the chosen. Local."""
    batch, devices = x.shape[0], jax.lax.axis_size(AXIS)
    rank = jax.lax.axis_index(AXIS).astype(jnp.int32)
    own_positions = cache.shape[1]
    made = _project(x, positions, params, config)
    # A row that isn't ours is directed out of range, where the write is dropped.
    target = jnp.where(positions % devices == rank, positions // devices, own_positions)
    sequences = jnp.arange(batch, dtype=jnp.int32)
    cache = cache.at[sequences, target].set(made.row, mode="drop")
    rows = cache[:batch]

    own_limits = (positions + devices - rank) // devices
    chosen = _choose(made, rows[..., config.width :], own_limits, config)
    own_chosen = jnp.where((chosen >= 0) & (chosen % devices == rank), chosen // devices, -1)
    attended, lse = mla_attention(
        _own_fragment(made.q), made.q, rows[..., : config.width], own_limits, own_chosen,
        branch="sparse", latent_width=config.latent, scale=config.scale,
        implementation="pallas", interpret=interpret,
    )  # fmt: skip

    weights = jax.nn.softmax(jax.lax.all_gather(lse, AXIS), axis=0)[rank]
    # A device that owns none of the chosen has the smallest lse: weight 0, and its latents are 0.
    merged = jax.lax.psum_scatter(
        attended * weights[..., None].astype(attended.dtype),
        AXIS,
        scatter_dimension=1,
        tiled=True,
    )
    return _out(merged, params), cache


def _choose(
    made: _Projected, index_keys: jax.Array, own_limits: jax.Array, config: Config
) -> jax.Array:
    """The positions each sequence attends to [batch, index_top], -1 where there are fewer.

    Each device scores the rows it owns; only scores travel.
    """
    dots = jnp.einsum("bhw,bpw->bhp", made.index_q, index_keys).astype(jnp.float32)
    scores = jnp.einsum("bhp,bh->bp", jax.nn.relu(dots), made.index_weight.astype(jnp.float32))
    own = jnp.arange(index_keys.shape[1], dtype=jnp.int32)
    scores = jnp.where(own < own_limits[:, None], scores, -jnp.inf)
    gathered = jax.lax.all_gather(scores, AXIS, axis=2)  # [batch, own positions, devices]
    top, chosen = jax.lax.top_k(gathered.reshape(gathered.shape[0], -1), config.index_top)
    return jnp.where(top > -jnp.inf, chosen, -1).astype(jnp.int32)
