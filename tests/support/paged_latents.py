"""Paged caches built by hand, from their documented layout, and attention over them one number at a time in fp64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from coldstart_kernels import PagedCache

FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
SMALLEST = float(np.finfo(np.float32).min)
Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sequences of different lengths and how many new tokens each has; the rest of `tokens` is padding."""

    query_lengths: tuple[int, ...] = (3, 1, 2)
    kv_lengths: tuple[int, ...] = (11, 5, 14)
    tokens: int = 8
    page: int = 8
    heads: int = 4
    own_heads: int = 2
    latent: int = 48
    rope: int = 16
    dtype: str = "float8_e4m3fn"

    @property
    def query_dtype(self) -> str:
        return "float32" if self.dtype == "float32" else "bfloat16"

    @property
    def starts(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.query_lengths)]).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Operands:
    """What `mla_attention` takes, and the rows that the cache stands for."""

    q: Array  # [tokens, heads, width]
    fragment: Array
    cache: PagedCache
    limits: Array
    values: list[Array]  # per sequence [positions, latent + rope] fp64


def page_table(batch: Batch, rng: np.random.Generator, spare: int = 2) -> tuple[Array, int]:
    """Pages in no order; entries that a sequence doesn't need are -1. And how many pages there are."""
    used = [-(-n // batch.page) for n in batch.kv_lengths]
    pages = sum(used) + spare
    free = list(rng.permutation(pages))
    table = np.full((len(used), max(used)), -1, np.int32)
    for sequence, count in enumerate(used):
        table[sequence, :count] = [free.pop() for _ in range(count)]
    return table, pages


def limits_of(batch: Batch) -> Array:
    """Causal limits by counting; padding has one too, which the op must not heed."""
    limits = np.full(batch.tokens, 3, np.int32)
    t = 0
    for new, length in zip(batch.query_lengths, batch.kv_lengths, strict=True):
        for r in range(new):
            limits[t] = length - new + r + 1
            t += 1
    return limits


def operands(batch: Batch, seed: int = 5) -> Operands:
    """Random operands. Slots that no sequence uses, and queries of padding, are NaN."""
    rng = np.random.default_rng(seed)
    table, pages = page_table(batch, rng)
    dtype = FLOAT8 if batch.dtype == "float8_e4m3fn" else np.dtype(batch.dtype)
    scale = np.float32(0.037 if batch.dtype == "float8_e4m3fn" else 1.0)
    rows = np.full((pages, batch.page + batch.page // 4, 4, 128), np.nan, dtype)
    values = []
    for sequence, length in enumerate(batch.kv_lengths):
        made = rng.standard_normal((length, batch.latent + batch.rope))
        stored = (made / scale).astype(np.float32).astype(dtype)
        for position in range(length):
            page, slot = table[sequence, position // batch.page], position % batch.page
            latent, rope = np.zeros(512, dtype), np.zeros(128, dtype)
            latent[: batch.latent] = stored[position, : batch.latent]
            rope[: batch.rope] = stored[position, batch.latent :]
            rows[page, slot] = latent.reshape(4, 128)
            rows[page, batch.page + slot // 4, slot % 4] = rope
        values.append(stored.astype(np.float64) * np.float64(scale))
    q = rng.standard_normal((batch.tokens, batch.heads, batch.latent + batch.rope))
    q[batch.starts[-1] :] = np.nan
    queries = np.asarray(jnp.asarray(q, batch.query_dtype))
    cache = PagedCache(
        jnp.asarray(rows), jnp.asarray(scale), jnp.asarray(table), jnp.asarray(batch.starts)
    )
    return Operands(queries, queries[:, : batch.own_heads].copy(), cache, limits_of(batch), values)


def index_lists(batch: Batch, length: int, seed: int = 6) -> Array:
    """Positions with holes: -1, positions past the limit, one token without any, a run in the middle without any."""
    rng = np.random.default_rng(seed)
    lists = rng.integers(-1, max(batch.kv_lengths) + 3, (batch.tokens, length)).astype(np.int32)
    lists[1] = -1
    lists[batch.tokens // 2, length // 3 : 2 * length // 3] = -1
    return lists


def attend(
    q: Array, batch: Batch, limits: Array, values: list[Array], lists: Array | None, scale: float
) -> tuple[Array, Array]:
    """One token and one head at a time, in double precision."""
    tokens, heads, _ = q.shape
    out = np.zeros((tokens, heads, batch.latent))
    lse = np.full((tokens, heads), SMALLEST)
    for t in range(int(batch.starts[-1])):
        rows = values[int(np.searchsorted(batch.starts, t, side="right")) - 1]
        listed = range(limits[t]) if lists is None else lists[t]
        chosen = [int(p) for p in listed if 0 <= p < limits[t]]
        if not chosen:
            continue
        for h in range(heads):
            scores = rows[chosen] @ q[t, h].astype(np.float64) * scale
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ rows[chosen][:, : batch.latent] / weights.sum()
            lse[t, h] = scores.max() + np.log(weights.sum())
    return out, lse
