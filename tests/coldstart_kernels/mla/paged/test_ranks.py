"""Indexer, attention and merge of a context-parallel group, rank by rank: 1, 8 and 16 ranks come to the same.

The collectives are what a mesh would do (`all_gather` of scores and of log-sum-exps, a sum of latents), written out.
"""

from __future__ import annotations

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
K, SCALE, INTERLEAVE = 12, 0.2, 4


def share_of(ranks: int, rank: int) -> tuple[Any, Any]:
    """The caches of one rank: its positions of every sequence, written into pages of its own."""
    latents, keys = paged_latents.operands(BATCH), index_keys.operands(BATCH)
    longest = -(-max(BATCH.kv_lengths) // ranks) + INTERLEAVE
    pages = -(-longest // BATCH.page)
    table = jnp.arange(3 * pages, dtype=jnp.int32).reshape(3, pages)[:, ::-1]
    sequences = np.repeat(np.arange(3), BATCH.kv_lengths).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in BATCH.kv_lengths]).astype(np.int32)
    mine = ownership.owner_of(positions, ranks, INTERLEAVE) == rank
    slots = np.where(mine, ownership.slot_of(positions, ranks, INTERLEAVE), -1).astype(np.int32)
    rows = latent_cache.empty_rows(3 * pages, BATCH.page, "float32")
    latent = latents.cache._replace(rows=jnp.full_like(rows, jnp.nan), page_table=table)
    values = np.concatenate(latents.values).astype(np.float32)
    latent = jax.jit(latent_cache.write)(
        latent, values[:, : BATCH.latent], values[:, BATCH.latent :], sequences, slots
    )
    stored = np.concatenate(keys.values).astype(np.float32)
    index = index_cache.IndexCache(
        jnp.full((3 * pages, BATCH.page, index_keys.WIDTH), jnp.nan, jnp.float8_e4m3fn),
        jnp.zeros((3 * pages, BATCH.page), jnp.int8), table, keys.cache.cu_q_lens,
    )  # fmt: skip
    return latent, jax.jit(index_cache.write)(index, stored, sequences, slots)


def attend(ranks: int, longest: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Latents and log-sum-exp of all heads, and how many keys each rank had in all."""
    made, keys = paged_latents.operands(BATCH), index_keys.operands(BATCH)
    q = np.nan_to_num(made.q)  # padding's NaN is the other tests' matter

    @jax.jit
    def choose(index: Any, limits: jax.Array) -> tuple[jax.Array, jax.Array]:
        return index_candidates(
            keys.q, keys.weights, index, limits,
            k=K, longest=longest, implementation="reference",
        )  # fmt: skip

    @jax.jit
    def part(
        latent: Any, limits: jax.Array, slots: jax.Array, gathered: jax.Array, rank: int
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        chosen = keep_winners(slots, gathered, rank)
        out, lse = mla_attention(
            q[:, :1], q, latent, limits, chosen,
            branch="sparse", latent_width=BATCH.latent, scale=SCALE, implementation="reference",
        )  # fmt: skip
        return out, lse, (chosen >= 0).sum()

    shares = [share_of(ranks, rank) for rank in range(ranks)]
    limits = [
        np.asarray(ownership.own_limits(made.limits, rank, ranks, INTERLEAVE), np.int32)
        for rank in range(ranks)
    ]
    candidates = [choose(index, own) for (_, index), own in zip(shares, limits, strict=True)]
    gathered = jnp.stack([scores for scores, _ in candidates])
    parts = [
        part(latent, limits[rank], candidates[rank][1], gathered, rank)
        for rank, (latent, _) in enumerate(shares)
    ]
    out, lse = jax.jit(merge)(jnp.stack([p[0] for p in parts]), jnp.stack([p[1] for p in parts]))
    return np.asarray(out), np.asarray(lse), [int(p[2]) for p in parts]


@pytest.mark.parametrize("ranks", [8, pytest.param(16, marks=pytest.mark.long)])
def test_the_number_of_ranks_does_not_matter(ranks: int) -> None:
    alone, lse, counts = attend(1, longest=1000)
    together, merged, split = attend(ranks, longest=1000)
    assert sum(split) == sum(counts) and max(split) < counts[0]
    # Two orders of fp32 sums of at most 12 weighted rows.
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(merged, lse, rtol=1e-6)
    assert alone[0].any() and not alone[8:].any()


@pytest.mark.long
def test_short_sequences_are_attended_to_whole_on_any_number_of_ranks() -> None:
    """`longest <= k`: nothing is scored on any rank, and all is kept: the dense branch's result."""
    short = Batch((2, 1, 1), (11, 4, 12), tokens=5, heads=4, own_heads=4, dtype="float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "BATCH", short)
        alone, lse, _ = attend(1, longest=12)
        together, merged, split = attend(16, longest=12)
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
