"""The programs of `bench reuse`: attention pieces of distinct shapes, and what each must give, in NumPy.

A piece is `coldstart.models.participant.attention_piece`. The reference here is written from its description, in
float64, and shares no code with it: no JAX, no kernel, no compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOKENS = tuple(range(4, 52, 4))
FIRST_KV, KV_STEP = 32, 16
# fp32 sums of some hundred terms against float64, relative to the largest output: 1e-6 is usual.
TOLERANCE = 1e-4

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What tells one program of a participant from the next."""

    tokens: int
    kv: int

    def __str__(self) -> str:
        return f"tokens={self.tokens},kv={self.kv}"


def shapes(count: int) -> list[Shape]:
    """`count` distinct shapes, small ones first."""
    return [
        Shape(TOKENS[i % len(TOKENS)], FIRST_KV + KV_STEP * (i // len(TOKENS)))
        for i in range(count)
    ]


def expected(
    arguments: Sequence[Array],
    *,
    branch: str,
    rank: int,
    participants: int,
    latent: int,
    scale: float,
) -> Array:
    """The output [tokens, hidden] of a piece for its arguments: queries, cache, limits, value and output weights, and
    the index lists of the sparse branch."""
    q, kv, limits, w_uv, o_proj = (
        np.asarray(a, dtype=None if a.dtype == np.int32 else np.float64) for a in arguments[:5]
    )
    layers, tokens, heads, _ = q.shape
    own = heads // participants
    total = np.zeros((tokens, o_proj.shape[-1]))
    for layer in range(layers):
        for token in range(tokens):
            if branch == "dense":
                query = q[layer, token, rank * own : (rank + 1) * own]
                rows = kv[layer, token, : limits[token]]
            else:
                listed = arguments[5][layer, token]
                query = q[layer, token]
                rows = kv[layer, token, listed[(listed >= 0) & (listed < limits[token])]]
            if not len(rows):
                continue
            scores = query @ rows.T * scale
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            latents = weights @ rows[:, :latent]
            total[token] += np.einsum("hl,hlv,hvd->d", latents, w_uv[layer], o_proj[layer])
    return total


def error(output: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest value wanted; infinite for NaN or another shape."""
    if output.shape != wanted.shape or not np.isfinite(output).all():
        return float("inf")
    return float(np.abs(output - wanted).max() / max(np.abs(wanted).max(), 1e-30))
