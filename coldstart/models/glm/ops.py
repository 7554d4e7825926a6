"""The seam to the kernels: what a step asks of them, in arguments of its own. Nothing else here calls one.

Where there is no kernel yet, a plain JAX form of the same operation stands in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from coldstart.models.glm.cache import Pool
from coldstart.models.glm.fp8 import FP8, LARGEST, BlockFp8, Weight, round_activations
from coldstart_kernels import mla_attention

BLOCK_BYTES = 256 << 20
"""Room for what one block of tokens gathers; longer steps go through in several blocks."""


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Which form of the ops a program has."""

    name: str = "reference"
    """"reference" or "pallas"."""
    interpret: bool = False
    """Lower Pallas kernels to plain HLO, for platforms without Mosaic."""
    branch: str = "sparse"


def by_blocks(function: Callable[..., Any], bytes_per_token: int, *arrays: jax.Array) -> Any:
    """`function` over blocks of the leading dimension, one after the other, where all at once would be too much."""
    tokens = arrays[0].shape[0]
    most = max(1, BLOCK_BYTES // max(1, bytes_per_token))
    if tokens <= most:
        return function(*arrays)
    block = max(size for size in range(1, most + 1) if tokens % size == 0)
    cut = [array.reshape(tokens // block, block, *array.shape[1:]) for array in arrays]
    made = jax.lax.map(lambda blocks: function(*blocks), tuple(cut))
    return jax.tree.map(lambda array: array.reshape(tokens, *array.shape[2:]), made)


# --- attention ---------------------------------------------------------------------------------------


def sparse_attention(
    q_fragment: jax.Array,  # [tokens, own heads, width]
    q_group: jax.Array,  # [tokens, heads, width]
    pool: Pool,
    chosen: jax.Array,  # [tokens, list] int32 rows of the pool, -1 for none
    *,
    latent: int,
    scale: float,
    implementation: Implementation,
) -> tuple[jax.Array, jax.Array]:
    """All heads of the group over the chosen rows: latents [tokens, heads, latent], LSE [tokens, heads] fp32.

    A token without rows gets 0 and the smallest finite fp32. The fragment is handed over and not read.
    """
    width = q_group.shape[2]
    places = jnp.arange(chosen.shape[1], dtype=jnp.int32)

    def attend(
        q_fragment: jax.Array, q_group: jax.Array, chosen: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        # The op reads no FP8 rows, so they are gathered and widened before it.
        rows = pool.rows(chosen)
        return mla_attention(
            q_fragment, q_group, rows,
            jnp.full(chosen.shape[:1], chosen.shape[1], jnp.int32),
            jnp.where(chosen >= 0, places, -1),
            branch="sparse", latent_width=latent, scale=scale,
            implementation=implementation.name, interpret=implementation.interpret,
        )  # fmt: skip

    per_token = chosen.shape[1] * width * 4
    return by_blocks(attend, per_token, q_fragment, q_group, chosen)


# --- the indexer -------------------------------------------------------------------------------------


def index_scores(
    q: jax.Array,  # [tokens, index heads, index width]
    weight: jax.Array,  # [tokens, index heads] fp32, scales of the score included
    pool: Pool,
    rows: jax.Array,  # [tokens, places] int32 rows of the pool
) -> jax.Array:
    """weight . relu(q . key) of each place [tokens, places] fp32."""
    keys, key_scale = pool.index_keys(rows)
    if pool.config.quantised:
        largest = jnp.max(jnp.abs(q.astype(jnp.float32)), axis=-1, keepdims=True)
        q_scale = jnp.where(largest > 0, largest / LARGEST, 1.0)
        # Wider types hold every FP8 value: the products are those of FP8.
        q = (q.astype(jnp.float32) / q_scale).astype(FP8).astype(keys.dtype)
        weight = weight * q_scale[..., 0]
    dots = jnp.einsum("thw,tpw->thp", q, keys, preferred_element_type=jnp.float32)
    return jnp.einsum("thp,th->tp", jax.nn.relu(dots), weight) * key_scale


# --- experts -----------------------------------------------------------------------------------------


def grouped_product(x: jax.Array, weight: Weight, sizes: jax.Array) -> jax.Array:
    """Rows in order of their expert [rows, k] times weight [experts, k, n]; sizes [experts] int32.

    Rows behind the last group come out as anything.
    """
    if isinstance(weight, BlockFp8):
        x, weight = round_activations(x, weight.block), weight.dense(x.dtype)
    return jax.lax.ragged_dot(x, weight, sizes, preferred_element_type=jnp.float32).astype(x.dtype)
