"""The backbone on a mesh: one jitted step for any number of tokens of any number of sequences, live or described.

A step takes T tokens, each with its position and the row of the page table that its sequence has, writes what they
leave in the cache and returns their last hidden states. Prefill is a step with many tokens of a sequence, decode one
with a token of each. Rows, logits and samples are programs of their own (`families.py`), as in a server.

Layers are written out one after the other; with `scan` alike layers are walked by a loop, which compiles in seconds
instead of minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coldstart.models.glm import weights
from coldstart.models.glm.attention import attention, batch_of
from coldstart.models.glm.cache import Pool, pool_specs
from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.exchange import Exchange, MeshExchange
from coldstart.models.glm.layout import DCP, MODEL, Layout
from coldstart.models.glm.moe import feed_forward
from coldstart.models.glm.ops import Implementation
from coldstart.models.glm.pieces import rms_norm
from coldstart.models.glm.weights import Params

WHOLE = PartitionSpec()
_CACHE = PartitionSpec(DCP)

Cache = Any
"""A tree of pools: for each layer its arrays by name."""


def mesh_of(layout: Layout, devices: Sequence[jax.Device]) -> Mesh:
    """The mesh over devices in ascending order of id: JAX's own order follows rings, and groups are hosts here.

    Raises:
        ValueError: another number of devices.
    """
    if len(devices) != layout.tp:
        raise ValueError(f"{layout.name} spans {layout.tp} devices, got {len(devices)}")
    ordered = sorted(devices, key=lambda device: device.id)
    return Mesh(np.array(ordered).reshape(layout.model, layout.dcp), (MODEL, DCP))


def default_implementation(platform: str) -> Implementation:
    """Pallas kernels on a TPU, their plain forms elsewhere."""
    return Implementation("pallas" if platform == "tpu" else "reference")


class GlmModel:
    """The model on given devices, which may be described ones: then it can be lowered and not run."""

    def __init__(
        self,
        config: GlmConfig,
        layout: Layout,
        devices: Sequence[jax.Device],
        *,
        pages: int,
        requests: int,
        scan: bool = False,
        implementation: Implementation | None = None,
    ) -> None:
        """Bind. `pages` is what the pool has room for; `requests` is the most sequences of a step.

        Raises:
            ValueError: sizes that can't be split like this, or another number of devices.
        """
        layout.check(config)
        self.config, self.layout = config, layout
        self.pages, self.requests = pages, requests
        self.mesh = mesh_of(layout, devices)
        self.implementation = implementation or default_implementation(devices[0].platform)
        self.blocks = weights.blocks_of(config) if scan else None
        self.specs = self._form(weights.weight_specs(config, layout))
        self._splits = weights.splits(config, self.specs)
        self.cache_specs = cache_specs(config, layout, pages, self.blocks)
        self.backbone = self._jit()

    def _form(self, specs: Params) -> Params:
        if self.blocks is None:
            return specs
        layers = weights.stack(specs["layers"], self.blocks, weights.join_specs)
        return specs | {"layers": layers}

    def _jit(self) -> Any:
        cache = jax.tree.map(lambda spec: _CACHE, self.cache_specs)
        taken = (self._splits, cache, WHOLE, WHOLE, WHOLE, WHOLE)

        def backbone(
            params: Params,
            cache: Cache,
            tokens: jax.Array,  # [tokens] int32
            positions: jax.Array,  # [tokens] int32, -1 for padding
            requests: jax.Array,  # [tokens] int32
            page_table: jax.Array,  # [requests, pages of a sequence] int32
        ) -> tuple[jax.Array, Cache]:
            return step(
                params, cache, tokens, positions, requests, page_table,
                config=self.config, layout=self.layout, exchange=MeshExchange(),
                implementation=self.implementation, blocks=self.blocks,
            )  # fmt: skip

        mapped = jax.shard_map(
            backbone, mesh=self.mesh, in_specs=taken, out_specs=(WHOLE, cache), check_vma=False
        )
        mapped.__name__ = "backbone"
        return jax.jit(
            mapped,
            in_shardings=self.shardings(taken),
            out_shardings=self.shardings((WHOLE, cache)),
            donate_argnums=1,
        )

    def shardings(self, splits: Any) -> Any:
        """Splits as shardings on this mesh."""
        return jax.tree.map(
            lambda split: NamedSharding(self.mesh, split),
            splits,
            is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
        )

    # Arguments: abstract, and real.

    def abstract(self, shape: tuple[int, ...], dtype: Any, split: PartitionSpec = WHOLE) -> Any:
        """A shape in the place of an array."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, split))

    def abstract_params(self) -> Params:
        """All parameters of the backbone, as shapes."""
        return weights.expand(self.config, self.specs, self.abstract)

    def abstract_cache(self) -> Cache:
        """The cache, as shapes."""
        return jax.tree.map(
            lambda spec: self.abstract(spec.shape, spec.dtype, _CACHE), self.cache_specs
        )

    def lower_backbone(
        self, tokens: int, requests: int | None = None, positions: int | None = None
    ) -> jax.stages.Lowered:
        """The backbone for so many tokens, with a page table for so many sequences of so many positions."""
        ints = self.abstract((tokens,), np.int32)
        pages = self.layout.pages_for(self.config.positions if positions is None else positions)
        table = self.abstract((self.requests if requests is None else requests, pages), np.int32)
        lowered: jax.stages.Lowered = self.backbone.lower(
            self.abstract_params(), self.abstract_cache(), ints, ints, ints, table
        )
        return lowered

    def params(self, seed: int = 0) -> Params:
        """The parameters of a seed, on the devices. The same numbers whatever the layout."""
        made = weights.fill(self.config, weights.weight_specs(self.config, self.layout), seed)
        if self.blocks is not None:
            made["layers"] = weights.stack(
                made["layers"], self.blocks, lambda *leaves: np.stack(leaves)
            )
        return jax.device_put(made, self.shardings(self._splits))

    def head(self, seed: int = 0) -> jax.Array:
        """The output head of a seed, on the devices."""
        spec = weights.head_spec(self.config)
        made = weights.fill(self.config, {"head": spec}, seed)["head"]
        return jax.device_put(made, NamedSharding(self.mesh, spec.split))

    def empty_cache(self) -> Cache:
        """A cache with nothing in it, on the devices."""
        split = NamedSharding(self.mesh, _CACHE)
        return jax.tree.map(
            lambda spec: jax.device_put(np.zeros(spec.shape, spec.dtype), split), self.cache_specs
        )

    def put(self, values: Any, dtype: Any = np.int32) -> jax.Array:
        """A small array, whole on every device."""
        return jax.device_put(np.asarray(values, dtype), NamedSharding(self.mesh, WHOLE))


