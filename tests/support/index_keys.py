"""Paged index keys built by hand, from their documented layout, and their scores one number at a time in fp64."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import paged_latents
from paged_latents import FLOAT8, Batch

from coldstart_kernels import IndexCache

Array = np.ndarray[Any, Any]
HEADS, WIDTH = 4, 32


class Operands(NamedTuple):
    """What `index_candidates` takes, and the keys that the cache stands for."""

    q: Array  # [tokens, heads, width]
    weights: Array
    cache: IndexCache
    limits: Array
    values: list[Array]  # per sequence [positions, width] fp64


def operands(batch: Batch, seed: int = 8) -> Operands:
    """Random operands; slots that no sequence uses hold NaN and a large exponent."""
    rng = np.random.default_rng(seed)
    table, pages = paged_latents.page_table(batch, rng)
    keys = np.full((pages, batch.page, WIDTH), np.nan, FLOAT8)
    exponents = np.full((pages, batch.page), 77, np.int8)
    values = []
    for sequence, length in enumerate(batch.kv_lengths):
        codes = (rng.standard_normal((length, WIDTH)) * 20).astype(np.float32).astype(FLOAT8)
        powers = rng.integers(-8, -3, length).astype(np.int8)
        for position in range(length):
            page, slot = table[sequence, position // batch.page], position % batch.page
            keys[page, slot], exponents[page, slot] = codes[position], powers[position]
        values.append(codes.astype(np.float64) * np.exp2(powers.astype(np.float64))[:, None])
    return Operands(
        rng.standard_normal((batch.tokens, HEADS, WIDTH)).astype(np.float32).astype(FLOAT8),
        rng.standard_normal((batch.tokens, HEADS)).astype(np.float32),
        IndexCache(*map(jnp.asarray, (keys, exponents, table, batch.starts))),
        paged_latents.limits_of(batch),
        values,
    )


def score(batch: Batch, made: Operands) -> list[Array]:
    """Of each token that isn't padding, the scores of the positions that it sees, in double precision."""
    found = []
    for t in range(int(batch.starts[-1])):
        keys = made.values[int(np.searchsorted(batch.starts, t, side="right")) - 1]
        scores = np.zeros(made.limits[t])
        for s in range(made.limits[t]):
            for h in range(HEADS):
                dot = made.q[t, h].astype(np.float64) @ keys[s]
                scores[s] += float(made.weights[t, h]) * max(0.0, dot)
        found.append(scores)
    return found


def same_choice(scores: Array, positions: Array, wanted: list[Array], k: int) -> None:
    """Each token has the best `k`, best first, and padding has none."""
    for t, exact in enumerate(wanted):
        order = np.argsort(-exact, kind="stable")[:k]
        assert list(positions[t]) == [*order, *([-1] * (k - len(order)))], t
        # fp32 sums of 32 exact products and 4 heads, which may cancel.
        np.testing.assert_allclose(
            scores[t, : len(order)], exact[order], rtol=1e-5, atol=1e-5 * np.abs(exact).max()
        )
        assert (scores[t, len(order) :] == -np.inf).all()
    assert (positions[len(wanted) :] == -1).all()
    assert (scores[len(wanted) :] == -np.inf).all()
