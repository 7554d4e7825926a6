"""The best of many scores as a set: a threshold instead of a sort.

A sort of thousands of columns takes a compiler ten times as long as all that is here. The threshold is found bit by
bit, 32 counts over the row, so results are exact; of equal scores the first columns are taken.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def best(scores: jax.Array, count: int) -> jax.Array:
    """Which columns are among the largest `count` of each row [rows, columns] fp32: bool, exactly so many in each."""
    # -0.0 equals 0.0; a compiler takes an addition of 0 away, but not this.
    scores = jnp.where(scores == 0, 0.0, scores)
    bits = jax.lax.bitcast_convert_type(scores, jnp.uint32)
    # Unsigned numbers in the order of the floats.
    ordered = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))

    def bit(number: jax.Array, threshold: jax.Array) -> jax.Array:
        higher = threshold | (jnp.uint32(1) << (31 - number).astype(jnp.uint32))
        enough = jnp.sum(ordered >= higher[:, None], axis=1) >= count
        return jnp.where(enough, higher, threshold)

    start = jnp.zeros(scores.shape[0], jnp.uint32)
    threshold = jax.lax.fori_loop(0, 32, bit, start)[:, None]
    above, equal = ordered > threshold, ordered == threshold
    room = count - jnp.sum(above, axis=1, keepdims=True)
    return above | (equal & (jnp.cumsum(equal, axis=1) <= room))


def places(mask: jax.Array, count: int) -> jax.Array:
    """The first `count` columns that are set in each row [rows, count] int32, ascending, then -1."""
    so_far = jnp.cumsum(mask, axis=1, dtype=jnp.int32)
    wanted = jnp.arange(1, count + 1, dtype=jnp.int32)
    found = jax.vmap(lambda row: jnp.searchsorted(row, wanted))(so_far).astype(jnp.int32)
    return jnp.where(wanted <= so_far[:, -1:], found, -1)
