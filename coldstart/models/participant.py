"""Participant programs: the attention pieces of one rank, as a program for one device.

Runtimes with one process per device give each process its own chip as the first one and a program of its own.
Participant r of n takes its heads out of the full query with a slice at r * h, where r * h is a Python integer: a
literal in the program. In the sparse branch nobody reads that slice, so the participants' programs differ in a number
that cannot matter; in the dense branch it is read, and they differ as they must. This models that shape in JAX.

Everything else is the same for all ranks: weights and cache are arguments, one device, no mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from coldstart.models.config import Config
from coldstart_kernels import mla_attention

BRANCHES = ("sparse", "dense")


@dataclasses.dataclass(frozen=True)
class PieceShape:
    """The padded shape that one piece is compiled at."""

    tokens: int
    """Decoding sequences, one token each."""
    kv: int
    """Positions in the cache of each."""
    top: int = 32
    """Length of the index list (sparse)."""
    layers: int = 4
    """Layers whose attention the piece holds."""

    @property
    def bucket(self) -> dict[str, int]:
        """The shape as a plan's bucket."""
        return {"tokens": self.tokens, "kv": self.kv}


PIECE_SHAPES = (
    PieceShape(8, 128),
    PieceShape(8, 256),
    PieceShape(16, 128),
    PieceShape(16, 256),
    PieceShape(32, 128),
    PieceShape(32, 256),
)


@dataclasses.dataclass(frozen=True)
class Piece:
    """A function to jit, the abstract arguments to lower it with, and a way to make real ones."""

    name: str
    function: Callable[..., jax.Array]
    arguments: tuple[jax.ShapeDtypeStruct, ...]

    def lower(self) -> jax.stages.Lowered:
        """Lower for the devices that the arguments name."""
        return jax.jit(self.function).lower(*self.arguments)

    def sample_arguments(self, seed: int = 0) -> list[np.ndarray[Any, Any]]:
        """Host arrays that fit; the same for every rank, so that results can be compared."""
        rng = np.random.default_rng(seed)
        kv = self.arguments[1].shape[2]
        made = []
        for argument in self.arguments:
            if argument.dtype != jnp.int32:
                made.append((rng.standard_normal(argument.shape) * 0.3).astype(argument.dtype))
            elif len(argument.shape) == 1:  # limits
                made.append(rng.integers(1, kv + 1, argument.shape).astype(np.int32))
            else:  # index lists
                made.append(rng.integers(-1, kv, argument.shape).astype(np.int32))
        return made


def attention_piece(
    rank: int,
    count: int,
    config: Config,
    shape: PieceShape,
    *,
    branch: str = "sparse",
    device: jax.Device | None = None,
) -> Piece:
    """The attention of participant `rank` of `count`: op, values out of the latents, projection, summed over layers.

    Args:
        device: the one device to compile for, live or described; the process's first by default.

    Raises:
        ValueError: a rank, count or branch that doesn't exist.
    """
    if not 0 <= rank < count or config.heads % count:
        raise ValueError(
            f"participant {rank} of {count} doesn't exist: rank is 0 to {count - 1}, "
            f"and the count divides {config.heads} heads"
        )
    if branch not in BRANCHES:
        raise ValueError(f"branch {branch!r} is not one of {BRANCHES}")
    device = jax.devices()[0] if device is None else device
    own_heads = config.heads // count
    interpret = device.platform != "tpu"

    def layer_piece(
        q_full: jax.Array,  # [tokens, heads, width]
        kv: jax.Array,  # [tokens, positions, width]
        limits: jax.Array,  # [tokens] int32
        w_uv: jax.Array,  # [heads that come out, latent, value]
        o_proj: jax.Array,  # [heads that come out, value, hidden]
        indices: jax.Array | None,  # [tokens, index list] int32
    ) -> jax.Array:
        start = rank * own_heads
        q_fragment = jax.lax.slice(
            q_full, (0, start, 0), (shape.tokens, start + own_heads, config.width)
        )
        latents, _ = mla_attention(
            q_fragment, q_full, kv, limits, indices,
            branch=branch, latent_width=config.latent, scale=config.scale,
            implementation="pallas", interpret=interpret,
        )  # fmt: skip
        values = jnp.einsum("thl,hlv->thv", latents, w_uv)
        return jnp.einsum("thv,hvd->td", values, o_proj)

    # Named by branch and not by rank: a name would be one more thing that differs.
    def mla_piece(
        q_full: jax.Array,
        kv: jax.Array,
        limits: jax.Array,
        w_uv: jax.Array,
        o_proj: jax.Array,
        *indices: jax.Array,
    ) -> jax.Array:
        total = jnp.zeros((shape.tokens, config.hidden), config.dtype)
        for layer in range(shape.layers):
            chosen = indices[0][layer] if indices else None
            total += layer_piece(
                q_full[layer], kv[layer], limits, w_uv[layer], o_proj[layer], chosen
            )
        return total

    return Piece(
        f"mla-{branch}",
        mla_piece,
        _abstract_arguments(config, shape, branch, own_heads, SingleDeviceSharding(device)),
    )


def _abstract_arguments(
    config: Config,
    shape: PieceShape,
    branch: str,
    own_heads: int,
    here: SingleDeviceSharding,
) -> tuple[jax.ShapeDtypeStruct, ...]:
    heads_out = own_heads if branch == "dense" else config.heads
    s, layers = shape, shape.layers
    arguments = [
        ((layers, s.tokens, config.heads, config.width), config.dtype),
        ((layers, s.tokens, s.kv, config.width), config.dtype),
        ((s.tokens,), "int32"),
        ((layers, heads_out, config.latent, config.value), config.dtype),
        ((layers, heads_out, config.value, config.hidden), config.dtype),
    ]
    if branch == "sparse":
        arguments.append(((layers, s.tokens, s.top), "int32"))
    return tuple(
        jax.ShapeDtypeStruct(size, jnp.dtype(dtype), sharding=here) for size, dtype in arguments
    )
