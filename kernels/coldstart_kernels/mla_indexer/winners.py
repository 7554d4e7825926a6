"""Best positions: of one rank, and of a context-parallel group that exchanges scores only.

Each rank finds the best `k` of the positions it holds, the group gathers the scores of those [ranks, tokens, k],
and each rank counts how many of its own are among the best `k` of all. A rank's list is in falling order, so its
winners are the first so many; which positions the other ranks chose, nobody needs to know.

Ties. Within a rank the lower position wins, so on one rank the rule is: higher score, then lower position. Between
ranks only scores are known, so of equal scores at the edge the lower rank's win first. The scores that are chosen are
those of a choice on one rank; the positions can differ where the k-th and the next score are equal and lie on different
ranks. All ranks come to the same split, and no position is lost or doubled.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def best(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The best `k` columns of [tokens, columns]: scores in falling order [tokens, k], columns int32.

    A score of minus infinity is no candidate: the lists end in minus infinity and -1.
    """
    # The sort tells -0 from 0, and sums of negative weights times 0 give either.
    scores = jnp.where(scores == 0, 0.0, scores)
    missing = k - scores.shape[-1]
    if missing > 0:
        pad = [(0, 0)] * (scores.ndim - 1) + [(0, missing)]
        scores = jnp.pad(scores, pad, constant_values=-jnp.inf)
    found, columns = jax.lax.top_k(scores, k)
    return found, jnp.where(found > -jnp.inf, columns, -1).astype(jnp.int32)


def keep_winners(
    positions: jax.Array,  # [tokens, k] int32, this rank's
    gathered: jax.Array,  # [ranks, tokens, k] fp32: every rank's scores, each list falling
    rank: Any,
) -> jax.Array:
    """This rank's positions among the best `k` of all ranks [tokens, k] int32, in front, then -1.

    Args:
        rank: this rank's place in `gathered`; may be runtime data. A rank may keep none.
    """
    ranks, tokens, k = gathered.shape
    flat = jnp.moveaxis(gathered, 0, 1).reshape(tokens, ranks * k)
    found, columns = jax.lax.top_k(flat, k)
    own = jnp.sum((columns // k == rank) & (found > -jnp.inf), axis=1, keepdims=True)
    return jnp.where(jnp.arange(k, dtype=jnp.int32) < own, positions, -1)


def everything(limits: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """All positions below each limit [tokens, k]: scores 0 and positions 0, 1, 2, …, then minus infinity and -1.

    Right where no limit exceeds `k`. Equal scores do no harm where all candidates win.
    """
    positions = jnp.arange(k, dtype=jnp.int32)
    seen = positions < limits[:, None]
    return jnp.where(seen, 0.0, -jnp.inf), jnp.where(seen, positions, -1)
