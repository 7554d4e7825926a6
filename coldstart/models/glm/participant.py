"""One participant's backbone as a one-device program, as a runtime with a process per device compiles it.

Each participant sees its own device first. Its rank is an argument wherever it matters (which positions, experts and
rows of the vocabulary are its own), so that all participants' programs could be one. All but one thing: its fragment of
the query is a slice at rank * heads, a number in the program. The sparse branch never reads that fragment, so the
programs differ in what can't matter. With `fixed` each hands over the first heads instead; nothing else moves.

Nothing travels between participants here; where it would, arrays keep the shapes they would have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec, SingleDeviceSharding

from coldstart.models.glm import weights
from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.exchange import LoneExchange
from coldstart.models.glm.layout import ALL, DCP, MODEL, Layout
from coldstart.models.glm.model import Cache, cache_specs, step
from coldstart.models.glm.ops import Implementation
from coldstart.models.glm.weights import Params
from coldstart.models.programs import Program


@dataclasses.dataclass(frozen=True)
class Participant:
    """Participant `rank` of a layout's devices."""

    config: GlmConfig
    layout: Layout
    rank: int
    pages: int
    fixed: bool = False
    """Hand over the same fragment on all ranks, as the corrected runtime does."""

    def __post_init__(self) -> None:
        self.layout.check(self.config)
        if not 0 <= self.rank < self.layout.tp:
            raise ValueError(f"participant {self.rank} of {self.layout.tp} doesn't exist")
        if not self.layout.replicate_q:
            raise ValueError("without query replication a participant has no fragment to slice")

    def backbone(self, interpret: bool) -> Any:
        """The function to jit. Named without its rank: a name would be one more thing that differs."""

        def backbone(
            params: Params,
            cache: Cache,
            rank: jax.Array,  # int32
            tokens: jax.Array,  # [tokens] int32
            positions: jax.Array,  # [tokens] int32
            requests: jax.Array,  # [tokens] int32
            page_table: jax.Array,  # [requests, pages of a sequence] int32
        ) -> tuple[jax.Array, Cache]:
            literal = 0 if self.fixed else self.rank
            return step(
                params, cache, tokens, positions, requests, page_table,
                config=self.config, layout=self.layout,
                exchange=LoneExchange(self.layout.dcp, rank, literal),
                implementation=Implementation("pallas", interpret=interpret), blocks=None,
            )  # fmt: skip

        return backbone

    def arguments(self, tokens: int, requests: int, device: jax.Device) -> tuple[Any, ...]:
        """This participant's share of everything, as shapes on a device."""
        here = SingleDeviceSharding(device)

        def shape(size: Sequence[int], dtype: Any, split: PartitionSpec) -> jax.ShapeDtypeStruct:
            own = [
                length // self._parts(axis)
                for length, axis in zip(size, [*split, *[None] * len(size)], strict=False)
            ]
            return jax.ShapeDtypeStruct(tuple(own), dtype, sharding=here)

        whole = PartitionSpec()
        params = weights.expand(self.config, weights.weight_specs(self.config, self.layout), shape)
        cache = jax.tree.map(
            lambda spec: shape(spec.shape, spec.dtype, PartitionSpec(DCP)),
            cache_specs(self.config, self.layout, self.pages, None),
        )
        ints = shape((tokens,), np.int32, whole)
        table = shape((requests, self.layout.pages_for(self.config.positions)), np.int32, whole)
        return params, cache, shape((), np.int32, whole), ints, ints, ints, table

    def lower(self, tokens: int, requests: int, device: jax.Device) -> jax.stages.Lowered:
        """Lower for one device, live or described."""
        function = self.backbone(interpret=device.platform != "tpu")
        lowered: jax.stages.Lowered = jax.jit(function, donate_argnums=1).lower(
            *self.arguments(tokens, requests, device)
        )
        return lowered

    def _parts(self, axis: Any) -> int:
        """Into how many parts a dimension is split that goes over these axes."""
        return {
            None: 1,
            MODEL: self.layout.model,
            DCP: self.layout.dcp,
            ALL: self.layout.tp,
        }[tuple(axis) if isinstance(axis, list | tuple) else axis]


def participant_programs(
    participant: Participant, buckets: Sequence[tuple[int, int]]
) -> list[Program]:
    """Its backbones at buckets of (tokens, requests), each on the first of the devices it is given."""

    def program(tokens: int, requests: int) -> Program:
        return Program(
            f"{participant.config.name}.backbone",
            {"tokens": tokens, "requests": requests},
            1,
            lambda devices: participant.lower(tokens, requests, devices[0]),
        )

    return [program(tokens, requests) for tokens, requests in buckets]
