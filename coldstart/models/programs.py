"""The named programs that plans warm, and how each is lowered from shapes alone.

A `Program` is a name, a bucket and a function from devices to `jax.stages.Lowered`. For the decoder it calls the very
jitted function that `TinyMoe.generate` calls, with `ShapeDtypeStruct`s in place of arrays: same shapes, types,
shardings, donation and name, so the same module (locations aside, which hold the call stack);
`tests/models/test_tiny_moe.py` compares them. Nothing here needs the devices to exist: described ones lower as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax

from coldstart.models.config import TINY, Config
from coldstart.models.participant import PIECE_SHAPES, PieceShape, attention_piece
from coldstart.models.tiny_moe import DECODE_BATCHES, PREFILL_TOKENS, TinyMoe


@dataclasses.dataclass(frozen=True)
class Program:
    """One program of a plan."""

    name: str
    bucket: Mapping[str, int]
    devices: int
    """How many devices it spans."""
    _lower: Callable[[Sequence[jax.Device]], jax.stages.Lowered]

    def lower(self, devices: Sequence[jax.Device]) -> jax.stages.Lowered:
        """Trace and lower for these devices, in this order; extra ones are left alone.

        Raises:
            ValueError: too few devices.
        """
        if len(devices) < self.devices:
            raise ValueError(f"{self.name} spans {self.devices} devices, got {len(devices)}")
        return self._lower(list(devices)[: self.devices])


def demo_programs(mesh_devices: int = 16, config: Config = TINY) -> list[Program]:
    """Everything that `TinyMoe.generate` can ask for on a mesh of so many devices."""
    prefill = [
        Program(
            f"{config.name}.prefill",
            {"tokens": tokens},
            mesh_devices,
            lambda devices, tokens=tokens: TinyMoe(config, devices).lower_prefill(tokens),  # type: ignore[misc]
        )
        for tokens in PREFILL_TOKENS
        if tokens <= config.positions
    ]
    decode = [
        Program(
            f"{config.name}.decode",
            {"batch": batch},
            mesh_devices,
            lambda devices, batch=batch: TinyMoe(config, devices).lower_decode(batch),  # type: ignore[misc]
        )
        for batch in DECODE_BATCHES
        if batch <= config.slots
    ]
    return prefill + decode


def participant_programs(
    rank: int,
    count: int,
    *,
    branch: str = "sparse",
    config: Config = TINY,
    shapes: Sequence[PieceShape] = PIECE_SHAPES,
) -> list[Program]:
    """The attention pieces of participant `rank` of `count`, each on one device."""

    def lowering(shape: PieceShape) -> Callable[[Sequence[jax.Device]], jax.stages.Lowered]:
        return lambda devices: attention_piece(
            rank, count, config, shape, branch=branch, device=devices[0]
        ).lower()

    return [Program(f"mla-{branch}", shape.bucket, 1, lowering(shape)) for shape in shapes]
