"""Block sizes of the paged MLA kernels: what they depend on, what they cost in VMEM, and a heuristic.

The dense kernel takes a page of keys per step, the sparse one `block_kv` gathered rows; so a dense block is chosen
in tokens and a sparse one in keys. No tuned table ships yet (nothing was timed on a TPU).
"""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device
from coldstart_kernels.mla.cache import GROUP, LATENT, ROPE

_VMEM_SHARE = 0.5
"""Part of a kernel's VMEM that the sum may come to: the compiler was seen to use up to 1.5 times the sum."""

_MAX_ROWS = 256
_MAX_BLOCK_KV = 512


@dataclasses.dataclass(frozen=True)
class PagedKey:
    """What block sizes are looked up by."""

    branch: str
    heads: int
    """Heads that are read: own (dense) or all (sparse)."""
    unread_heads: int
    """Heads of the query that the branch leaves unread; one block of it is in VMEM all the same."""
    width: int
    """Columns of a query, its latent part padded to 512."""
    latent_width: int
    tokens: int
    sequences: int
    page: int
    list_length: int
    """Length of the index list; 0 in the dense branch."""
    query_itemsize: int
    cache_itemsize: int
    device_kind: str


@dataclasses.dataclass(frozen=True)
class PagedParams:
    """Block sizes of one launch."""

    block_tokens: int = 1
    """Dense: tokens of one sequence that share a walk over its pages. Sparse: always 1."""
    block_kv: int = 0
    """Sparse: rows gathered per step, a multiple of 128. Dense: unused, a step takes a page."""

    def check(self, key: PagedKey, lanes: int = device.LANES) -> None:
        """Refuse blocks that the TPU can't lay out or that don't fit.

        Args:
            lanes: what block_kv is a multiple of; 1 where the kernel is only interpreted.

        Raises:
            ValueError: naming the block, the rule and the figures.
        """
        if self.block_tokens <= 0 or (key.branch == "sparse" and self.block_tokens != 1):
            raise ValueError(f"block_tokens {self.block_tokens} doesn't go with {key}")
        if key.branch == "sparse" and (self.block_kv <= 0 or self.block_kv % lanes):
            raise ValueError(f"block_kv {self.block_kv} is not a positive multiple of {lanes}")
        needed, budget = vmem_needed(key, self), vmem_budget(key)
        if needed > budget:
            raise ValueError(f"{self} needs {needed} bytes of VMEM, {key} leaves {budget}")


def vmem_budget(key: PagedKey) -> int:
    """Bytes that one launch may plan for on this device."""
    return int(device.kernel_vmem_bytes(key.device_kind) * _VMEM_SHARE)


def vmem_needed(key: PagedKey, params: PagedParams) -> int:
    """The sum at the top of paged_kernel.py."""
    rows = params.block_tokens * key.heads
    keys = key.page if key.branch == "dense" else params.block_kv
    tile = GROUP * ROPE * key.cache_itemsize
    fetched = key.page + key.page // GROUP if key.branch == "dense" else 2 * keys
    mask = (rows, 1) if key.branch == "dense" else (1, keys)
    moved = (
        device.padded_bytes(rows, key.width, key.query_itemsize)
        + device.padded_bytes(key.unread_heads, key.width, key.query_itemsize)
        + fetched * tile
        + device.padded_bytes(*mask, 4)
        + device.padded_bytes(rows, key.latent_width, 4)
        + device.padded_bytes(rows, 1, 4)
    )
    scratch = device.padded_bytes(rows, key.latent_width, 4) + 2 * device.padded_bytes(rows, 1, 4)
    # Keys in the queries' type, twice: as rows are put side by side, a part and the whole are there at once.
    widened = 2 * device.padded_bytes(keys, LATENT + ROPE, key.query_itemsize)
    return 2 * moved + scratch + widened + 2 * device.padded_bytes(rows, keys, 4)


def heuristic(key: PagedKey) -> PagedParams:
    """Dense: tokens for up to 256 rows, no more than a sequence has. Sparse: up to 512 keys. Halved until they fit.

    Raises:
        ValueError: not even the smallest blocks fit.
    """
    if key.branch == "dense":
        share = max(1, key.tokens // key.sequences)
        params = PagedParams(block_tokens=max(1, min(_MAX_ROWS // key.heads, share)))
    else:
        most = min(key.list_length, _MAX_BLOCK_KV)
        params = PagedParams(block_kv=device.round_up(most, device.LANES))
    while vmem_needed(key, params) > vmem_budget(key):
        if params.block_tokens > 1:
            params = PagedParams(params.block_tokens // 2, params.block_kv)
        elif params.block_kv > device.LANES:
            params = PagedParams(1, device.round_up(params.block_kv // 2, device.LANES))
        else:
            raise ValueError(
                f"the smallest blocks {params} need {vmem_needed(key, params)} bytes of VMEM, "
                f"{key} leaves {vmem_budget(key)}"
            )
    return params
