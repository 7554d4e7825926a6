"""Block sizes of the indexer's kernel: what they depend on, what they cost, and a heuristic.

A step takes a page of keys, so only the tokens of a block are chosen. No tuned table ships yet.
"""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device

_VMEM_SHARE = 0.5
"""Part of a kernel's VMEM that the sum may come to: the compiler was seen to use up to 1.5 times the sum."""

_MAX_TOKENS = 64


@dataclasses.dataclass(frozen=True)
class TuningKey:
    """What block sizes are looked up by."""

    heads: int
    width: int
    page: int
    tokens: int
    sequences: int
    device_kind: str


@dataclasses.dataclass(frozen=True)
class TuningParams:
    """Block sizes of one launch."""

    block_tokens: int
    """Tokens of one sequence that are scored against a page at a time."""

    def check(self, key: TuningKey) -> None:
        """Refuse blocks that don't fit.

        Raises:
            ValueError: with the figures.
        """
        if self.block_tokens <= 0:
            raise ValueError(f"block_tokens {self.block_tokens} is not positive")
        needed, budget = vmem_needed(key, self), vmem_budget(key)
        if needed > budget:
            raise ValueError(f"{self} needs {needed} bytes of VMEM, {key} leaves {budget}")


def vmem_budget(key: TuningKey) -> int:
    """Bytes that one launch may plan for on this device."""
    return int(device.kernel_vmem_bytes(key.device_kind) * _VMEM_SHARE)


def vmem_needed(key: TuningKey, params: TuningParams) -> int:
    """The sum at the top of kernel.py."""
    rows = params.block_tokens * key.heads
    moved = (
        device.padded_bytes(rows, key.width, 1)
        + device.padded_bytes(key.page, key.width, 1)
        + device.padded_bytes(rows, 1, 4)
        + device.padded_bytes(params.block_tokens, 1, 4)
        + device.padded_bytes(1, key.page, 4)
        + device.padded_bytes(params.block_tokens, key.page, 4)
    )
    return 2 * moved + 2 * device.padded_bytes(rows, key.page, 4)


def heuristic(key: TuningKey) -> TuningParams:
    """Up to 64 tokens, no more than a sequence has, halved until they fit.

    Raises:
        ValueError: not even one token fits.
    """
    tokens = max(1, min(_MAX_TOKENS, key.tokens // key.sequences))
    while vmem_needed(key, TuningParams(tokens)) > vmem_budget(key):
        if tokens == 1:
            raise ValueError(
                f"one token needs {vmem_needed(key, TuningParams(1))} bytes of VMEM, "
                f"{key} leaves {vmem_budget(key)}"
            )
        tokens //= 2
    return TuningParams(tokens)
