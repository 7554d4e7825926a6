"""What travels between devices: one object with a method per exchange of a step.

`MeshExchange` is for code inside `shard_map`, and its ranks are runtime data: one program serves all devices.
`LoneExchange` is for one participant's program by itself: nothing travels, shapes stay what they are, and its rank
comes in as data too, except where `literal` says that it is a number in the program.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from coldstart.models.glm.layout import ALL, DCP


class Exchange(Protocol):
    """The exchanges of one step. Shapes are a device's."""

    def dcp_rank(self) -> jax.Array:
        """This device's place in its head group, int32."""

    def tp_rank(self) -> jax.Array:
        """This device's place among all, int32."""

    def fragment(self, q: jax.Array, own: int) -> jax.Array:
        """This device's heads out of its group's: [tokens, heads, width] -> [tokens, own, width]."""

    def gather_heads(self, q: jax.Array) -> jax.Array:
        """Own heads to the group's: [tokens, own, width] -> [tokens, heads, width]."""

    def gather_scores(self, scores: jax.Array) -> jax.Array:
        """Each device's best scores, one after the other: [tokens, k] -> [tokens, dcp * k]."""

    def gather_lse(self, lse: jax.Array) -> jax.Array:
        """[tokens, heads] -> [dcp, tokens, heads]."""

    def scatter_heads(self, partial: jax.Array) -> jax.Array:
        """Sum over the group, split by heads: [tokens, heads, width] -> [tokens, own, width]."""

    def sum_all(self, partial: jax.Array) -> jax.Array:
        """Sum over all devices."""


class MeshExchange:
    """Collectives over the mesh's axes."""

    def dcp_rank(self) -> jax.Array:
        return jax.lax.axis_index(DCP).astype(jnp.int32)

    def tp_rank(self) -> jax.Array:
        return jax.lax.axis_index(ALL).astype(jnp.int32)

    def fragment(self, q: jax.Array, own: int) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(q, self.dcp_rank() * own, own, axis=1)

    def gather_heads(self, q: jax.Array) -> jax.Array:
        return jax.lax.all_gather(q, DCP, axis=1, tiled=True)

    def gather_scores(self, scores: jax.Array) -> jax.Array:
        return jax.lax.all_gather(scores, DCP, axis=1, tiled=True)

    def gather_lse(self, lse: jax.Array) -> jax.Array:
        return jax.lax.all_gather(lse, DCP, axis=0)

    def scatter_heads(self, partial: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(partial, DCP, scatter_dimension=1, tiled=True)

    def sum_all(self, partial: jax.Array) -> jax.Array:
        return jax.lax.psum(partial, ALL)


@dataclasses.dataclass(frozen=True)
class LoneExchange:
    """A participant by itself: what it computes from is its own alone."""

    dcp: int
    rank: jax.Array  # int32 scalar: the rank as data
    literal: int
    """The rank as a number in the program. Only the fragment's offset is made from it."""

    def dcp_rank(self) -> jax.Array:
        return self.rank % self.dcp

    def tp_rank(self) -> jax.Array:
        return self.rank

    def fragment(self, q: jax.Array, own: int) -> jax.Array:
        start = self.literal % self.dcp * own
        return jax.lax.slice_in_dim(q, start, start + own, axis=1)

    def gather_heads(self, q: jax.Array) -> jax.Array:
        return jnp.tile(q, (1, self.dcp, 1))

    def gather_scores(self, scores: jax.Array) -> jax.Array:
        return jnp.tile(scores, (1, self.dcp))

    def gather_lse(self, lse: jax.Array) -> jax.Array:
        return jnp.broadcast_to(lse, (self.dcp, *lse.shape))

    def scatter_heads(self, partial: jax.Array) -> jax.Array:
        return partial[:, : partial.shape[1] // self.dcp]

    def sum_all(self, partial: jax.Array) -> jax.Array:
        return partial
