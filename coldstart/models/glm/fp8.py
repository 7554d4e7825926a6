"""FP8 weights in blocks with one fp32 scale each, and what multiplies by them.

Plain JAX: activations are rounded to FP8 with a scale per token and block of columns, as a served model does, and the
product runs in the type of the activations. A kernel would multiply the FP8 values themselves; the rounding to FP8 is
the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FP8 = jnp.float8_e4m3fn
LARGEST = 448.0
"""The largest finite FP8 value."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockFp8:
    """A quantised weight: the last two dimensions are cut into blocks."""

    values: Any  # [..., k, n] FP8
    scales: Any  # [..., ceil(k / block), ceil(n / block)] fp32
    block: int = dataclasses.field(metadata={"static": True})

    def dense(self, dtype: Any) -> jax.Array:
        """The weight in another type."""
        k, n = self.values.shape[-2:]
        scales = jnp.repeat(jnp.repeat(self.scales, self.block, -2), self.block, -1)[..., :k, :n]
        return self.values.astype(dtype) * scales.astype(dtype)


Weight = BlockFp8 | jax.Array
"""What a product takes: quantised, or plain."""


def quantise(weight: np.ndarray[Any, Any], block: int) -> BlockFp8:
    """A weight on the host, in FP8: each block's largest magnitude becomes the largest FP8 value."""
    *lead, k, n = weight.shape
    blocks_k, blocks_n = -(-k // block), -(-n // block)
    padding = [(0, 0)] * len(lead) + [(0, blocks_k * block - k), (0, blocks_n * block - n)]
    padded = np.pad(weight, padding).reshape(*lead, blocks_k, block, blocks_n, block)
    largest = np.abs(padded).max(axis=(-3, -1), keepdims=True)
    scales = np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)
    values = (padded / scales).reshape(*lead, blocks_k * block, blocks_n * block)[..., :k, :n]
    return BlockFp8(values.astype(FP8), scales.reshape(*lead, blocks_k, blocks_n), block)


def round_activations(x: jax.Array, block: int) -> jax.Array:
    """x as FP8 with a scale per row and block of columns would hold it, in its own type."""
    columns = x.shape[-1]
    missing = -columns % block
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
    pieces = padded.reshape(*x.shape[:-1], -1, block).astype(jnp.float32)
    largest = jnp.max(jnp.abs(pieces), axis=-1, keepdims=True)
    scales = jnp.where(largest > 0, largest / LARGEST, 1.0)
    rounded = (pieces / scales).astype(FP8).astype(jnp.float32) * scales
    return rounded.reshape(*x.shape[:-1], -1)[..., :columns].astype(x.dtype)


def product(x: jax.Array, weight: Weight, *, rounded: bool = True) -> jax.Array:
    """x [tokens, k] times weight [k, n], summed in fp32, in the type of x.

    With a quantised weight x is rounded to FP8 too, unless `rounded` is false.
    """
    if isinstance(weight, BlockFp8):
        x = round_activations(x, weight.block) if rounded else x
        weight = weight.dense(x.dtype)
    return jnp.dot(x, weight, preferred_element_type=jnp.float32).astype(x.dtype)
