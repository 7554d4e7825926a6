"""The paged cache of latents: FP8 with one scale, or bf16 or fp32 in the same form.

A page of P positions is P + P/4 tiles of 4 x 128 values: tile s is the latent (512) of slot s, and tile P + s/4 has
the rope keys (128, padded) of slots s to s + 3 in its rows. So 640 values a position, 640 bytes in FP8, and any one
position can be fetched by two copies of whole tiles, which is what lets the sparse kernel gather from HBM by itself
(a plain [positions, 640] FP8 array interleaves four rows in a register word: no single row can be copied).
Narrower latents and rope keys are padded with zeros, which add nothing to a score.

The invariant: a stored value times `scale` is the value. Slots that were never written may hold anything, NaN included.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

LATENT = 512
"""Stored width of the latent part: four rows of 128."""

ROPE = 128
"""Stored width of the rope part: one row."""

GROUP = 4
"""Rows of a tile: a latent takes all four, a rope key one."""

DTYPES = ("float8_e4m3fn", "bfloat16", "float32")
_LARGEST = 448.0  # of float8_e4m3fn


class PagedCache(NamedTuple):
    """A layer's cache and where the sequences of a step find themselves in it. A JAX pytree."""

    rows: jax.Array
    """[pages, page + page / 4, 4, 128] of one of `DTYPES`; `page` is a power of two, at least 4."""
    scale: jax.Array
    """[] fp32: what stored values are multiplied by."""
    page_table: jax.Array
    """[sequences, pages a sequence] int32: the page that holds each run of `page` positions. Positions whose
    entry is no page (negative, say) are never seen."""
    cu_q_lens: jax.Array
    """[sequences + 1] int32: where each sequence's query tokens begin (see `ragged`)."""


def empty_rows(pages: int, page: int, dtype: str = "float8_e4m3fn") -> jax.Array:
    """Rows of a cache with nothing in it.

    Raises:
        ValueError: a page size that isn't a power of two from 4 on, or a type that isn't supported.
    """
    if page < GROUP or page & (page - 1):
        raise ValueError(f"a page of {page} positions is not a power of two of at least {GROUP}")
    if dtype not in DTYPES:
        raise ValueError(f"cache type {dtype!r} is not one of {DTYPES}")
    return jnp.zeros((pages, page + page // GROUP, GROUP, ROPE), dtype)


def page_size(rows: jax.Array) -> int:
    """Positions of a page."""
    return rows.shape[1] * GROUP // (GROUP + 1)


def quantize(values: jax.Array, scale: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Values as they are stored: divided by the scale and, for FP8, held within its largest number. NaN stays NaN."""
    divided = values.astype(jnp.float32) / scale
    if jnp.dtype(dtype) == jnp.float8_e4m3fn:
        divided = jnp.clip(divided, -_LARGEST, _LARGEST)
    return divided.astype(dtype)


def write(
    cache: PagedCache,
    latent: jax.Array,  # [tokens, up to 512]
    rope_key: jax.Array,  # [tokens, up to 128]
    sequence: jax.Array,  # [tokens] int32
    slots: jax.Array,  # [tokens] int32
) -> PagedCache:
    """Store tokens at slots of their sequences.

    A token whose slot or sequence is negative, beyond the table, or on an entry that is no page, is dropped: that is
    how a rank leaves out what another rank owns, and how padding is left out.
    """
    page = page_size(cache.rows)
    pages = cache.rows.shape[0]
    found, inside = lookup(cache, sequence, slots)
    slot = jnp.where(inside, slots % page, 0)
    # Past the last page, where the scatter drops it.
    target = jnp.where(inside, found, pages)
    dtype = cache.rows.dtype
    latent = _pad_last(quantize(latent, cache.scale, dtype), LATENT).reshape(-1, GROUP, ROPE)
    rope_key = _pad_last(quantize(rope_key, cache.scale, dtype), ROPE)
    rows = cache.rows.at[target, slot].set(latent, mode="drop")
    rows = rows.at[target, page + slot // GROUP, slot % GROUP].set(rope_key, mode="drop")
    return cache._replace(rows=rows)


def lookup(cache: PagedCache, sequence: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The page of each slot, and whether there is one; pages are 0 where there is none."""
    page = page_size(cache.rows)
    sequences, width = cache.page_table.shape
    inside = (slots >= 0) & (slots < width * page) & (sequence >= 0) & (sequence < sequences)
    entry = cache.page_table[jnp.where(inside, sequence, 0), jnp.where(inside, slots // page, 0)]
    inside = inside & (entry >= 0) & (entry < cache.rows.shape[0])
    return jnp.where(inside, entry, 0), inside


def read(cache: PagedCache, sequence: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows of any slots [..., 512 + 128] in fp32, and whether there is such a slot; zeros where not."""
    page = page_size(cache.rows)
    found, inside = lookup(cache, sequence, slots)
    slot = jnp.where(inside, slots % page, 0)
    latent = cache.rows[found, slot].reshape(*slot.shape, LATENT)
    rope_key = cache.rows[found, page + slot // GROUP, slot % GROUP]
    rows = jnp.concatenate([latent, rope_key], axis=-1).astype(jnp.float32) * cache.scale
    return jnp.where(inside[..., None], rows, 0), inside


def stored_query(q: jax.Array, latent_width: int) -> jax.Array:
    """A query as wide as a row needs: its latent part padded to 512, its rope part as it is."""
    if latent_width == LATENT:
        return q
    return jnp.concatenate(
        [_pad_last(q[..., :latent_width], LATENT), q[..., latent_width:]], axis=-1
    )


def _pad_last(values: jax.Array, width: int) -> jax.Array:
    if values.shape[-1] > width:
        raise ValueError(f"{values.shape} is wider than the {width} that the cache holds")
    return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, width - values.shape[-1])])
