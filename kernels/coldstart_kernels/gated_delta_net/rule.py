"""The gated delta rule for one value head, in the forms that the kernel is made of.

Pure functions of two-dimensional fp32 values, so that they run inside a Pallas kernel and outside. A state is
[key_dim, value_dim]. Per token, with log-decay g <= 0 and strength beta:

    S <- e^g S;   u = beta (v - S'k);   S <- S + k u';   o = S'q

`token_step` is that, reading the state once. `chunk_step` does a whole chunk: the tokens' mutual corrections
are a unit lower-triangular system, solved by forward substitution over 16 x 16 blocks. Matrix products are
at HIGHEST precision: a TPU's default rounds fp32 operands to bf16.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK = 16
"""Rows of one block of the forward substitution; a chunk is a multiple of it."""

_EPSILON = 1e-6
_NEVER = -1e30
"""Exponent of what lies above the diagonal. Masked before exp: after it, inf * 0 would be NaN."""

_MATMUL = (((1,), (0,)), ((), ()))
_CONTRACT_LAST = (((1,), (1,)), ((), ()))
_CONTRACT_FIRST = (((0,), (0,)), ((), ()))


def dot(x: jax.Array, y: jax.Array, dimensions: tuple = _MATMUL) -> jax.Array:
    """A product of fp32 matrices in fp32."""
    return jax.lax.dot_general(
        x, y, dimensions, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def normalize(x: jax.Array) -> jax.Array:
    """Rows of length one, but for the epsilon under the root."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _EPSILON)


def silu(x: jax.Array) -> jax.Array:
    return x * jax.lax.logistic(x)


def gates(
    a: jax.Array, b: jax.Array, a_log: jax.Array, dt_bias: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-decay g (<= 0) and strength beta; the parameters broadcast against a and b."""
    x = a + dt_bias
    softplus = jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))
    return -jnp.exp(a_log) * softplus, jax.lax.logistic(b)


def token_step(
    q_column: jax.Array,  # [key_dim, 1], normalized and scaled
    k_column: jax.Array,  # [key_dim, 1], normalized
    v: jax.Array,  # [1, value_dim]
    decay: jax.Array,  # e^g, broadcasts against v
    beta: jax.Array,  # broadcasts against v
    qk: jax.Array,  # [1, 1], q . k
    state: jax.Array,  # [key_dim, value_dim]
) -> tuple[jax.Array, jax.Array]:
    """One token: its output [1, value_dim] and the new state. No matrix unit: fp32 throughout."""
    decayed = state * decay
    seen = jnp.sum(decayed * k_column, axis=0, keepdims=True)
    asked = jnp.sum(decayed * q_column, axis=0, keepdims=True)
    u = beta * (v - seen)
    return asked + qk * u, decayed + k_column * u


def chunk_products(q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    """k k' and q k' [chunk, chunk]: shared by the value heads of one key head."""
    return dot(k, k, _CONTRACT_LAST), dot(q, k, _CONTRACT_LAST)


def chunk_step(
    q: jax.Array,  # [chunk, key_dim], normalized and scaled; padding rows are zero
    k: jax.Array,  # [chunk, key_dim], normalized; padding rows are zero
    v: jax.Array,  # [chunk, value_dim]; padding rows are zero
    kk: jax.Array,  # [chunk, chunk]
    qk: jax.Array,  # [chunk, chunk]
    g: jax.Array,  # [1, chunk]; padding is 0
    beta: jax.Array,  # [1, chunk]; padding is 0
    state: jax.Array,  # [key_dim, value_dim]
) -> tuple[jax.Array, jax.Array]:
    """A chunk of tokens: their outputs [chunk, value_dim] and the new state."""
    chunk = q.shape[0]
    row = jax.lax.broadcasted_iota(jnp.int32, (chunk, chunk), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (chunk, chunk), 1)
    # Sums of g over the tokens up to i, after i, and from j+1 to i. All have one sign: the difference of two
    # running sums would lose what a steep decay has left.
    until = jnp.where(row >= column, g, 0.0)
    total = jnp.sum(until, axis=1, keepdims=True)
    rest = jnp.sum(jnp.where(row < column, g, 0.0), axis=1, keepdims=True)
    between = dot(until, (row > column).astype(jnp.float32))
    end = jnp.sum(g, axis=1, keepdims=True)
    beta = jnp.sum(jnp.where(row == column, beta, 0.0), axis=1, keepdims=True)

    decay = jnp.exp(jnp.where(row >= column, between, _NEVER))
    corrections = jnp.where(row > column, beta * decay * kk, 0.0)
    faded = jnp.exp(total)
    right = jnp.concatenate([beta * v, beta * faded * k], axis=1)
    solved = solve(corrections, right)
    u = solved[:, : v.shape[1]] - dot(solved[:, v.shape[1] :], state)
    out = dot(q * faded, state) + dot(qk * decay, u)
    new_state = jnp.exp(end) * state + dot(k * jnp.exp(rest), u, _CONTRACT_FIRST)
    return out, new_state


def solve(strict: jax.Array, right: jax.Array) -> jax.Array:
    """x with (I + strict) x = right, strict [n, n] strictly lower, by forward substitution over blocks."""
    size = strict.shape[0]
    starts = range(0, size, BLOCK)
    inverses = _inverse_blocks(
        jnp.stack([strict[at : at + BLOCK, at : at + BLOCK] for at in starts])
    )
    done: list[jax.Array] = []
    for index, at in enumerate(starts):
        rest = right[at : at + BLOCK]
        if at:
            rest = rest - dot(strict[at : at + BLOCK, :at], jnp.concatenate(done, axis=0))
        done.append(dot(inverses[index], rest))
    return jnp.concatenate(done, axis=0)


def _inverse_blocks(strict: jax.Array) -> jax.Array:
    """(I + strict)^-1 of [blocks, 16, 16], row by row.

    Squaring (Newton-Schulz) takes fewer steps, but its powers grow where keys repeat, and cancel badly.
    """
    size = strict.shape[-1]
    row = jax.lax.broadcasted_iota(jnp.int32, strict.shape, 1)
    column = jax.lax.broadcasted_iota(jnp.int32, strict.shape, 2)
    inverse = (row == column).astype(jnp.float32)
    for j in range(size - 1):
        inverse = inverse - strict[:, :, j : j + 1] * inverse[:, j : j + 1, :]
    return inverse
