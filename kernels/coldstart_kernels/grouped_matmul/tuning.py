"""Block sizes of the grouped matmul: what they are looked up by, what they cost, and a heuristic.

No tuned table ships yet (nothing was timed on a TPU), so every lookup is the heuristic.
"""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device
from coldstart_kernels.device import padded_bytes

_VMEM_SHARE = 0.8
"""Part of VMEM the kernel may plan for; the rest is the compiler's (spills, semaphores)."""

_MAX_BLOCK_ROWS = 256
_FEW_BLOCK_ROWS = 128
"""Where experts get few rows each: a visit multiplies the whole row block, its own rows or not."""

_MAX_BLOCK_N = 512


@dataclasses.dataclass(frozen=True)
class TuningKey:
    """What block sizes are looked up by."""

    rows: int
    experts: int
    k: int
    n: int
    itemsize: int
    """Of rows and weights: 4, 2, or 1 for FP8."""
    out_itemsize: int
    step: int
    """Columns of x that share a scale; 0 where there are no scales."""
    device_kind: str

    @property
    def row_multiple(self) -> int:
        """Rows of a whole tile of x, of the result, and of the fp32 scales."""
        return max(
            device.sublane_multiple(self.itemsize), device.sublane_multiple(self.out_itemsize)
        )


@dataclasses.dataclass(frozen=True)
class TuningParams:
    """Block sizes of one launch."""

    block_rows: int
    block_k: int
    """Divides k: a partial block of the contraction would add what lies beyond it."""
    block_n: int

    def check(self, key: TuningKey) -> None:
        """Refuse blocks that the TPU can't lay out or that don't fit.

        Raises:
            ValueError: naming the block, the rule and the figures.
        """
        if self.block_rows <= 0 or self.block_rows % key.row_multiple:
            raise ValueError(
                f"block_rows {self.block_rows} is not a positive multiple of {key.row_multiple}"
            )
        if self.block_k <= 0 or key.k % self.block_k:
            raise ValueError(f"block_k {self.block_k} does not divide k {key.k}")
        multiple = max(device.LANES, key.step)
        if self.block_k != key.k and self.block_k % multiple:
            raise ValueError(f"block_k {self.block_k} is neither k nor a multiple of {multiple}")
        if self.block_n <= 0 or (self.block_n != key.n and self.block_n % device.LANES):
            raise ValueError(
                f"block_n {self.block_n} is neither n {key.n} nor a positive multiple of {device.LANES}"
            )
        needed, budget = vmem_needed(key, self), vmem_budget(key)
        if needed > budget:
            raise ValueError(f"{self} needs {needed} bytes of VMEM, {key} leaves {budget}")


def vmem_budget(key: TuningKey) -> int:
    """Bytes that one launch may plan for on this device."""
    return int(device.vmem_bytes(key.device_kind) * _VMEM_SHARE)


def vmem_needed(key: TuningKey, params: TuningParams) -> int:
    """The sum at the top of kernel.py: operands and results twice (double-buffered), the rest once."""
    rows, k, n = params.block_rows, params.block_k, params.block_n
    moved = (
        padded_bytes(rows, k, key.itemsize)
        + padded_bytes(k, n, key.itemsize)
        + padded_bytes(rows, n, key.out_itemsize)
    )
    if key.step:
        moved += padded_bytes(rows, k // key.step, 4) + padded_bytes(k // key.step, n, 4)
    return 2 * moved + 3 * padded_bytes(rows, n, 4)


def heuristic(key: TuningKey) -> TuningParams:
    """Blocks that read each expert's weights once: all of k, up to 512 columns and 256 rows.

    What doesn't fit is cut down: k to the next smaller divisor, then columns, then rows.

    Raises:
        ValueError: not even the smallest blocks fit.
    """
    most_rows = _MAX_BLOCK_ROWS if key.rows > _FEW_BLOCK_ROWS * key.experts else _FEW_BLOCK_ROWS
    rows = device.round_up(min(key.rows, most_rows), key.row_multiple)
    n = min(key.n, _MAX_BLOCK_N)
    while True:
        for k in _k_blocks(key):
            params = TuningParams(rows, k, n)
            if vmem_needed(key, params) <= vmem_budget(key):
                return params
        if n > device.LANES:
            n = device.round_up(n // 2, device.LANES)
        elif rows > key.row_multiple:
            rows = device.round_up(rows // 2, key.row_multiple)
        else:
            raise ValueError(
                f"the smallest blocks {params} need {vmem_needed(key, params)} bytes of VMEM, "
                f"{key} leaves {vmem_budget(key)}"
            )


def _k_blocks(key: TuningKey) -> list[int]:
    """k itself, then its divisors that a block may have, largest first."""
    multiple = max(device.LANES, key.step)
    smaller = range(key.k // 2 // multiple * multiple, 0, -multiple)
    return [key.k, *(k for k in smaller if key.k % k == 0)]
