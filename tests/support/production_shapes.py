"""GLM-5.2's attention and indexer at the shapes that serving compiles, abstract, for one described device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from coldstart_kernels import IndexCache, PagedCache, index_candidates, mla_attention

HEADS, OWN, WIDTH, LATENT, LIST = 64, 4, 576, 512, 2048
INDEX_HEADS, INDEX_WIDTH = 32, 128
SCALE = 0.0625


@dataclasses.dataclass(frozen=True)
class Step:
    """One padded shape: 64 pages of 1024 positions a sequence, 512 pages in all."""

    tokens: int
    sequences: int
    pages: int = 512
    page: int = 1024
    table: int = 64


DECODE = Step(32, 32)
PREFILL = Step(4096, 4)


def _of(device: jax.Device) -> Callable[..., jax.ShapeDtypeStruct]:
    here = SingleDeviceSharding(device)
    return lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=here)


def lower_attention(
    device: jax.Device, step: Step, branch: str, *, start: int = 0, scale: float = SCALE
) -> jax.stages.Lowered:
    """The op with a fragment that a slice at head `start` takes out of the whole query."""
    array = _of(device)
    cache = PagedCache(
        array(jnp.float8_e4m3fn, step.pages, step.page + step.page // 4, 4, 128),
        array(jnp.float32),
        array(jnp.int32, step.sequences, step.table),
        array(jnp.int32, step.sequences + 1),
    )

    def attend(q: jax.Array, cache: PagedCache, limits: jax.Array, *indices: jax.Array) -> Any:
        fragment = jax.lax.slice(q, (0, start, 0), (step.tokens, start + OWN, WIDTH))
        return mla_attention(
            fragment, q, cache, limits, *indices,
            branch=branch, latent_width=LATENT, scale=scale, implementation="pallas",
        )  # fmt: skip

    arguments = [
        array(jnp.bfloat16, step.tokens, HEADS, WIDTH), cache, array(jnp.int32, step.tokens),
    ]  # fmt: skip
    if branch == "sparse":
        arguments.append(array(jnp.int32, step.tokens, LIST))
    return jax.jit(attend).lower(*arguments)


def lower_indexer(device: jax.Device, step: Step) -> jax.stages.Lowered:
    """Candidates of every token."""
    array = _of(device)
    cache = IndexCache(
        array(jnp.float8_e4m3fn, step.pages, step.page, INDEX_WIDTH),
        array(jnp.int8, step.pages, step.page),
        array(jnp.int32, step.sequences, step.table),
        array(jnp.int32, step.sequences + 1),
    )

    def choose(
        q: jax.Array, weights: jax.Array, cache: IndexCache, limits: jax.Array, longest: jax.Array
    ) -> Any:
        return index_candidates(
            q, weights, cache, limits, k=LIST, longest=longest, implementation="pallas"
        )

    return jax.jit(choose).lower(
        array(jnp.float8_e4m3fn, step.tokens, INDEX_HEADS, INDEX_WIDTH),
        array(jnp.float32, step.tokens, INDEX_HEADS),
        cache, array(jnp.int32, step.tokens), array(jnp.int32),
    )  # fmt: skip


def described_device() -> jax.Device:
    """The first device of a described tpu7x:2x2x1. The environment that libtpu wants is the caller's."""
    from jax.experimental import topologies

    device: jax.Device = topologies.get_topology_desc("tpu7x:2x2x1", "tpu").devices[0]
    return device
