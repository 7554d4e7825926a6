"""Scores and choice of experts in plain JAX, fp32 throughout.

Both ways of choosing rank by `selection_key`, so that switching between them never changes an id.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

SMALLEST = float(jnp.finfo(jnp.float32).min)
"""Marks a column as taken. Below every key, as those end at `LOWEST_KEY`."""

LOWEST_KEY = -3e38
"""What masked scores count as. Above `SMALLEST`, or a masked column could be chosen twice."""

_LEAST_SUM = 1e-20
"""Added to the sum that chosen scores are divided by: sigmoid scores can all round to 0."""


def score(logits: jax.Array, scoring: str) -> jax.Array:
    """Scores [tokens, experts] fp32."""
    logits = logits.astype(jnp.float32)
    return jax.nn.softmax(logits, axis=-1) if scoring == "softmax" else jax.nn.sigmoid(logits)


def selection_key(scores: jax.Array, bias: jax.Array) -> jax.Array:
    """What experts are ranked by. Masked ones (-inf, NaN) tie at the lower end: the lowest id goes first."""
    biased = scores + bias
    # NaN fails the comparison too.
    return jnp.where(biased > LOWEST_KEY, biased, LOWEST_KEY)


def weigh(picked: jax.Array, *, renormalise: bool, scale: float) -> jax.Array:
    """Chosen scores [tokens, chosen] to weights."""
    if renormalise:
        picked = picked / (jnp.sum(picked, axis=-1, keepdims=True) + _LEAST_SUM)
    return picked * scale


def choose_by_sort(
    scores: jax.Array,  # [tokens, experts] fp32
    bias: jax.Array,  # [experts] fp32
    *,
    chosen: int,
) -> tuple[jax.Array, jax.Array]:
    """Unbiased scores and ids [tokens, chosen] of the largest keys, by one stable sort per row."""
    order = jnp.argsort(-selection_key(scores, bias), axis=-1, stable=True)
    ids = order[:, :chosen].astype(jnp.int32)
    return jnp.take_along_axis(scores, ids, axis=-1), ids


def choose_by_row_maximum(
    scores: jax.Array,  # [tokens, experts] fp32
    bias: jax.Array,  # [experts] fp32
    *,
    chosen: int,
) -> tuple[jax.Array, jax.Array]:
    """The same by `chosen` passes: take the lowest column that holds the row's maximum, strike it out."""
    keys = selection_key(scores, bias)
    columns = jax.lax.broadcasted_iota(jnp.int32, keys.shape, 1)
    ids = []
    for _ in range(chosen):
        largest = jnp.max(keys, axis=1, keepdims=True)
        first = jnp.min(jnp.where(keys == largest, columns, keys.shape[1]), axis=1, keepdims=True)
        ids.append(first)
        keys = jnp.where(columns == first, SMALLEST, keys)
    found = jnp.concatenate(ids, axis=1)
    return jnp.take_along_axis(scores, found, axis=-1), found
