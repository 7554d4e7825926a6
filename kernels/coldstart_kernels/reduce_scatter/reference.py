"""Reduce-scatter in plain JAX: a sum in fp32, then everyone's own rows.

Takes the arguments that kernel.py takes, already validated by op.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def run(partial: jax.Array, *, axis: str) -> jax.Array:
    """Rows [tokens / devices, hidden] of the sum over the axis."""
    total = jax.lax.psum_scatter(partial.astype(jnp.float32), axis, scatter_dimension=0, tiled=True)
    return total.astype(partial.dtype)
