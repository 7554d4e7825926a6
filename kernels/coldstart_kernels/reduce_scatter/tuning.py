"""Micro-batches of the exchange: what they are looked up by, what they cost, and a heuristic.

No tuned table ships yet (nothing was timed on a TPU), so every lookup is the heuristic.
"""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device
from coldstart_kernels.reduce_scatter.topology import Hypercube

_VMEM_SHARE = 0.7
"""Part of VMEM that the launch may plan for; the rest is the compiler's."""

_BY_TOKENS = ((4096, 8), (2048, 4), (256, 2), (0, 1))
"""At least so many tokens: so many micro-batches."""


@dataclasses.dataclass(frozen=True)
class TuningKey:
    """What the number of micro-batches is looked up by."""

    devices: int
    tokens: int
    hidden: int
    itemsize: int
    device_kind: str

    @property
    def cube(self) -> Hypercube:
        return Hypercube(self.devices)

    @property
    def rows(self) -> int:
        """Rows of one owner, padded to whole tiles."""
        multiple = device.sublane_multiple(self.itemsize)
        return -(-self.tokens // self.devices // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class TuningParams:
    """How the columns are cut."""

    micro_batches: int
    """Pieces of the columns that go one after the other, phase 1 of the next beside phase 2 of this one."""
    vmem_limit_bytes: int
    """What the compiler is told that the launch may use."""

    def width(self, key: TuningKey) -> int:
        """Columns of one slice: a micro-batch has as many slices as the hypercube has dimensions."""
        return key.hidden // self.micro_batches // key.cube.dimensions

    def check(self, key: TuningKey) -> None:
        """Refuse what doesn't divide, what the TPU can't lay out, and what doesn't fit.

        Raises:
            ValueError: naming the figures.
        """
        pieces = self.micro_batches * key.cube.dimensions
        if self.micro_batches <= 0 or key.hidden % pieces:
            raise ValueError(
                f"hidden {key.hidden} doesn't divide into {self.micro_batches} micro-batches of "
                f"{key.cube.dimensions} slices, one per dimension of {key.cube.chips} chips: "
                f"{key.hidden % pieces if pieces > 0 else key.hidden} columns would be left out"
            )
        if self.width(key) % device.LANES:
            raise ValueError(
                f"slices of {self.width(key)} columns (hidden {key.hidden}, {self}, {key.cube.chips} "
                f"chips) are not a multiple of {device.LANES}"
            )
        needed = vmem_needed(key, self)
        if needed > self.vmem_limit_bytes:
            raise ValueError(
                f"{self} needs {needed} bytes of VMEM, {key} leaves {self.vmem_limit_bytes}"
            )


def vmem_budget(key: TuningKey) -> int:
    """Bytes that the launch may plan for on this device."""
    return int(device.vmem_bytes(key.device_kind) * _VMEM_SHARE)


def vmem_needed(key: TuningKey, params: TuningParams) -> int:
    """The sum at the top of kernel.py: two sets of buffers."""
    chips = key.cube.chips
    chunk = key.rows * params.width(key) * key.itemsize
    return 2 * key.cube.dimensions * (chips + chips + chips - 1) * chunk


def heuristic(key: TuningKey) -> TuningParams:
    """More micro-batches for more tokens; then the nearest count that divides, more before fewer, and fits.

    Raises:
        ValueError: no count divides the columns into whole lanes and fits.
    """
    key.cube.check()
    wanted = next(count for tokens, count in _BY_TOKENS if key.tokens >= tokens)
    budget = vmem_budget(key)
    most = key.hidden // (key.cube.dimensions * device.LANES)
    for count in (*range(wanted, most + 1), *range(min(wanted, most + 1) - 1, 0, -1)):
        params = TuningParams(count, budget)
        try:
            params.check(key)
        except ValueError:
            continue
        return params
    TuningParams(wanted, budget).check(key)
    raise AssertionError("the check above raises, as it did in the loop")
