"""FP8 (e4m3) values with one scale per block, as the checkpoints have them: value = quantised * scale.

Weights come with scales of 128 x 128 blocks, or of whole output channels. Activations are quantised on the fly,
each row by blocks of its own.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

FP8 = jnp.float8_e4m3fn
LARGEST = 448.0
"""The largest finite e4m3 value: the largest magnitude of a block is scaled to it."""

_PER_LARGEST = 1 / LARGEST

CHECKPOINT_BLOCK = 128


def block_scale(largest: jax.Array, scale_dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Scale of a block whose largest magnitude this is, in `scale_dtype`, and its reciprocal in fp32.

    The reciprocal of 0 is 0: a block of zeros stays one. A scale below the smallest normal number counts as 0,
    as it does on a TPU, where such numbers are flushed; its reciprocal would overflow.
    """
    # A product, because compilers turn a division by a constant into one, and not all of them do.
    scale = (largest.astype(jnp.float32) * _PER_LARGEST).astype(scale_dtype)
    wide = scale.astype(jnp.float32)
    vanishes = wide < float(jnp.finfo(jnp.float32).tiny)
    reciprocal = jnp.where(vanishes, 0.0, 1.0 / jnp.where(vanishes, 1.0, wide))
    return jnp.where(vanishes, jnp.zeros_like(scale), scale), reciprocal


def to_fp8(x: jax.Array, reciprocal: jax.Array) -> jax.Array:
    """Scaled and rounded. Clipped first: a scale that was rounded down takes the largest above 448, and
    e4m3 has no infinity: what overflows becomes NaN."""
    return jnp.clip(x.astype(jnp.float32) * reciprocal, -LARGEST, LARGEST).astype(FP8)


def quantize_blocks(
    x: jax.Array,  # [rows, width]
    block: int = CHECKPOINT_BLOCK,
    scale_dtype: Any = jnp.float32,
) -> tuple[jax.Array, jax.Array]:
    """Quantise each row by blocks of columns.

    Returns:
        Values e4m3 [rows, width] and scales fp32 [rows, width / block], rounded to `scale_dtype` on the way.

    Raises:
        ValueError: the block doesn't divide the width.
    """
    rows, width = x.shape
    if block < 1 or width % block:
        raise ValueError(f"blocks of {block} don't divide x {x.shape}")
    blocks = x.reshape(rows, width // block, block)
    scale, reciprocal = block_scale(jnp.max(jnp.abs(blocks), axis=-1), scale_dtype)
    return to_fp8(blocks, reciprocal[..., None]).reshape(x.shape), scale.astype(jnp.float32)


def spread(scales: jax.Array, axis: int, size: int) -> jax.Array:
    """Repeat scales along an axis until it has `size` entries; it must divide."""
    return jnp.repeat(scales, size // scales.shape[axis], axis=axis)
