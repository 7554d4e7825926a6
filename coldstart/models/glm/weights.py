"""The tree of parameters: shapes, types and splits from a config and a layout; abstract, or filled from a seed.

Layers are a list of dictionaries. `stack` makes the form that a scan walks: blocks of runs of alike layers, with the
parameters of a run's layers stacked.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.fp8 import FP8, BlockFp8, quantise
from coldstart.models.glm.layout import ALL, MODEL, Layout

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class WeightSpec:
    """One parameter: its whole shape, how it is split, its type and what it is filled with."""

    shape: tuple[int, ...]
    split: PartitionSpec
    type: str = "quantised"
    """"quantised" (FP8 with scales), "plain" (the type of activations) or "float32"."""
    fill: str = "normal"
    """"normal" (by the inverse root of the second last dimension), "small", "zeros" or "ones"."""


def is_spec(leaf: object) -> bool:
    """Tells the leaves of `weight_specs` from its branches."""
    return isinstance(leaf, WeightSpec)


def activation_type(config: GlmConfig) -> Any:
    """The type between the weights."""
    return jnp.dtype(config.activations if config.quantised else "float32")


def weight_specs(config: GlmConfig, layout: Layout) -> Params:
    """The whole tree, as `WeightSpec` leaves."""
    c = config
    return {
        "embedding": WeightSpec(
            (c.vocabulary, c.hidden), PartitionSpec(ALL, None), "plain", "small"
        ),
        "layers": [_layer_specs(c, layout, layer) for layer in range(c.layers)],
        "norm": _norm(c.hidden),
    }


def head_spec(config: GlmConfig) -> WeightSpec:
    """The output head, which programs beside the backbone take."""
    return WeightSpec((config.hidden, config.vocabulary), PartitionSpec(None, ALL), "plain")


def _norm(size: int) -> WeightSpec:
    return WeightSpec((size,), PartitionSpec(None), "plain", "ones")


def _layer_specs(config: GlmConfig, layout: Layout, layer: int) -> Params:
    specs = _attention_specs(config, layout)
    if config.has_indexer(layer):
        specs |= _indexer_specs(config)
    if config.has_experts(layer):
        return specs | _expert_specs(config)
    return specs | _mlp_specs(config.hidden, config.mlp)


def _attention_specs(config: GlmConfig, layout: Layout) -> Params:
    c = config
    whole = PartitionSpec(None, None)
    queries = MODEL if layout.replicate_q else ALL
    outputs = MODEL if layout.replicate_o_proj else ALL
    return {
        "attention_norm": _norm(c.hidden),
        "q_a": WeightSpec((c.hidden, c.q_rank), whole),
        "q_norm": _norm(c.q_rank),
        "q_b": WeightSpec((c.q_rank, c.heads * c.head), PartitionSpec(None, queries)),
        "w_uk": WeightSpec(
            (c.heads, c.nope, c.latent), PartitionSpec(queries, None, None), "plain"
        ),
        "kv_a": WeightSpec((c.hidden, c.width), whole),
        "kv_norm": _norm(c.latent),
        "w_uv": WeightSpec(
            (c.heads, c.latent, c.value), PartitionSpec(outputs, None, None), "plain"
        ),
        "o_proj": WeightSpec((c.heads * c.value, c.hidden), PartitionSpec(outputs, None)),
        "mlp_norm": _norm(c.hidden),
    }


def _indexer_specs(config: GlmConfig) -> Params:
    c = config
    whole = PartitionSpec(None, None)
    return {
        "index_q": WeightSpec((c.q_rank, c.index_heads * c.index_width), whole),
        "index_k": WeightSpec((c.hidden, c.index_width), whole),
        "index_weight": WeightSpec((c.hidden, c.index_heads), whole, "plain"),
        "index_norm": _norm(c.index_width),
        "index_norm_bias": WeightSpec((c.index_width,), PartitionSpec(None), "plain", "zeros"),
    }


def _mlp_specs(hidden: int, width: int) -> Params:
    return {
        "gate": WeightSpec((hidden, width), PartitionSpec(None, ALL)),
        "up": WeightSpec((hidden, width), PartitionSpec(None, ALL)),
        "down": WeightSpec((width, hidden), PartitionSpec(ALL, None)),
    }


def _expert_specs(config: GlmConfig) -> Params:
    c = config
    stack = PartitionSpec(ALL, None, None)
    return _mlp_specs(c.hidden, c.expert_mlp) | {
        "router": WeightSpec((c.hidden, c.experts), PartitionSpec(None, None), "plain"),
        "correction": WeightSpec((c.experts,), PartitionSpec(None), "float32", "small"),
        "expert_gate": WeightSpec((c.experts, c.hidden, c.expert_mlp), stack),
        "expert_up": WeightSpec((c.experts, c.hidden, c.expert_mlp), stack),
        "expert_down": WeightSpec((c.experts, c.expert_mlp, c.hidden), stack),
    }


# --- from specs to leaves ----------------------------------------------------------------------------


def expand(config: GlmConfig, specs: Params, leaf: Callable[[Any, Any, Any], Any]) -> Params:
    """The tree with `leaf(shape, type, split)` in the place of each array; a quantised weight has two."""

    def one(spec: WeightSpec) -> Any:
        plain = np.float32 if spec.type == "float32" else activation_type(config)
        if spec.type != "quantised" or not config.quantised:
            return leaf(spec.shape, plain, spec.split)
        *lead, k, n = spec.shape
        scales = (*lead, -(-k // config.block), -(-n // config.block))
        return BlockFp8(
            leaf(spec.shape, FP8, spec.split), leaf(scales, np.float32, spec.split), config.block
        )

    expanded: Params = jax.tree.map(one, specs, is_leaf=is_spec)
    return expanded


def splits(config: GlmConfig, specs: Params) -> Params:
    """How each array of the tree is split."""
    return expand(config, specs, lambda shape, dtype, split: split)


def fill(config: GlmConfig, specs: Params, seed: int) -> Params:
    """All parameters on the host, whole. NumPy makes them, so that nothing is compiled for it.

    A weight depends on the seed and its place in the tree alone: layouts and precisions start from the same numbers.
    """

    def one(path: Any, spec: WeightSpec) -> Any:
        plain = np.float32 if spec.type == "float32" else activation_type(config)
        if spec.fill in ("ones", "zeros"):
            return np.full(spec.shape, 1.0 if spec.fill == "ones" else 0.0, plain)
        # Each parameter has its own stream: adding one doesn't change the others.
        rng = np.random.default_rng([seed, zlib.crc32(jax.tree_util.keystr(path).encode())])
        spread = 0.1 if spec.fill == "small" else 1 / math.sqrt(spec.shape[-2])
        made = (rng.standard_normal(spec.shape) * spread).astype(np.float32)
        if spec.type == "quantised" and config.quantised:
            return quantise(made, config.block)
        return made.astype(plain)

    params: Params = jax.tree_util.tree_map_with_path(one, specs, is_leaf=is_spec)
    return params


# --- for a scan --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """Alike layers one after the other."""

    first: int
    length: int


@dataclasses.dataclass(frozen=True)
class Block:
    """Runs that are repeated one after the other: a scan of scans."""

    runs: tuple[Run, ...]
    """The first time's."""
    repeat: int

    def layers(self, run: Run) -> list[int]:
        """The layers of a run of this block, all times."""
        period = sum(one.length for one in self.runs)
        return [
            run.first + time * period + place
            for time in range(self.repeat)
            for place in range(run.length)
        ]


