"""Indexer, attention and merge of a context-parallel group, rank by rank: 1, 8 and 16 ranks come to the same.

The collectives are what a mesh would do (`all_gather` of scores and of log-sum-exps, a sum of latents), written out.
"""

from __future__ import annotations

import functools
from typing import Any

import index_keys
import jax
import jax.numpy as jnp
import numpy as np
import paged_latents
import pytest
from paged_latents import Batch

from coldstart_kernels import index_candidates, keep_winners, mla_attention, ownership
from coldstart_kernels.mla import cache as latent_cache
from coldstart_kernels.mla import merge
from coldstart_kernels.mla_indexer import cache as index_cache

# fp32 throughout, so that what differs is the order of sums. Padding at the end, a token that sees one position.
BATCH = Batch((4, 1, 3), (41, 1, 23), tokens=10, heads=4, own_heads=1, dtype="float32", page=8)
K, SCALE, INTERLEAVE, MOST = 12, 0.2, 4, 16


PAGES = -(-max(BATCH.kv_lengths) // BATCH.page)  # of any rank: one shape, so one compile for all

write_latents = jax.jit(latent_cache.write)
write_keys = jax.jit(index_cache.write)
merge_all = jax.jit(merge)


@functools.partial(jax.jit, static_argnames=("longest",))
def choose(
    q: jax.Array, weights: jax.Array, index: Any, limits: jax.Array, longest: int
) -> tuple[jax.Array, jax.Array]:
    return index_candidates(
        q, weights, index, limits, k=K, longest=longest, implementation="reference"
    )


@jax.jit
def part(
    q: jax.Array, latent: Any, limits: jax.Array, slots: jax.Array, gathered: Any, rank: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    chosen = keep_winners(slots, gathered, rank)
    out, lse = mla_attention(
        q[:, :1], q, latent, limits, chosen,
        branch="sparse", latent_width=BATCH.latent, scale=SCALE, implementation="reference",
    )  # fmt: skip
    return out, lse, (chosen >= 0).sum()


def share_of(
    batch: Batch, latents: paged_latents.Operands, keys: index_keys.Operands, ranks: int, rank: int
) -> tuple[Any, Any]:
    """The caches of one rank: its positions of every sequence, written into pages of its own."""
    count = len(batch.kv_lengths)
    table = jnp.arange(count * PAGES, dtype=jnp.int32).reshape(count, PAGES)[:, ::-1]
    sequences = np.repeat(np.arange(count), batch.kv_lengths).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in batch.kv_lengths]).astype(np.int32)
    mine = ownership.owner_of(positions, ranks, INTERLEAVE) == rank
    slots = np.where(mine, ownership.slot_of(positions, ranks, INTERLEAVE), -1).astype(np.int32)
    rows = latent_cache.empty_rows(count * PAGES, batch.page, "float32")
    latent = latents.cache._replace(rows=jnp.full_like(rows, jnp.nan), page_table=table)
    values = np.concatenate(latents.values).astype(np.float32)
    latent = write_latents(
        latent, values[:, : batch.latent], values[:, batch.latent :], sequences, slots
    )
    index = index_cache.IndexCache(
        jnp.full((count * PAGES, batch.page, index_keys.WIDTH), jnp.nan, jnp.float8_e4m3fn),
        jnp.zeros((count * PAGES, batch.page), jnp.int8), table, keys.cache.cu_q_lens,
    )  # fmt: skip
    stored = np.concatenate(keys.values).astype(np.float32)
    return latent, write_keys(index, stored, sequences, slots)


def attend(batch: Batch, ranks: int, longest: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Latents and log-sum-exp of all heads, and how many keys each rank had in all."""
    made, keys = paged_latents.operands(batch), index_keys.operands(batch)
    q = np.nan_to_num(made.q)  # padding's NaN is the other tests' matter
    shares = [share_of(batch, made, keys, ranks, rank) for rank in range(ranks)]
    limits = [
        np.asarray(ownership.own_limits(made.limits, rank, ranks, INTERLEAVE), np.int32)
        for rank in range(ranks)
    ]
    candidates = [
        choose(keys.q, keys.weights, index, own, longest=longest)
        for (_, index), own in zip(shares, limits, strict=True)
    ]
    # One shape for any number of ranks: those that aren't there have nothing.
    gathered = np.full((MOST, batch.tokens, K), -np.inf, np.float32)
    gathered[:ranks] = [scores for scores, _ in candidates]
    parts = [
        part(q, latent, limits[rank], candidates[rank][1], gathered, rank)
        for rank, (latent, _) in enumerate(shares)
    ]
    latents = np.zeros((MOST, *parts[0][0].shape), np.float32)
    lse = np.full(latents.shape[:-1], -np.inf, np.float32)
    latents[:ranks], lse[:ranks] = [p[0] for p in parts], [p[1] for p in parts]
    out, total = merge_all(latents, lse)
    return np.asarray(out), np.asarray(total), [int(p[2]) for p in parts]


@pytest.mark.parametrize("ranks", [8, 16])
def test_the_number_of_ranks_does_not_matter(ranks: int) -> None:
    alone, lse, counts = attend(BATCH, 1, longest=1000)
    together, merged, split = attend(BATCH, ranks, longest=1000)
    assert sum(split) == sum(counts) and max(split) < counts[0]
    # Two orders of fp32 sums of at most 12 weighted rows.
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(merged, lse, rtol=1e-6)
    assert alone[0].any() and not alone[8:].any()


@pytest.mark.long
def test_short_sequences_are_attended_to_whole_on_any_number_of_ranks() -> None:
    """`longest <= k`: nothing is scored on any rank, and all is kept: the dense branch's result."""
    short = Batch((2, 1, 1), (11, 4, 12), tokens=5, heads=4, own_heads=4, dtype="float32")
    alone, lse, _ = attend(short, 1, longest=12)
    together, merged, split = attend(short, 16, longest=12)
    made = paged_latents.operands(short)
    dense, dense_lse = mla_attention(
        jnp.nan_to_num(jnp.asarray(made.q)), jnp.asarray(made.q), made.cache,
        jnp.asarray(made.limits), branch="dense", latent_width=short.latent, scale=SCALE,
        implementation="reference",
    )  # fmt: skip
    for got, got_lse in ((alone, lse), (together, merged)):
        np.testing.assert_allclose(got, dense, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got_lse, dense_lse, rtol=1e-6)
    assert 0 in split  # 12 positions in runs of 4: most of 16 ranks hold none
