"""Pieces that every layer uses, and the parameters of the whole decoder.

Code in this folder that says *local* runs inside `shard_map`: it sees one device's share of each split array.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from coldstart.models.config import Config

AXIS = "tp"
"""The mesh's one axis. It carries all three roles: tensor, decode-context and expert parallelism."""

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One parameter: its whole shape, how it is split, and what it is filled with."""

    shape: tuple[int, ...]
    split: PartitionSpec
    fill: str = "normal"
    """`normal` (by the inverse root of the second last dimension), `small` or `ones`."""


def param_specs(config: Config) -> Params:
    """The tree of parameters, as `ParamSpec` leaves."""
    return {
        "embedding": ParamSpec(
            (config.vocabulary, config.hidden), PartitionSpec(AXIS, None), "small"
        ),
        "layers": [_layer_specs(config, layer) for layer in range(config.layers)],
        "norm": ParamSpec((config.hidden,), PartitionSpec(None), "ones"),
        "head": ParamSpec((config.hidden, config.vocabulary), PartitionSpec(None, AXIS)),
    }


def _layer_specs(config: Config, layer: int) -> Params:
    c = config
    whole = PartitionSpec()
    columns, rows, stack = (
        PartitionSpec(None, AXIS),
        PartitionSpec(AXIS, None),
        PartitionSpec(AXIS, None, None),
    )
    specs: Params = {
        "attention_norm": ParamSpec((c.hidden,), whole, "ones"),
        "q_a": ParamSpec((c.hidden, c.q_rank), whole),
        "q_norm": ParamSpec((c.q_rank,), whole, "ones"),
        # Query replication: every device makes the queries of all heads.
        "q_b": ParamSpec((c.q_rank, c.heads * (c.nope + c.rope)), whole),
        "w_uk": ParamSpec((c.heads, c.nope, c.latent), whole),
        "kv_a": ParamSpec((c.hidden, c.width), whole),
        "kv_norm": ParamSpec((c.latent,), whole, "ones"),
        "index_q": ParamSpec((c.q_rank, c.index_heads * c.index_width), whole),
        "index_k": ParamSpec((c.hidden, c.index_width), whole),
        "index_weight": ParamSpec((c.hidden, c.index_heads), whole),
        "w_uv": ParamSpec((c.heads, c.latent, c.value), stack),
        "o_proj": ParamSpec((c.heads * c.value, c.hidden), rows),
        "mlp_norm": ParamSpec((c.hidden,), whole, "ones"),
    }
    shared = c.mlp if layer < c.dense_layers else c.expert_mlp
    specs["gate"] = ParamSpec((c.hidden, shared), columns)
    specs["up"] = ParamSpec((c.hidden, shared), columns)
    specs["down"] = ParamSpec((shared, c.hidden), rows)
    if layer >= c.dense_layers:
        specs["router"] = ParamSpec((c.hidden, c.experts), whole)
        specs["router_bias"] = ParamSpec((c.experts,), whole, "small")
        specs["expert_gate"] = ParamSpec((c.experts, c.hidden, c.expert_mlp), stack)
        specs["expert_up"] = ParamSpec((c.experts, c.hidden, c.expert_mlp), stack)
        specs["expert_down"] = ParamSpec((c.experts, c.expert_mlp, c.hidden), stack)
    return specs


def is_spec(leaf: object) -> bool:
    """Tells the leaves of `param_specs` from its branches."""
    return isinstance(leaf, ParamSpec)


def init_params(config: Config, seed: int = 0) -> Params:
    """All parameters on the host, whole. NumPy makes them, so that nothing is compiled for it."""

    def fill(path: Any, spec: ParamSpec) -> np.ndarray[Any, Any]:
        if spec.fill == "ones":
            return np.ones(spec.shape, config.dtype)
        # Each parameter has its own stream: adding one doesn't change the others.
        name = zlib.crc32(jax.tree_util.keystr(path).encode())
        rng = np.random.default_rng([seed, name])
        spread = 0.1 if spec.fill == "small" else 1 / math.sqrt(spec.shape[-2])
        return (rng.standard_normal(spec.shape) * spread).astype(config.dtype)

    params: Params = jax.tree_util.tree_map_with_path(fill, param_specs(config), is_leaf=is_spec)
    return params


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Scale each row to unit mean square, in fp32."""
    wide = x.astype(jnp.float32)
    norm = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * norm).astype(x.dtype) * weight


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """RoPE on neighbouring pairs of the last dimension; `positions` fits the leading one."""
    pairs = x.shape[-1] // 2
    frequency = theta ** (-np.arange(pairs, dtype=np.float32) / pairs)
    angle = positions.astype(jnp.float32)[:, None] * frequency.astype(np.float32)
    angle = angle.reshape(angle.shape[0], *([1] * (x.ndim - 2)), pairs)
    even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


def gated_mlp(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """SiLU-gated MLP; local, so the result is this device's part of a sum."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


def embed(tokens: jax.Array, table: jax.Array) -> jax.Array:
    """Rows of a vocabulary that is split over the devices. Local; the result is whole."""
    own = tokens - jax.lax.axis_index(AXIS) * table.shape[0]
    mine = (own >= 0) & (own < table.shape[0])
    rows = jnp.where(mine[:, None], table[jnp.where(mine, own, 0)], 0)
    return jax.lax.psum(rows, AXIS)
