"""Norms, turns by position and the plain MLP, as one device sees them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from coldstart.models.glm.fp8 import Weight, product


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Scale each row to unit mean square, in fp32."""
    wide = x.astype(jnp.float32)
    norm = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * norm).astype(x.dtype) * weight


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Each row to mean 0 and variance 1, in fp32."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    norm = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return (centred * norm).astype(x.dtype) * weight + bias


def _angles(positions: jax.Array, pairs: int, theta: float, dimensions: int) -> jax.Array:
    """[tokens, 1 ..., pairs] fp32, to fit an array of so many dimensions."""
    frequency = (theta ** (-np.arange(pairs, dtype=np.float64) / pairs)).astype(np.float32)
    angle = positions.astype(jnp.float32)[:, None] * frequency
    return angle.reshape(angle.shape[0], *([1] * (dimensions - 2)), pairs)


def rotate_pairs(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """RoPE on neighbouring pairs of the last dimension; x [tokens, ..., width]."""
    angle = _angles(positions, x.shape[-1] // 2, theta, x.ndim)
    even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


def rotate_halves(x: jax.Array, positions: jax.Array, theta: float, width: int) -> jax.Array:
    """RoPE on the first `width` dimensions, each of their first half paired with one of the second."""
    angle = _angles(positions, width // 2, theta, x.ndim)
    first = x[..., : width // 2].astype(jnp.float32)
    second = x[..., width // 2 : width].astype(jnp.float32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate([*(part.astype(x.dtype) for part in turned), x[..., width:]], axis=-1)


def gated_mlp(x: jax.Array, gate: Weight, up: Weight, down: Weight) -> jax.Array:
    """SiLU-gated MLP over this device's columns: its part of a sum."""
    return product(jax.nn.silu(product(x, gate)) * product(x, up), down)
