"""Which positions each token attends to: the one public function.

score(t, s) = scale(s) * sum over heads of weight(t) * max(0, q(t) . key(s)), in fp32, and minus infinity for positions
that token t may not see. The best `k` are found, or, where no sequence is longer than `k`, all of them, unscored.

Scores are [tokens, positions] fp32, so long steps go through in runs of token blocks that keep them within
`SCORE_BYTES`: at 4096 tokens by 131 072 own positions all at once would be 2.1 GB, and 256 MiB are 512 tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device, ragged
from coldstart_kernels.mla_indexer import kernel, reference
from coldstart_kernels.mla_indexer.cache import IndexCache
from coldstart_kernels.mla_indexer.tuning import TuningKey, TuningParams, heuristic
from coldstart_kernels.mla_indexer.winners import best, everything

SCORE_BYTES = 256 << 20
"""Room for the scores that exist at a time."""

_IMPLEMENTATIONS = ("reference", "pallas")


def index_candidates(
    q: jax.Array,  # [tokens, index heads, index width] float8_e4m3fn
    weights: jax.Array,  # [tokens, index heads] fp32
    cache: IndexCache,
    limits: jax.Array,  # [tokens] int32
    *,
    k: int,
    longest: jax.Array | int,
    implementation: str | None = None,
    tuning: TuningParams | None = None,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> tuple[jax.Array, jax.Array]:
    """The best `k` positions of each token.

    Args:
        weights: of each head, with the queries' scales and every factor of the score multiplied in.
        limits: how many leading positions each token may see; under context parallelism, of those that this
            rank holds (`ownership.own_limits`).
        longest: length of the longest sequence, over all ranks. It is asked for and not taken from `limits`,
            because under context parallelism all ranks have to agree whether anything is scored.
        implementation: "reference", "pallas", or None to pick by the default backend.

    Returns:
        scores [tokens, k] fp32 in falling order, and positions [tokens, k] int32. Lists that are shorter end in
        minus infinity and -1. Of equal scores the lower position comes first. Where `longest <= k` the scores are 0 and
        the positions 0, 1, 2, …

    Raises:
        ValueError: shapes, types or names that don't go together; the message prints them.
    """
    _check(q, weights, cache, limits, k)
    if implementation is None:
        implementation = device.default_implementation()
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {_IMPLEMENTATIONS}")
    tokens, heads, width = q.shape
    key = TuningKey(
        heads=heads,
        width=width,
        page=cache.keys.shape[1],
        tokens=tokens,
        sequences=cache.page_table.shape[0],
        device_kind=device_kind,
    )
    params = heuristic(key) if tuning is None else tuning
    params.check(key)
    score: Callable[..., jax.Array] = reference.score
    if implementation == "pallas":
        score = functools.partial(kernel.score, interpret=interpret)
    seen = jnp.where(ragged.sequence_of(cache.cu_q_lens, tokens) >= 0, limits, 0)
    return jax.lax.cond(
        jnp.asarray(longest) <= k,
        lambda: _everything(cache, seen, k),
        lambda: _by_runs(score, q, weights, cache, seen, k, params.block_tokens),
    )


def _everything(cache: IndexCache, limits: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    positions = cache.page_table.shape[1] * cache.keys.shape[1]
    return everything(jnp.minimum(limits, positions), k)


def _by_runs(
    score: Callable[..., jax.Array],
    q: jax.Array,
    weights: jax.Array,
    cache: IndexCache,
    limits: jax.Array,
    k: int,
    block: int,
) -> tuple[jax.Array, jax.Array]:
    """Score and choose for as many blocks at a time as `SCORE_BYTES` has room for, one run after the other."""
    tokens = q.shape[0]
    blocks = ragged.token_blocks(cache.cu_q_lens, tokens, block)
    positions = cache.page_table.shape[1] * cache.keys.shape[1]
    count = blocks.sequence.shape[0]
    run = min(count, max(1, SCORE_BYTES // (block * positions * 4)))
    cut = (
        ragged.into_blocks(q, blocks),
        ragged.into_blocks(weights, blocks),
        ragged.into_blocks(limits, blocks),
        blocks.sequence,
    )

    def one(part: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        return best(score(*part, cache), k)

    if run >= count:
        made = one(cut)
    else:
        missing = -count % run
        padded = [jnp.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1)) for a in cut]
        runs = tuple(a.reshape(-1, run, *a.shape[1:]) for a in padded)
        made = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:count], jax.lax.map(one, runs))
    return (
        ragged.out_of_blocks(made[0], blocks, -jnp.inf),
        ragged.out_of_blocks(made[1], blocks, -1),
    )


def _check(q: jax.Array, weights: jax.Array, cache: IndexCache, limits: jax.Array, k: int) -> None:
    keys, exponents, table, starts = cache
    shapes = (
        f"q {q.shape}, weights {weights.shape}, keys {keys.shape}, exponents {exponents.shape}, "
        f"page_table {table.shape}, cu_q_lens {starts.shape}, limits {limits.shape}"
    )
    if (
        q.ndim != 3
        or keys.ndim != 3
        or table.ndim != 2
        or 0 in (*q.shape, *keys.shape, *table.shape)
    ):
        raise ValueError(f"q and keys need three dimensions, page_table two, none empty: {shapes}")
    if weights.shape != q.shape[:2] or limits.shape != q.shape[:1]:
        raise ValueError(f"q, weights and limits differ in tokens or heads: {shapes}")
    if keys.shape[2] != q.shape[2] or exponents.shape != keys.shape[:2]:
        raise ValueError(f"q, keys and exponents don't go together: {shapes}")
    if starts.shape != (table.shape[0] + 1,):
        raise ValueError(f"cu_q_lens needs one more than the sequences: {shapes}")
    for name, array, dtype in (
        ("q", q, "float8_e4m3fn"),
        ("weights", weights, "float32"),
        ("keys", keys, "float8_e4m3fn"),
        ("exponents", exponents, "int8"),
        ("page_table", table, "int32"),
        ("cu_q_lens", starts, "int32"),
        ("limits", limits, "int32"),
    ):
        if array.dtype != jnp.dtype(dtype):
            raise ValueError(f"{name} needs {dtype}, got {array.dtype}")
    if k <= 0:
        raise ValueError(f"k {k} is not positive")
