"""Chips as corners of a hypercube, two devices each.

Device n of the axis is core n % 2 of chip n // 2, and bit e of the chip's number is its place along dimension e. With
devices in ascending order of their ids on a 2x2x2 slice, the bits are x, y and z: each dimension is one axis of links.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax

CORES = 2


@dataclasses.dataclass(frozen=True)
class Hypercube:
    """The devices of one axis."""

    devices: int

    @property
    def chips(self) -> int:
        return self.devices // CORES

    @property
    def dimensions(self) -> int:
        return self.chips.bit_length() - 1

    def check(self) -> None:
        """Refuse what is no hypercube of at least two chips.

        Raises:
            ValueError: naming the count.
        """
        chips = self.chips
        if self.devices % CORES or chips < 2 or chips & (chips - 1):
            raise ValueError(
                f"{self.devices} devices are not 2, 4, 8, ... chips of {CORES} devices each"
            )

    def dimension(self, part: int, step: int) -> int:
        """Along which dimension a slice of columns goes at a step: each starts with its own, then cyclically."""
        return (part + step) % self.dimensions


def check_order(devices: Sequence[jax.Device]) -> None:
    """Refuse devices that aren't in the order that the exchange takes for granted.

    Two that follow each other share a chip, core 0 first, and chips whose numbers differ in one bit differ along one
    axis, where the devices say where they are (a CPU's don't).

    Raises:
        ValueError: naming the first two devices that don't fit.
    """
    cube = Hypercube(len(devices))
    cube.check()
    if not all(hasattr(device, "coords") for device in devices):
        return
    for chip in range(cube.chips):
        first, second = devices[CORES * chip], devices[CORES * chip + 1]
        cores = (first.core_on_chip, second.core_on_chip)
        if tuple(first.coords) != tuple(second.coords) or cores != (0, 1):
            raise ValueError(
                f"devices {CORES * chip} and {CORES * chip + 1} of the axis, {first} and {second}, "
                "are not core 0 and 1 of one chip: sort the devices by id"
            )
        for bit in range(cube.dimensions):
            other = devices[CORES * (chip ^ (1 << bit))]
            apart = [a != b for a, b in zip(first.coords, other.coords, strict=True)]
            if sum(apart) != 1:
                raise ValueError(
                    f"{first} at {first.coords} and {other} at {other.coords} are neighbours of the "
                    f"hypercube but not along one axis: sort the devices by id"
                )
