"""Rows per block of the top-k kernel: what they are looked up by, what they cost, and a heuristic.

No tuned table ships yet (nothing was timed on a TPU), so every lookup is the heuristic.
"""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device

_VMEM_SHARE = 0.8
"""Part of VMEM the kernel may plan for; the rest is the compiler's (spills, semaphores)."""

_MAX_BLOCK_ROWS = 512


@dataclasses.dataclass(frozen=True)
class TuningKey:
    """What the block is looked up by."""

    tokens: int
    experts: int
    chosen: int
    device_kind: str


@dataclasses.dataclass(frozen=True)
class TuningParams:
    """The block of one launch."""

    block_rows: int

    def check(self, key: TuningKey) -> None:
        """Refuse a block that the TPU can't lay out or that doesn't fit.

        Raises:
            ValueError: naming the block, the rule and the figures.
        """
        if self.block_rows <= 0 or self.block_rows % device.SUBLANES:
            raise ValueError(
                f"block_rows {self.block_rows} is not a positive multiple of {device.SUBLANES}"
            )
        needed, budget = vmem_needed(key, self), vmem_budget(key)
        if needed > budget:
            raise ValueError(f"{self} needs {needed} bytes of VMEM, {key} leaves {budget}")


def vmem_budget(key: TuningKey) -> int:
    """Bytes that one launch may plan for on this device."""
    return int(device.vmem_bytes(key.device_kind) * _VMEM_SHARE)


def vmem_needed(key: TuningKey, params: TuningParams) -> int:
    """The sum at the top of kernel.py: operands and results twice (double-buffered), temporaries once."""
    scores = device.padded_bytes(params.block_rows, key.experts, 4)
    results = 2 * device.padded_bytes(params.block_rows, key.chosen, 4)
    return 2 * (scores + device.padded_bytes(1, key.experts, 4) + results) + 4 * scores


def heuristic(key: TuningKey) -> TuningParams:
    """512 rows, or as few as hold all tokens, halved until they fit.

    Raises:
        ValueError: not even the smallest block fits.
    """
    rows = device.round_up(min(key.tokens, _MAX_BLOCK_ROWS), device.SUBLANES)
    while vmem_needed(key, TuningParams(rows)) > vmem_budget(key) and rows > device.SUBLANES:
        rows = device.round_up(rows // 2, device.SUBLANES)
    params = TuningParams(rows)
    params.check(key)
    return params
