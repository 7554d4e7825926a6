"""The small programs beside a backbone that every participant of a server compiles, and a fleet's whole list.

A serving runtime compiles, for each padded number of tokens, more than the model: it picks the rows that are to be
sampled, makes their logits, samples, and gives log-probabilities. None of them holds a participant's fragment, so they
are equal by themselves; in a plan they are most of the count and little of the compile seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from coldstart.models.config import TINY, Config
from coldstart.models.participant import PIECE_SHAPES, PieceShape
from coldstart.models.programs import Program, participant_programs

VOCABULARY = 512
TOP = 8


def pick_rows(hidden: jax.Array, rows: jax.Array) -> jax.Array:
    """hidden [tokens, width], rows [requests] int32 -> [requests, width]."""
    return jnp.take(hidden, rows, axis=0)


def logits(hidden: jax.Array, head: jax.Array) -> jax.Array:
    """hidden [requests, width], head [width, vocabulary] -> [requests, vocabulary] float32."""
    return jnp.einsum("rw,wv->rv", hidden, head, preferred_element_type=jnp.float32)


def sample(scores: jax.Array, temperature: jax.Array, noise: jax.Array) -> jax.Array:
    """scores and Gumbel noise [requests, vocabulary], temperature [requests] -> tokens [requests] int32."""
    scaled = scores / jnp.maximum(temperature, 1e-6)[:, None] + noise
    return jnp.where(temperature > 0, jnp.argmax(scaled, -1), jnp.argmax(scores, -1)).astype(
        jnp.int32
    )


def log_probabilities(
    scores: jax.Array, tokens: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """scores [requests, vocabulary], tokens [requests] -> the token's own [requests], the best TOP and their ids."""
    normal = jax.nn.log_softmax(scores)
    best, chosen = jax.lax.top_k(normal, TOP)
    return jnp.take_along_axis(normal, tokens[:, None], axis=1)[:, 0], best, chosen


def family_programs(requests: int, tokens: int, config: Config = TINY) -> list[Program]:
    """The small programs of one bucket, each on one device."""
    f32, i32 = jnp.float32, jnp.int32
    of_scores = ((requests, VOCABULARY), f32)
    families: list[tuple[Callable[..., object], list[tuple[tuple[int, ...], object]]]] = [
        (pick_rows, [((tokens, config.hidden), f32), ((requests,), i32)]),
        (logits, [((requests, config.hidden), f32), ((config.hidden, VOCABULARY), f32)]),
        (sample, [of_scores, ((requests,), f32), of_scores]),
        (log_probabilities, [of_scores, ((requests,), i32)]),
    ]

    def lowering(
        function: Callable[..., object], shapes: list[tuple[tuple[int, ...], object]]
    ) -> Callable[[Sequence[jax.Device]], jax.stages.Lowered]:
        def lower(devices: Sequence[jax.Device]) -> jax.stages.Lowered:
            here = SingleDeviceSharding(devices[0])
            arguments = [
                jax.ShapeDtypeStruct(shape, dtype, sharding=here) for shape, dtype in shapes
            ]
            return jax.jit(function).lower(*arguments)

        return lower

    bucket = {"requests": requests, "tokens": tokens}
    return [
        Program(function.__name__.replace("_", "-"), bucket, 1, lowering(function, shapes))
        for function, shapes in families
    ]


def fleet_programs(
    rank: int = 0,
    participants: int = 16,
    branch: str = "sparse",
    shapes: Sequence[PieceShape] = PIECE_SHAPES,
) -> list[Program]:
    """All that participant `rank` of so many compiles: a backbone for each shape and the families of each bucket.

    Raises:
        ValueError: a rank, count or branch that doesn't exist.
    """
    backbones = participant_programs(rank, participants, branch=branch, shapes=shapes)
    buckets = sorted({shape.tokens for shape in shapes})
    families = [
        program for tokens in buckets for program in family_programs(max(1, tokens // 2), tokens)
    ]
    return backbones + families