Blocks = tuple[Block, ...]


def blocks_of(config: GlmConfig) -> Blocks:
    """GLM-5.2's: three dense layers, then 18 times three that reuse a choice and one that chooses, then three more."""
    kinds = [(config.has_indexer(n), config.has_experts(n)) for n in range(config.layers)]
    runs: list[Run] = []
    for number, kind in enumerate(kinds):
        if runs and kinds[runs[-1].first] == kind:
            runs[-1] = Run(runs[-1].first, runs[-1].length + 1)
        else:
            runs.append(Run(number, 1))
    alike = [(kinds[run.first], run.length) for run in runs]
    blocks, at = [], 0
    while at < len(runs):
        pair, repeat = alike[at : at + 2], 1
        while len(pair) == 2 and alike[at + 2 * repeat : at + 2 * repeat + 2] == pair:
            repeat += 1
        taken = 2 if repeat > 1 else 1
        blocks.append(Block(tuple(runs[at : at + taken]), repeat))
        at += taken * repeat
    return tuple(blocks)


def stack(layers: list[Any], blocks: Blocks, join: Callable[..., Any]) -> list[list[Any]]:
    """A list over layers as one over blocks and their runs; `join(*leaves)` stacks the leaves of alike layers."""
    return [
        [
            jax.tree.map(join, *(layers[n] for n in block.layers(run)), is_leaf=is_spec)
            for run in block.runs
        ]
        for block in blocks
    ]


def join_specs(*alike: WeightSpec) -> WeightSpec:
    """One spec for stacked layers."""
    first = alike[0]
    split = PartitionSpec(None, *first.split)
    return dataclasses.replace(first, shape=(len(alike), *first.shape), split=split)
