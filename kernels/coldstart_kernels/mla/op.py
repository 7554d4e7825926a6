"""Multi-head latent attention in the absorbed form: the one public function.

Queries have already been taken into the latent space, so a cached row (latent | rope key) serves as key for
every head and its latent part as value. Two branches:

- dense: the caller's own heads, `q_fragment`, over all positions up to each token's limit;
- sparse: all heads, `q_replicated`, over the positions in `indices`. The fragment stays an operand
  and is never read, as in engines where one op serves both branches.

Both return the log of the softmax's denominator too, so that pieces over disjoint positions can be merged (`merge`).

Two forms of cache. A plain array [sequences, positions, width] is the small form: as many tokens for each sequence, and
the sparse branch gathers its rows in plain JAX before the kernel. A `PagedCache` is what serving needs: FP8 with a
scale, pages, sequences of different lengths in one batch, and a sparse kernel that gathers its rows itself. Paging
came along because both kernels look a position up anyway; with the page table in SMEM it costs an index map in one
and an integer operation per row in the other.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device, ragged
from coldstart_kernels.mla import kernel, paged_kernel, paged_tuning, reference
from coldstart_kernels.mla.cache import PagedCache, page_size, stored_query
from coldstart_kernels.mla.checks import IMPLEMENTATIONS, check
from coldstart_kernels.mla.paged_tuning import PagedKey, PagedParams
from coldstart_kernels.mla.tuning import TuningKey, TuningParams, heuristic


def mla_attention(
    q_fragment: jax.Array,  # [tokens, own heads, width]
    q_replicated: jax.Array,  # [tokens, heads, width]
    cache: jax.Array | PagedCache,  # [sequences, positions, width], or paged
    limits: jax.Array,  # [tokens] int32
    indices: jax.Array | None = None,  # [tokens, index list] int32, sparse only
    *,
    branch: str,
    latent_width: int,
    scale: float,
    implementation: str | None = None,
    tuning: TuningParams | PagedParams | None = None,
    out_dtype: Any = None,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> tuple[jax.Array, jax.Array]:
    """Attend to the latent cache.

    Args:
        cache: rows of latent | rope key. In a plain array, of the queries' type, token t belongs to sequence
            t // (tokens // sequences); in a `PagedCache` its `cu_q_lens` tells, and an FP8 one goes with bf16
            queries. Rows at and beyond every limit of their sequence may hold anything, NaN included.
        limits: how many leading positions each token may see: its position plus one for causal
            attention, 0 for padding.
        indices: positions that each token attends to. Entries that are negative or not below the
            token's limit don't count; a position that is listed twice counts twice.
        branch: "dense" or "sparse".
        latent_width: leading part of `width` that is also the value.
        implementation: "reference", "pallas", or None to pick by the default backend.
        tuning: block sizes of the Pallas kernel, `PagedParams` for a paged cache; the heuristic by default.
        out_dtype: paged only: type of the latents. fp32 keeps parts exact that are yet to be merged.
        interpret: Pallas only: True (plain HLO, any backend), or `pltpu.InterpretParams`.
        device_kind: whose VMEM the heuristic plans for.

    Returns:
        The attended latent [tokens, h, latent_width] in the type of the queries or `out_dtype`, and the log-sum-exp
        [tokens, h] in fp32; h is the own heads (dense) or all heads (sparse). A token that sees nothing gets 0
        and the smallest finite fp32.

    Raises:
        ValueError: shapes, types or names that don't go together; the message prints them.
    """
    check(q_fragment, q_replicated, cache, limits, indices, branch, latent_width)
    if implementation is None:
        implementation = device.default_implementation()
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {IMPLEMENTATIONS}")
    paged = isinstance(cache, PagedCache)
    if tuning is not None and isinstance(tuning, PagedParams) is not paged:
        raise ValueError(f"{type(tuning).__name__} doesn't go with a {type(cache).__name__}")
    if isinstance(cache, PagedCache):
        return _attend_paged(
            q_fragment, q_replicated, cache, limits, indices,
            branch=branch, latent_width=latent_width, scale=scale, implementation=implementation,
            tuning=tuning if isinstance(tuning, PagedParams) else None,
            out_dtype=jnp.dtype(out_dtype or q_fragment.dtype),
            interpret=interpret, device_kind=device_kind,
        )  # fmt: skip
    if out_dtype is not None:
        raise ValueError(f"out_dtype {out_dtype} needs a paged cache")
    if branch == "sparse":
        assert indices is not None
        keys, mask = _gather(cache, limits, indices)
    else:
        keys, mask = cache, limits
    if implementation == "reference":
        attend = reference.attend_dense if branch == "dense" else reference.attend_sparse
        return attend(q_fragment, q_replicated, keys, mask, scale=scale, latent_width=latent_width)

    key = _tuning_key(q_fragment, q_replicated, keys, branch, latent_width, device_kind)
    params = tuning if isinstance(tuning, TuningParams) else heuristic(key)
    params.check(key)
    launch = kernel.attend_dense if branch == "dense" else kernel.attend_sparse
    return launch(
        q_fragment, q_replicated, keys, mask,
        scale=scale, latent_width=latent_width, params=params, interpret=interpret,
    )  # fmt: skip


def _attend_paged(
    q_fragment: jax.Array,
    q_replicated: jax.Array,
    cache: PagedCache,
    limits: jax.Array,
    indices: jax.Array | None,
    *,
    branch: str,
    latent_width: int,
    scale: float,
    implementation: str,
    tuning: PagedParams | None,
    out_dtype: jnp.dtype,
    interpret: Any,
    device_kind: str,
) -> tuple[jax.Array, jax.Array]:
    sequence = ragged.sequence_of(cache.cu_q_lens, q_fragment.shape[0])
    limits = jnp.where(sequence >= 0, limits, 0)
    common: dict[str, Any] = {"scale": scale, "latent_width": latent_width, "out_dtype": out_dtype}
    q = q_fragment if branch == "dense" else q_replicated
    if implementation == "reference":
        return reference.attend_paged(q, cache, sequence, limits, indices, **common)

    unread = q_replicated if branch == "dense" else q_fragment
    q = stored_query(q, latent_width)
    key = PagedKey(
        branch=branch,
        heads=q.shape[1],
        unread_heads=unread.shape[1],
        width=q.shape[2],
        latent_width=latent_width,
        tokens=q.shape[0],
        sequences=cache.page_table.shape[0],
        page=page_size(cache.rows),
        list_length=0 if indices is None else indices.shape[1],
        query_itemsize=q.dtype.itemsize,
        cache_itemsize=cache.rows.dtype.itemsize,
        device_kind=device_kind,
    )
    params = paged_tuning.heuristic(key) if tuning is None else tuning
    params.check(key, lanes=1 if interpret else device.LANES)
    common |= {"params": params, "interpret": interpret}
    if indices is None:
        return paged_kernel.attend_dense(q, unread, cache, limits, **common)
    return paged_kernel.attend_sparse(unread, q, cache, sequence, limits, indices, **common)


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
