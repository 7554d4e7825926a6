"""Tile sizes of the two launches: what they are looked up by, what they cost, and a heuristic.

No tuned table ships yet (nothing was timed on a TPU), so every lookup is the heuristic.
"""

from __future__ import annotations

import dataclasses

from coldstart_kernels import device
from coldstart_kernels.gated_delta_net.rule import BLOCK
from coldstart_kernels.gated_delta_net.shape import CONV_TAPS, HISTORY, Shape

_VMEM_SHARE = 0.7
"""Part of VMEM that a launch may plan for; the rest is the compiler's (spills, semaphores, internal scratch)."""

_CHUNK = 64
_DECODE_TILE = 4


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _padded_bytes(rows: int, columns: int, itemsize: int) -> int:
    """Bytes of a 2-D block in VMEM, where it is laid out in whole tiles."""
    tile_rows = device.sublane_multiple(itemsize)
    return _round_up(rows, tile_rows) * _round_up(columns, device.LANES) * itemsize


@dataclasses.dataclass(frozen=True)
class TuningKey:
    """What tile sizes are looked up by."""

    shape: Shape
    tokens: int
    window: int
    """Most tokens of one decode row."""
    itemsize: int
    """Of the projections and of the conv state; the recurrent state is fp32."""
    device_kind: str


@dataclasses.dataclass(frozen=True)
class TuningParams:
    """Tile sizes of both launches."""

    chunk: int
    """Token rows of a prefill tile."""
    decode_tile: int
    """Decode rows of a grid step; twice as many states are in VMEM."""
    vmem_limit_bytes: int
    """What the compiler is told that a launch may use."""

    def check(self, key: TuningKey) -> None:
        """Refuse what the TPU can't lay out or what doesn't fit.

        Raises:
            ValueError: naming the figure, the rule and the shape.
        """
        shape = key.shape
        if shape.key_dim != shape.value_dim or shape.key_dim % device.LANES:
            raise ValueError(
                f"the kernel needs equal head widths, multiples of {device.LANES}: {shape}"
            )
        if self.chunk <= 0 or self.chunk % BLOCK:
            raise ValueError(f"chunk {self.chunk} is not a positive multiple of {BLOCK}")
        if self.decode_tile <= 0:
            raise ValueError(f"decode_tile {self.decode_tile} is not positive")
        for name, needed in (
            ("prefill", prefill_vmem(key, self)),
            ("decode", decode_vmem(key, self)),
        ):
            if needed > self.vmem_limit_bytes:
                raise ValueError(
                    f"{name} at {self} needs {needed} bytes of VMEM, {key} leaves "
                    f"{self.vmem_limit_bytes}"
                )


def vmem_budget(key: TuningKey) -> int:
    """Bytes that one launch may plan for on this device."""
    return int(device.vmem_bytes(key.device_kind) * _VMEM_SHARE)


def prefill_vmem(key: TuningKey, params: TuningParams) -> int:
    """The sum at the top of prefill_kernel.py: operands and results twice, buffers as they are."""
    shape, chunk = key.shape, params.chunk
    gates = 2 * shape.key_heads * _padded_bytes(shape.group, chunk, 4)
    moved = (
        _padded_bytes(chunk, shape.channels, key.itemsize)
        + _padded_bytes(chunk, shape.values, key.itemsize)
        + gates
        + _constants(shape)
        + 2 * shape.key_heads * _padded_bytes(shape.group, 1, 4)
    )
    # Of one value head: q, k, v, right sides, solution, outputs in fp32; five chunk x chunk matrices.
    rows = shape.group * shape.value_dim + 8 * shape.key_dim
    values = _padded_bytes(chunk, rows, 4) + 5 * _padded_bytes(chunk, chunk, 4)
    return 2 * moved + 2 * _state(key) + values


def decode_vmem(key: TuningKey, params: TuningParams) -> int:
    """The sum at the top of decode_kernel.py."""
    shape, tile = key.shape, params.decode_tile
    head_rows = _padded_bytes(shape.value_heads, shape.value_dim, 4)
    moved = (
        tile * _padded_bytes(key.window, shape.channels, 4)
        + 2 * tile * _padded_bytes(key.window, shape.value_heads, 4)
        + tile * key.window * _padded_bytes(shape.value_heads, shape.value_dim, key.itemsize)
        + _constants(shape)
        + 2 * _padded_bytes(1, shape.value_heads, 4)
    )
    scratch = 3 * head_rows + _padded_bytes(shape.channels // shape.key_dim, shape.key_dim, 4)
    # The convolution's inputs, products and results, a row of channels each in a tile of eight.
    values = 3 * _padded_bytes(CONV_TAPS, shape.channels, 4)
    return 2 * moved + 2 * tile * _state(key) + scratch + values


def _constants(shape: Shape) -> int:
    return _padded_bytes(CONV_TAPS, shape.channels, 4) + _padded_bytes(1, shape.channels, 4)


def _state(key: TuningKey) -> int:
    """Both states of one sequence."""
    shape = key.shape
    recurrent = shape.value_heads * _padded_bytes(shape.key_dim, shape.value_dim, 4)
    return recurrent + _padded_bytes(HISTORY, shape.channels, key.itemsize)


def heuristic(key: TuningKey) -> TuningParams:
    """Chunks of 64 rows and tiles of four decode rows; less where the batch is smaller or VMEM is short.

    Raises:
        ValueError: not even the smallest tiles fit.
    """
    chunk = min(_CHUNK, _round_up(key.tokens, BLOCK))
    budget = vmem_budget(key)
    tile = _DECODE_TILE
    while tile > 1 and decode_vmem(key, TuningParams(chunk, tile, budget)) > budget:
        tile //= 2
    while chunk > BLOCK and prefill_vmem(key, TuningParams(chunk, tile, budget)) > budget:
        chunk //= 2
    params = TuningParams(_round_up(chunk, BLOCK), tile, budget)
    params.check(key)
    return params
