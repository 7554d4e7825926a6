"""Multi-head latent attention in the absorbed form: the one public function.

Queries have already been taken into the latent space, so a cached row (latent | rope key) serves as key for
every head and its latent part as value. Two branches:

- dense: the caller's own heads, `q_fragment`, over all positions up to each token's limit;
- sparse: all heads, `q_replicated`, over the positions in `indices`. The fragment stays an operand
  and is never read, as in engines where one op serves both branches.

Both return the log of the softmax's denominator too, so that pieces over disjoint positions can be merged.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device
from coldstart_kernels.mla import kernel, reference
from coldstart_kernels.mla.tuning import TuningKey, TuningParams, heuristic

_BRANCHES = ("dense", "sparse")
_IMPLEMENTATIONS = ("reference", "pallas")
_DTYPES = ("float32", "bfloat16")


def mla_attention(
    q_fragment: jax.Array,  # [tokens, own heads, width]
    q_replicated: jax.Array,  # [tokens, heads, width]
    cache: jax.Array,  # [sequences, positions, width]
    limits: jax.Array,  # [tokens] int32
    indices: jax.Array | None = None,  # [tokens, index list] int32, sparse only
    *,
    branch: str,
    latent_width: int,
    scale: float,
    implementation: str | None = None,
    tuning: TuningParams | None = None,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> tuple[jax.Array, jax.Array]:
    """Attend to the latent cache.

    Args:
        cache: rows of latent | rope key. Token t belongs to sequence t // (tokens // sequences).
            Rows at and beyond every limit of their sequence may hold anything, NaN included.
        limits: how many leading positions each token may see: its position plus one for causal
            attention, 0 for padding.
        indices: positions that each token attends to. Entries that are negative or not below the
            token's limit don't count; a position that is listed twice counts twice.
        branch: "dense" or "sparse".
        latent_width: leading part of `width` that is also the value.
        implementation: "reference", "pallas", or None to pick by the default backend.
        tuning: block sizes of the Pallas kernel; the heuristic by default.
        interpret: Pallas only: True (plain HLO, any backend), or `pltpu.InterpretParams`.
        device_kind: whose VMEM the heuristic plans for.

    Returns:
        The attended latent [tokens, h, latent_width] in the type of the queries, and the log-sum-exp
        [tokens, h] in fp32; h is the own heads (dense) or all heads (sparse). A token that sees nothing gets 0
        and the smallest finite fp32.

    Raises:
        ValueError: shapes, types or names that don't go together; the message prints them.
    """
    _check(q_fragment, q_replicated, cache, limits, indices, branch, latent_width)
    if implementation is None:
        implementation = device.default_implementation()
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {_IMPLEMENTATIONS}")
    if branch == "sparse":
        assert indices is not None
        keys, mask = _gather(cache, limits, indices)
    else:
        keys, mask = cache, limits
    if implementation == "reference":
        attend = reference.attend_dense if branch == "dense" else reference.attend_sparse
        return attend(q_fragment, q_replicated, keys, mask, scale=scale, latent_width=latent_width)

    key = _tuning_key(q_fragment, q_replicated, keys, branch, latent_width, device_kind)
    params = heuristic(key) if tuning is None else tuning
    params.check(key)
    launch = kernel.attend_dense if branch == "dense" else kernel.attend_sparse
    return launch(
        q_fragment, q_replicated, keys, mask,
        scale=scale, latent_width=latent_width, params=params, interpret=interpret,
    )  # fmt: skip


def _gather(cache: jax.Array, limits: jax.Array, indices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each token's chosen rows, those that don't count zeroed, and which of them count."""
    sequences, positions, _ = cache.shape
    tokens = indices.shape[0]
    valid = (indices >= 0) & (indices < jnp.minimum(limits, positions)[:, None])
    sequence = (jnp.arange(tokens, dtype=jnp.int32) // (tokens // sequences))[:, None]
    rows = cache[sequence, jnp.where(valid, indices, 0)]
    return jnp.where(valid[..., None], rows, jnp.zeros_like(rows)), valid


def _tuning_key(
    q_fragment: jax.Array,
    q_replicated: jax.Array,
    keys: jax.Array,
    branch: str,
    latent_width: int,
    device_kind: str,
) -> TuningKey:
    tokens, own_heads, width = q_fragment.shape
    heads = q_replicated.shape[1]
    dense = branch == "dense"
    return TuningKey(
        branch=branch,
        rows=tokens // keys.shape[0] * own_heads if dense else heads,
        keys=keys.shape[1],
        width=width,
        latent_width=latent_width,
        unread_rows=heads if dense else own_heads,
        itemsize=jnp.dtype(q_fragment.dtype).itemsize,
        device_kind=device_kind,
    )


def _check(
    q_fragment: jax.Array,
    q_replicated: jax.Array,
    cache: jax.Array,
    limits: jax.Array,
    indices: jax.Array | None,
    branch: str,
    latent_width: int,
) -> None:
    shapes = (
        f"q_fragment {q_fragment.shape}, q_replicated {q_replicated.shape}, cache {cache.shape}, "
        f"limits {limits.shape}, indices {None if indices is None else indices.shape}"
    )
    if branch not in _BRANCHES:
        raise ValueError(f"branch {branch!r} is not one of {_BRANCHES}")
    if not q_fragment.ndim == q_replicated.ndim == cache.ndim == 3:
        raise ValueError(f"queries and cache need three dimensions each: {shapes}")
    tokens, own_heads, width = q_fragment.shape
    if 0 in (*q_fragment.shape, *q_replicated.shape, *cache.shape):
        raise ValueError(f"empty operand: {shapes}")
    if q_replicated.shape[0] != tokens or limits.shape != (tokens,):
        raise ValueError(f"queries and limits differ in tokens: {shapes}")
    if q_replicated.shape[2] != width or cache.shape[2] != width:
        raise ValueError(f"queries and cache differ in width: {shapes}")
    if q_replicated.shape[1] % own_heads:
        raise ValueError(f"own heads don't divide the heads: {shapes}")
    if tokens % cache.shape[0]:
        raise ValueError(f"sequences of the cache don't divide the tokens: {shapes}")
    if not 0 < latent_width <= width:
        raise ValueError(f"latent_width {latent_width} is not within the width: {shapes}")
    dtypes = {str(a.dtype) for a in (q_fragment, q_replicated, cache)}
    if len(dtypes) != 1 or not dtypes <= set(_DTYPES):
        raise ValueError(f"queries and cache need one type of {_DTYPES}, got {sorted(dtypes)}")
    if limits.dtype != jnp.int32:
        raise ValueError(f"limits need int32, got {limits.dtype}")
    if branch == "dense" and indices is not None:
        raise ValueError(f"the dense branch takes no indices: {shapes}")
    if branch == "sparse":
        if indices is None or indices.ndim != 2 or indices.shape[0] != tokens:
            raise ValueError(f"the sparse branch needs indices [tokens, list]: {shapes}")
        if indices.shape[1] == 0:
            raise ValueError(f"empty operand: {shapes}")
        if indices.dtype != jnp.int32:
            raise ValueError(f"indices need int32, got {indices.dtype}")