def cache_specs(
    config: GlmConfig, layout: Layout, pages: int, blocks: weights.Blocks | None
) -> Cache:
    """Shapes of the whole cache: pools of a group's devices one after the other, layers of a scan too."""
    rows = layout.dcp * layout.page * pages

    def pool(layer: int, copies: int = 1) -> dict[str, jax.ShapeDtypeStruct]:
        return pool_specs(config, rows, indexed=config.has_indexer(layer), copies=copies)

    if blocks is None:
        return [pool(layer) for layer in range(config.layers)]
    return [[pool(run.first, len(block.layers(run))) for run in block.runs] for block in blocks]


# --- the step, as one device sees it -----------------------------------------------------------------


def step(
    params: Params,
    cache: Cache,
    tokens: jax.Array,
    positions: jax.Array,
    requests: jax.Array,
    page_table: jax.Array,
    *,
    config: GlmConfig,
    layout: Layout,
    exchange: Exchange,
    implementation: Implementation,
    blocks: weights.Blocks | None,
) -> tuple[jax.Array, Cache]:
    """Last hidden states [tokens, hidden], normed, and the cache."""
    batch = batch_of(positions, requests, page_table, layout, exchange.dcp_rank())
    x = _embed(tokens, params["embedding"], exchange)

    def layer(
        x: jax.Array, chosen: jax.Array | None, layer_params: Params, pools: Any, first: Any
    ) -> tuple[jax.Array, jax.Array, Any]:
        pool = Pool(config, pools, first)
        normed = rms_norm(x, layer_params["attention_norm"], config.norm_epsilon)
        attended, pool, chosen = attention(
            normed, pool, batch, chosen, layer_params, config, layout, exchange, implementation
        )
        x = x + attended
        normed = rms_norm(x, layer_params["mlp_norm"], config.norm_epsilon)
        x = x + feed_forward(normed, layer_params, config, exchange)
        return x, chosen, pool.arrays

    if blocks is None:
        x, cache = _walk(layer, x, params["layers"], cache)
    else:
        listed = min(config.index_top, batch.rows.shape[1])
        none = jnp.full((tokens.shape[0], listed), -1, jnp.int32)
        x, cache = _scan(layer, x, none, params["layers"], cache, blocks)
    return rms_norm(x, params["norm"], config.norm_epsilon), cache


