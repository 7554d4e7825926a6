"""Tokens of several sequences in one array: `cu_q_lens` [sequences + 1] int32 holds where each begins.

Sequence s has tokens cu_q_lens[s] to cu_q_lens[s + 1] - 1; tokens from cu_q_lens[-1] on are padding. A kernel that
shares a list of keys among a block of tokens needs blocks that lie within one sequence: `token_blocks` cuts them, in
shapes that don't depend on the lengths.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


def sequence_of(cu_q_lens: jax.Array, tokens: int) -> jax.Array:
    """Each token's sequence [tokens] int32, -1 for padding."""
    ids = jnp.arange(tokens, dtype=jnp.int32)
    found = jnp.searchsorted(cu_q_lens, ids, side="right").astype(jnp.int32) - 1
    return jnp.where(ids < cu_q_lens[-1], found, -1)


def causal_limits(cu_q_lens: jax.Array, kv_lens: jax.Array, tokens: int) -> jax.Array:
    """How many leading positions each token may see [tokens] int32: itself and all before it; 0 for padding.

    Args:
        kv_lens: length of each sequence [sequences] int32, its new tokens included.
    """
    sequence = sequence_of(cu_q_lens, tokens)
    safe = jnp.maximum(sequence, 0)
    after = cu_q_lens[safe + 1] - 1 - jnp.arange(tokens, dtype=jnp.int32)
    return jnp.where(sequence >= 0, kv_lens[safe] - after, 0).astype(jnp.int32)


class TokenBlocks(NamedTuple):
    """Blocks of tokens, each within one sequence."""

    sequence: jax.Array
    """[blocks] int32; 0 for blocks that hold no token."""
    tokens: jax.Array
    """[blocks, block] int32: which token stands in each place, -1 for none."""
    place: jax.Array
    """[tokens] int32: where each token stands in the flattened blocks; one past the end for padding."""


def token_blocks(cu_q_lens: jax.Array, tokens: int, block: int) -> TokenBlocks:
    """Cut each sequence into blocks of `block` tokens, the last one shorter."""
    sequences = cu_q_lens.shape[0] - 1
    # The sum of ceil(length / block) is at most tokens / block + sequences, and every block holds a token.
    blocks = min(tokens, tokens // block + sequences)
    lengths = cu_q_lens[1:] - cu_q_lens[:-1]
    ends = jnp.cumsum((lengths + block - 1) // block).astype(jnp.int32)
    starts = ends - (lengths + block - 1) // block
    ids = jnp.arange(blocks, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, ids, side="right").astype(jnp.int32)
    live = owner < sequences
    owner = jnp.where(live, owner, 0)
    first = cu_q_lens[owner] + (ids - starts[owner]) * block
    held = first[:, None] + jnp.arange(block, dtype=jnp.int32)
    held = jnp.where(live[:, None] & (held < cu_q_lens[owner + 1][:, None]), held, -1)
    sequence = sequence_of(cu_q_lens, tokens)
    safe = jnp.maximum(sequence, 0)
    row = jnp.arange(tokens, dtype=jnp.int32) - cu_q_lens[safe]
    place = (starts[safe] + row // block) * block + row % block
    return TokenBlocks(owner, held, jnp.where(sequence >= 0, place, blocks * block))


def into_blocks(values: jax.Array, blocks: TokenBlocks, fill: float = 0) -> jax.Array:
    """[tokens, ...] to [blocks, block, ...]; places without a token get `fill`."""
    held = blocks.tokens
    taken = jnp.take(values, jnp.maximum(held, 0), axis=0)
    kept = (held >= 0).reshape(*held.shape, *(1 for _ in values.shape[1:]))
    return jnp.where(kept, taken, jnp.asarray(fill, values.dtype))


def out_of_blocks(values: jax.Array, blocks: TokenBlocks, fill: float = 0) -> jax.Array:
    """[blocks, block, ...] to [tokens, ...]; padding gets `fill`."""
    flat = values.reshape(-1, *values.shape[2:])
    return jnp.take(flat, blocks.place, axis=0, mode="fill", fill_value=fill)
