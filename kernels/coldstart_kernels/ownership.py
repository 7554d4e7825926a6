"""Which rank of a context-parallel group holds which position of a sequence.

Positions are dealt out in runs of `interleave`: run r goes to rank r % ranks. A rank keeps its runs one after the
other, so its slots are dense and ascend with the position. Where pages hold a multiple of `interleave`, page p of every
rank's table covers the same `page * ranks` positions. Plain integer arithmetic: Python ints, NumPy and JAX arrays
all work, and the rank may be runtime data.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def owner_of(position: Any, ranks: int, interleave: int = 1) -> Any:
    """The rank that holds a position."""
    return position // interleave % ranks


def slot_of(position: Any, ranks: int, interleave: int = 1) -> Any:
    """Where its owner keeps a position."""
    return position // (ranks * interleave) * interleave + position % interleave


def position_of(slot: Any, rank: Any, ranks: int, interleave: int = 1) -> Any:
    """The position that a rank keeps in a slot."""
    return (slot // interleave * ranks + rank) * interleave + slot % interleave


def own_limits(limits: Any, rank: Any, ranks: int, interleave: int = 1) -> Any:
    """How many of the leading `limits` positions a rank holds: the limits to give an op for its share."""
    rounds, rest = limits // (ranks * interleave), limits % (ranks * interleave)
    return rounds * interleave + jnp.clip(rest - rank * interleave, 0, interleave)
