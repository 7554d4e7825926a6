"""Block sizes of the MLA kernel: what they are looked up by, what they cost, and a heuristic.

No tuned table ships yet (nothing was timed on a TPU), so every lookup is the heuristic.
"""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device

_VMEM_SHARE = 0.8
"""Part of a kernel's VMEM that may be planned for; the rest is the compiler's (spills, semaphores)."""

_MAX_BLOCK_ROWS = 256
_MAX_BLOCK_KV = 512


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _padded_bytes(rows: int, columns: int, itemsize: int) -> int:
    """Bytes of a 2-D block in VMEM, where it is laid out in whole tiles."""
    tile_rows = device.sublane_multiple(itemsize)
    return _round_up(rows, tile_rows) * _round_up(columns, device.LANES) * itemsize


@dataclasses.dataclass(frozen=True)
class TuningKey:
    """What block sizes are looked up by."""

    branch: str
    rows: int
    """Query rows that share one list of keys: query tokens times heads (dense), heads (sparse)."""
    keys: int
    """Cached positions of a sequence (dense), length of the index list (sparse)."""
    width: int
    """Latent width plus rope width: one row of the cache."""
    latent_width: int
    unread_rows: int
    """Rows of the query operand that this branch leaves unread; it occupies VMEM all the same."""
    itemsize: int
    device_kind: str


@dataclasses.dataclass(frozen=True)
class TuningParams:
    """Block sizes of one launch."""

    block_rows: int
    block_kv: int

    def check(self, key: TuningKey) -> None:
        """Refuse blocks that the TPU can't lay out or that don't fit.

        Raises:
            ValueError: naming the block, the rule and the figures.
        """
        multiple = device.sublane_multiple(key.itemsize)
        if self.block_rows <= 0 or self.block_rows % multiple:
            raise ValueError(
                f"block_rows {self.block_rows} is not a positive multiple of {multiple}"
            )
        if self.block_kv <= 0 or self.block_kv % device.LANES:
            raise ValueError(
                f"block_kv {self.block_kv} is not a positive multiple of {device.LANES}"
            )
        needed, budget = vmem_needed(key, self), vmem_budget(key)
        if needed > budget:
            raise ValueError(f"{self} needs {needed} bytes of VMEM, {key} leaves {budget}")


def vmem_budget(key: TuningKey) -> int:
    """Bytes that one launch may plan for on this device."""
    return int(device.kernel_vmem_bytes(key.device_kind) * _VMEM_SHARE)


def vmem_needed(key: TuningKey, params: TuningParams) -> int:
    """The sum at the top of kernel.py: operands and results twice (double-buffered), scratch once."""
    rows, kv = params.block_rows, params.block_kv
    mask = _padded_bytes(rows, 1, 4) if key.branch == "dense" else _padded_bytes(1, kv, 4)
    moved = (
        _padded_bytes(rows, key.width, key.itemsize)
        + _padded_bytes(key.unread_rows, key.width, key.itemsize)
        + _padded_bytes(kv, key.width, key.itemsize)
        + mask
        + _padded_bytes(rows, key.latent_width, key.itemsize)
        + _padded_bytes(rows, 1, 4)
    )
    scratch = _padded_bytes(rows, key.latent_width, 4) + 2 * _padded_bytes(rows, 1, 4)
    # Scores and probabilities live in fp32 between the two products.
    temporaries = 2 * _padded_bytes(rows, kv, 4)
    return 2 * moved + scratch + temporaries


def heuristic(key: TuningKey) -> TuningParams:
    """The largest blocks up to 256 rows by 512 keys that fit; keys shrink first, then rows.

    Raises:
        ValueError: not even the smallest blocks fit.
    """
    multiple = device.sublane_multiple(key.itemsize)
    rows = _round_up(min(key.rows, _MAX_BLOCK_ROWS), multiple)
    kv = _round_up(min(key.keys, _MAX_BLOCK_KV), device.LANES)
    while True:
        params = TuningParams(rows, kv)
        if vmem_needed(key, params) <= vmem_budget(key):
            return params
        if kv > device.LANES:
            kv = _round_up(kv // 2, device.LANES)
        elif rows > multiple:
            rows = _round_up(rows // 2, multiple)
        else:
            raise ValueError(
                f"the smallest blocks {params} need {vmem_needed(key, params)} bytes of VMEM, "
                f"{key} leaves {vmem_budget(key)}"
            )
