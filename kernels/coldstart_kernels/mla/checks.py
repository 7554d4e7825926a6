"""What `mla_attention` refuses; every message prints the shapes or types at fault."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from coldstart_kernels.mla.cache import DTYPES, GROUP, LATENT, ROPE, PagedCache

BRANCHES = ("dense", "sparse")
IMPLEMENTATIONS = ("reference", "pallas")
QUERY_DTYPES = ("float32", "bfloat16")


def check(
    q_fragment: jax.Array,
    q_replicated: jax.Array,
    cache: jax.Array | PagedCache,
    limits: jax.Array,
    indices: jax.Array | None,
    branch: str,
    latent_width: int,
) -> None:
    """Raises ValueError where operands, types and names don't go together."""
    paged = isinstance(cache, PagedCache)
    shown = cache.rows.shape if isinstance(cache, PagedCache) else cache.shape
    shapes = (
        f"q_fragment {q_fragment.shape}, q_replicated {q_replicated.shape}, cache {shown}, "
        f"limits {limits.shape}, indices {None if indices is None else indices.shape}"
    )
    if branch not in BRANCHES:
        raise ValueError(f"branch {branch!r} is not one of {BRANCHES}")
    if not q_fragment.ndim == q_replicated.ndim == 3 or (not paged and len(shown) != 3):
        raise ValueError(f"queries and cache need three dimensions each: {shapes}")
    tokens, own_heads, width = q_fragment.shape
    if 0 in (*q_fragment.shape, *q_replicated.shape, *shown):
        raise ValueError(f"empty operand: {shapes}")
    if q_replicated.shape[0] != tokens or limits.shape != (tokens,):
        raise ValueError(f"queries and limits differ in tokens: {shapes}")
    if q_replicated.shape[2] != width or (not paged and shown[2] != width):
        raise ValueError(f"queries and cache differ in width: {shapes}")
    if q_replicated.shape[1] % own_heads:
        raise ValueError(f"own heads don't divide the heads: {shapes}")
    if not 0 < latent_width <= width:
        raise ValueError(f"latent_width {latent_width} is not within the width: {shapes}")
    if isinstance(cache, PagedCache):
        _check_paged(q_fragment, q_replicated, cache, latent_width, shapes)
    else:
        _check_contiguous(q_fragment, q_replicated, cache, shapes)
    if limits.dtype != jnp.int32:
        raise ValueError(f"limits need int32, got {limits.dtype}")
    _check_indices(tokens, indices, branch, shapes)


def _check_contiguous(
    q_fragment: jax.Array, q_replicated: jax.Array, cache: jax.Array, shapes: str
) -> None:
    if q_fragment.shape[0] % cache.shape[0]:
        raise ValueError(f"sequences of the cache don't divide the tokens: {shapes}")
    dtypes = {str(a.dtype) for a in (q_fragment, q_replicated, cache)}
    if len(dtypes) != 1 or not dtypes <= set(QUERY_DTYPES):
        raise ValueError(
            f"queries and cache need one type of {QUERY_DTYPES}, got {sorted(dtypes)}; "
            "an FP8 cache is a PagedCache"
        )


def _check_paged(
    q_fragment: jax.Array,
    q_replicated: jax.Array,
    cache: PagedCache,
    latent_width: int,
    shapes: str,
) -> None:
    if cache.rows.ndim != 4 or cache.rows.shape[2:] != (GROUP, ROPE):
        raise ValueError(f"paged rows need [pages, page + page / 4, {GROUP}, {ROPE}]: {shapes}")
    page = cache.rows.shape[1] * GROUP // (GROUP + 1)
    if page < GROUP or page & (page - 1) or page + page // GROUP != cache.rows.shape[1]:
        raise ValueError(
            f"{cache.rows.shape[1]} tiles a page are not P + P/4 for a power of two P: {shapes}"
        )
    stored = str(cache.rows.dtype)
    if stored not in DTYPES:
        raise ValueError(f"cache type {stored} is not one of {DTYPES}")
    wanted = "bfloat16" if stored == "float8_e4m3fn" else stored
    queries = {str(q_fragment.dtype), str(q_replicated.dtype)}
    if queries != {wanted}:
        raise ValueError(f"a {stored} cache goes with {wanted} queries, got {sorted(queries)}")
    rope = q_fragment.shape[2] - latent_width
    if latent_width > LATENT or rope > ROPE:
        raise ValueError(
            f"latent {latent_width} and rope {rope} exceed the {LATENT} and {ROPE} that a row holds: {shapes}"
        )
    if cache.scale.shape != () or cache.scale.dtype != jnp.float32:
        raise ValueError(f"the scale needs fp32 [], got {cache.scale.dtype} {cache.scale.shape}")
    table, starts = cache.page_table, cache.cu_q_lens
    if table.ndim != 2 or 0 in table.shape or starts.shape != (table.shape[0] + 1,):
        raise ValueError(
            f"page_table {table.shape} and cu_q_lens {starts.shape} need [sequences, pages], [sequences + 1]"
        )
    if table.dtype != jnp.int32 or starts.dtype != jnp.int32:
        raise ValueError(
            f"page_table and cu_q_lens need int32, got {table.dtype} and {starts.dtype}"
        )


def _check_indices(tokens: int, indices: jax.Array | None, branch: str, shapes: str) -> None:
    if branch == "dense":
        if indices is not None:
            raise ValueError(f"the dense branch takes no indices: {shapes}")
        return
    if indices is None or indices.ndim != 2 or indices.shape[0] != tokens:
        raise ValueError(f"the sparse branch needs indices [tokens, list]: {shapes}")
    if indices.shape[1] == 0:
        raise ValueError(f"empty operand: {shapes}")
    if indices.dtype != jnp.int32:
        raise ValueError(f"indices need int32, got {indices.dtype}")