def _embed(tokens: jax.Array, table: jax.Array, exchange: Exchange) -> jax.Array:
    """Rows of a vocabulary that is split over the devices; whole on every device."""
    own = tokens - exchange.tp_rank() * table.shape[0]
    mine = (own >= 0) & (own < table.shape[0])
    rows = jnp.where(mine[:, None], table[jnp.where(mine, own, 0)], 0)
    return exchange.sum_all(rows)


def _walk(
    layer: Callable[..., Any], x: jax.Array, layers: Any, cache: Cache
) -> tuple[jax.Array, Cache]:
    chosen = None
    written = []
    for layer_params, pools in zip(layers, cache, strict=True):
        x, chosen, pools = layer(x, chosen, layer_params, pools, 0)
        written.append(pools)
    return x, written


def _scan(
    layer: Callable[..., Any],
    x: jax.Array,
    chosen: jax.Array,
    layers: Any,
    cache: Cache,
    blocks: weights.Blocks,
) -> tuple[jax.Array, Cache]:
    written = []
    for block, params, pools in zip(blocks, layers, cache, strict=True):
        x, chosen, pools = _scan_block(layer, block, (x, chosen, pools), params)
        written.append(pools)
    return x, written


def _scan_block(layer: Callable[..., Any], block: weights.Block, carry: Any, params: Any) -> Any:
    """A run's pools are carried whole and written in place; each layer's rows have a beginning of their own."""
    sizes = [
        pools["latent"].shape[0] // len(block.layers(run))
        for run, pools in zip(block.runs, carry[2], strict=True)
    ]

    def once(carry: Any, walked: Any) -> tuple[Any, None]:
        x, chosen, every = carry
        time, params = walked
        written = []
        for run, size, run_params, pools in zip(block.runs, sizes, params, every, strict=True):
            first_layer = time * run.length

            def one(carry: Any, walked: Any, size: int = size, first: Any = first_layer) -> Any:
                place, layer_params = walked
                return layer(*carry[:2], layer_params, carry[2], (first + place) * size), None

            places = jnp.arange(run.length, dtype=jnp.int32)
            (x, chosen, pools), _ = jax.lax.scan(one, (x, chosen, pools), (places, run_params))
            written.append(pools)
        return (x, chosen, written), None

    times = jnp.arange(block.repeat, dtype=jnp.int32)
    by_time = jax.tree.map(
        lambda leaf: leaf.reshape(block.repeat, -1, *leaf.shape[1:]), list(params)
    )
    return jax.lax.scan(once, carry, (times, by_time))[0]
