"""Rows in expert order: where each (token, choice) goes, how many each expert gets, and the way back.

Rows that belong to no local expert come last, in their old order, so nobody needs to sort by validity again.
Both paths give the same bits: a stable argsort by local expert, its inverse, and the counts.

    base     two stable argsorts and a sum of one-hot rows
    packed   one unstable sort of `expert << index_bits | index`, whose low bits break ties by index, and a
             counting sort that needs no sort at all for the inverse and the counts
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

COUNTING_BLOCK = 512
"""Rows whose earlier equals are counted by one matmul; also the most buckets that this form takes."""

_PACKED_BITS = 31
"""Key and index together stay below this: the packed value is a non-negative int32."""


class Permutation(NamedTuple):
    """How `rows` = tokens * chosen rows are ordered by local expert."""

    order: jax.Array  # [rows] int32
    """Which (token, choice) stands at each place: token * chosen + choice."""
    inverse: jax.Array  # [rows] int32
    """At which place each (token, choice) stands."""
    group_sizes: jax.Array  # [local experts] int32
    """Rows of each local expert. What comes after their sum belongs to no local expert."""


def moe_permute(
    ids: jax.Array,  # [tokens, chosen] or [rows] int32
    *,
    local_experts: int,
    experts_start: jax.Array | int = 0,  # [] int32
    packed: bool = False,
) -> Permutation:
    """Order rows by local expert.

    Args:
        ids: chosen experts by their global number. Any other number, -1 for padding, is no local expert.
        local_experts: how many experts live here.
        experts_start: global number of the first one. Pass an operand of the program, not a constant: a
            constant makes the programs of ranks differ.
        packed: one packed sort (the switch `MOE_PACKED_SORT`) where expert and index fit 31 bits, else the
            base path.

    Raises:
        ValueError: shapes or types that don't go together.
    """
    if ids.ndim not in (1, 2) or ids.size == 0 or ids.dtype != jnp.int32:
        raise ValueError(
            f"ids need [tokens, chosen] or [rows] int32, not empty: {ids.shape} {ids.dtype}"
        )
    if local_experts < 1:
        raise ValueError(f"local_experts {local_experts} is not positive")
    keys = local_keys(ids.reshape(-1), experts_start, local_experts)
    if packed and packs(local_experts, keys.shape[0]):
        return _by_packed_sort(keys, local_experts)
    return _by_stable_sorts(keys, local_experts)


def moe_dispatch(x: jax.Array, permutation: Permutation) -> jax.Array:
    """Tokens [tokens, width] to rows in expert order [tokens * chosen, width]."""
    chosen = _chosen(x.shape[0], permutation)
    return x[permutation.order // chosen]


def moe_combine(
    rows: jax.Array,  # [tokens * chosen, width] in expert order
    permutation: Permutation,
    weights: jax.Array,  # [tokens, chosen] fp32
) -> jax.Array:
    """Weighted sum of each token's rows [tokens, width], in fp32, in the type of the rows.

    Rows that belong to no local expert may hold anything: they are zeroed before they meet a weight, because
    0 * NaN is NaN.

    Raises:
        ValueError: tokens that the rows are no multiple of.
    """
    chosen = _chosen(weights.shape[0], permutation)
    if weights.shape[1:] != (chosen,) or rows.shape[0] != permutation.order.shape[0]:
        raise ValueError(
            f"rows {rows.shape}, weights {weights.shape}, order {permutation.order.shape}: "
            "rows need tokens * chosen"
        )
    live = permutation.inverse < jnp.sum(permutation.group_sizes)
    own = jnp.where(live[:, None], rows[permutation.inverse], jnp.zeros((), rows.dtype))
    own = own.reshape(*weights.shape, rows.shape[1]).astype(jnp.float32)
    return jnp.sum(own * weights[..., None], axis=1).astype(rows.dtype)


def packs(local_experts: int, rows: int) -> bool:
    """Whether expert and row index fit the packed value."""
    return (local_experts + 1).bit_length() + (rows - 1).bit_length() < _PACKED_BITS


def local_keys(ids: jax.Array, experts_start: jax.Array | int, local_experts: int) -> jax.Array:
    """Local expert of each row; `local_experts` where it is none of ours."""
    local = ids - experts_start
    return jnp.where((local >= 0) & (local < local_experts), local, local_experts)


def positions_and_counts(
    keys: jax.Array,  # [rows] int32 in [0, buckets)
    buckets: int,
) -> tuple[jax.Array, jax.Array]:
    """Place of each row in the stable order by key [rows], and rows per key [buckets], without a sort.

    Place = start of the row's key + number of earlier rows with that key. Earlier rows are counted within blocks
    of 512 by a strictly lower triangular matrix of ones times the one-hot rows, plus the totals of the
    blocks before. With more buckets than a block has rows, that form met a compiler fault elsewhere: those get
    a plain cumulative sum.
    """
    if buckets > COUNTING_BLOCK:
        hot = (keys[:, None] == jnp.arange(buckets, dtype=jnp.int32)).astype(jnp.int32)
        seen = jnp.cumsum(hot, axis=0, dtype=jnp.int32)
        counts = seen[-1]
        starts = jnp.cumsum(counts, dtype=jnp.int32) - counts
        return jnp.sum(hot * (seen - 1 + starts), axis=1, dtype=jnp.int32), counts

    rows = keys.shape[0]
    # Padding rows get a key that is no bucket: an all-zero row.
    padded = jnp.pad(keys, (0, -rows % COUNTING_BLOCK), constant_values=buckets)
    blocks = padded.reshape(-1, COUNTING_BLOCK)
    hot = blocks[..., None] == jnp.arange(buckets, dtype=jnp.int32)
    before = jnp.tril(jnp.ones((COUNTING_BLOCK, COUNTING_BLOCK), jnp.bfloat16), -1)
    # Zeros and ones in bf16, sums of at most 511 of them in fp32: exact.
    earlier = jnp.einsum(
        "ij,njb->nib", before, hot.astype(jnp.bfloat16), preferred_element_type=jnp.float32
    ).astype(jnp.int32)
    in_block = jnp.sum(hot, axis=1, dtype=jnp.int32)
    counts = jnp.sum(in_block, axis=0, dtype=jnp.int32)
    starts = jnp.cumsum(counts, dtype=jnp.int32) - counts
    block_starts = starts + jnp.cumsum(in_block, axis=0, dtype=jnp.int32) - in_block
    places = jnp.where(hot, earlier + block_starts[:, None, :], 0)
    return jnp.sum(places, axis=2, dtype=jnp.int32).reshape(-1)[:rows], counts


def _by_stable_sorts(keys: jax.Array, local_experts: int) -> Permutation:
    order = jnp.argsort(keys, stable=True).astype(jnp.int32)
    inverse = jnp.argsort(order, stable=True).astype(jnp.int32)
    hot = keys[:, None] == jnp.arange(local_experts, dtype=jnp.int32)
    return Permutation(order, inverse, jnp.sum(hot, axis=0, dtype=jnp.int32))


def _by_packed_sort(keys: jax.Array, local_experts: int) -> Permutation:
    rows = keys.shape[0]
    index_bits = (rows - 1).bit_length()
    packed = (keys << index_bits) | jnp.arange(rows, dtype=jnp.int32)
    order = jax.lax.sort(packed, is_stable=False) & ((1 << index_bits) - 1)
    inverse, counts = positions_and_counts(keys, local_experts + 1)
    return Permutation(order, inverse, counts[:local_experts])


def _chosen(tokens: int, permutation: Permutation) -> int:
    rows = permutation.order.shape[0]
    if tokens == 0 or rows % tokens:
        raise ValueError(f"{rows} rows are no multiple of {tokens} tokens")
    return rows // tokens
