"""The paged cache of index keys: FP8 with a power-of-two scale per key, 129 bytes for a key of 128.

Codes and exponents are two arrays, so that a page of codes is one plain block. A key is code * 2**exponent; being
powers of two, the scales lose nothing. Slots that were never written may hold anything.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_LARGEST = 448.0  # of float8_e4m3fn
_EXPONENTS = (-100, 100)
"""What a key's exponent is held within: 2**exponent and its products stay normal fp32 numbers."""


class IndexCache(NamedTuple):
    """A layer's index keys and where the sequences of a step find theirs. A JAX pytree."""

    keys: jax.Array
    """[pages, page, index width] float8_e4m3fn."""
    exponents: jax.Array
    """[pages, page] int8."""
    page_table: jax.Array
    """[sequences, pages a sequence] int32; positions whose entry is no page are never chosen."""
    cu_q_lens: jax.Array
    """[sequences + 1] int32: where each sequence's query tokens begin (see `ragged`)."""


def quantize_queries(q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Queries [..., width] as FP8 codes and one fp32 scale each [...]; multiply it into the heads' weights."""
    wide = q.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=-1)
    scale = jnp.where(largest > 0, largest / _LARGEST, 1.0)
    return (wide / scale[..., None]).astype(jnp.float8_e4m3fn), scale


def quantize_keys(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys [..., width] as FP8 codes and the exponent of each one's scale [...] int8, the least that fits."""
    wide = keys.astype(jnp.float32)
    mantissa, exponent = jnp.frexp(jnp.max(jnp.abs(wide), axis=-1) / _LARGEST)
    # largest / 448 = mantissa * 2**exponent with mantissa in [0.5, 1): exact where a logarithm would not be.
    exponent = jnp.clip(exponent - (mantissa == 0.5), *_EXPONENTS).astype(jnp.int8)
    codes = jnp.clip(wide / power_of_two(exponent)[..., None], -_LARGEST, _LARGEST)
    return codes.astype(jnp.float8_e4m3fn), exponent


def power_of_two(exponent: jax.Array) -> jax.Array:
    """2**exponent in fp32, exactly, from its bits."""
    held = jnp.clip(exponent.astype(jnp.int32), *_EXPONENTS)
    return jax.lax.bitcast_convert_type((held + 127) << 23, jnp.float32)


def write(
    cache: IndexCache,
    keys: jax.Array,  # [tokens, width]
    sequence: jax.Array,  # [tokens] int32
    slots: jax.Array,  # [tokens] int32
) -> IndexCache:
    """Store keys at slots of their sequences; those without such a slot are dropped."""
    page = cache.keys.shape[1]
    found, inside = lookup(cache, sequence, slots)
    target = jnp.where(inside, found, cache.keys.shape[0])
    slot = jnp.where(inside, slots % page, 0)
    codes, exponents = quantize_keys(keys)
    return cache._replace(
        keys=cache.keys.at[target, slot].set(codes, mode="drop"),
        exponents=cache.exponents.at[target, slot].set(exponents, mode="drop"),
    )


def lookup(cache: IndexCache, sequence: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The page of each slot, and whether there is one; pages are 0 where there is none."""
    page = cache.keys.shape[1]
    sequences, width = cache.page_table.shape
    inside = (slots >= 0) & (slots < width * page) & (sequence >= 0) & (sequence < sequences)
    entry = cache.page_table[jnp.where(inside, sequence, 0), jnp.where(inside, slots // page, 0)]
    inside = inside & (entry >= 0) & (entry < cache.keys.shape[0])
    return jnp.where(inside, entry, 0), inside


def scales(cache: IndexCache) -> jax.Array:
    """The scale of every slot of every sequence [sequences, positions] fp32; anything where there is no page."""
    pages = jnp.clip(cache.page_table, 0, cache.keys.shape[0] - 1)
    return power_of_two(cache.exponents[pages].reshape(pages.shape[0], -1))
