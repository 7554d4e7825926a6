"""The running softmax that every MLA kernel keeps while it goes over blocks of keys.

Three references in VMEM per block of query rows: the largest score so far [rows, 1], the sum of the weights [rows, 1],
and the weighted sum of the values [rows, latent], all fp32, the sums relative to the largest score.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels.mla.reference import SMALLEST

_CONTRACT_LAST = (((1,), (1,)), ((), ()))
_MATMUL = (((1,), (0,)), ((), ()))


def scratch(rows: int, latent_width: int) -> list[Any]:
    """The shapes of top, total and accumulator."""
    return [
        pltpu.VMEM((rows, 1), jnp.float32),
        pltpu.VMEM((rows, 1), jnp.float32),
        pltpu.VMEM((rows, latent_width), jnp.float32),
    ]


def start(top_ref: Any, total_ref: Any, accumulator_ref: Any) -> None:
    """Before the first block of keys."""
    top_ref[...] = jnp.full(top_ref.shape, SMALLEST, jnp.float32)
    total_ref[...] = jnp.zeros(total_ref.shape, jnp.float32)
    accumulator_ref[...] = jnp.zeros(accumulator_ref.shape, jnp.float32)


def add(
    q: jax.Array,  # [rows, width]
    keys: jax.Array,  # [keys, width], all of it finite
    allowed: jax.Array,  # [rows, keys] bool
    scale: Any,
    top_ref: Any,
    total_ref: Any,
    accumulator_ref: Any,
) -> None:
    """Take one block of keys in; their leading columns are the values."""
    scores = jax.lax.dot_general(q, keys, _CONTRACT_LAST, preferred_element_type=jnp.float32)
    scores = jnp.where(allowed, scores * scale, SMALLEST)
    top = top_ref[...]
    new_top = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.where(allowed, jnp.exp(scores - new_top), 0.0)
    fade = jnp.exp(top - new_top)
    top_ref[...] = new_top
    total_ref[...] = total_ref[...] * fade + jnp.sum(weights, axis=1, keepdims=True)
    values = keys[:, : accumulator_ref.shape[1]]
    accumulator_ref[...] = accumulator_ref[...] * fade + jax.lax.dot_general(
        weights.astype(values.dtype), values, _MATMUL, preferred_element_type=jnp.float32
    )


def finish(
    top_ref: Any,
    total_ref: Any,
    accumulator_ref: Any,
    out_ref: Any,
    lse_ref: Any,
    value_scale: Any = None,
) -> None:
    """After the last block: write the weighted mean and the log of the denominator; 0 and SMALLEST without keys."""
    total = total_ref[...]
    empty = total == 0.0
    safe = jnp.where(empty, 1.0, total)
    mean = accumulator_ref[...] / safe
    if value_scale is not None:
        mean = mean * value_scale
    out_ref[0] = mean.astype(out_ref.dtype)
    lse_ref[0] = jnp.where(empty, SMALLEST, top_ref[...] + jnp.log(safe))
