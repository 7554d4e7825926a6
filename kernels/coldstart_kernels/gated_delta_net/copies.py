"""Copies of a sequence's two states between its slot in HBM and a buffer in VMEM."""

from __future__ import annotations

from typing import Any

from jax.experimental.pallas import tpu as pltpu


class StateCopies:
    """Makes the copies of one launch; to wait for a copy, describe it again as it was when started."""

    def __init__(self, pools: tuple[Any, Any], buffers: tuple[Any, Any], arrived: Any, left: Any):
        """Pools [slots, ...], buffers [count, ...], and semaphores [count, 2] of each direction."""
        self._parts = tuple(zip(pools, buffers, strict=True))
        self._arrived, self._left = arrived, left

    def fetch(self, at: Any, slot: Any) -> list[Any]:
        """Slot to buffer `at`."""
        return [
            pltpu.make_async_copy(pool.at[slot], buffer.at[at], self._arrived.at[at, part])
            for part, (pool, buffer) in enumerate(self._parts)
        ]

    def write_back(self, at: Any, slot: Any) -> list[Any]:
        """Buffer `at` to slot."""
        return [
            pltpu.make_async_copy(buffer.at[at], pool.at[slot], self._left.at[at, part])
            for part, (pool, buffer) in enumerate(self._parts)
        ]


def start(copies: list[Any]) -> None:
    for copy in copies:
        copy.start()


def wait(copies: list[Any]) -> None:
    for copy in copies:
        copy.wait()
