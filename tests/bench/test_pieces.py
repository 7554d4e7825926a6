"""The NumPy reference of the pieces: against JAX's own run of them, and sharp enough to see what could go wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from coldstart.bench import pieces
from coldstart.models.config import TINY
from coldstart.models.participant import PieceShape, attention_piece

PARTICIPANTS, RANK = 8, 3


def wanted(arguments: Any, branch: str, rank: int = RANK) -> Any:
    return pieces.expected(
        arguments,
        branch=branch,
        rank=rank,
        participants=PARTICIPANTS,
        latent=TINY.latent,
        scale=TINY.scale,
    )


def case(branch: str) -> tuple[list[Any], Any]:
    shape = PieceShape(4, 32, layers=1)
    piece = attention_piece(RANK, PARTICIPANTS, TINY, shape, branch=branch)
    arguments = piece.sample_arguments(seed=7)
    return arguments, np.asarray(jax.jit(piece.function)(*arguments))


@pytest.mark.parametrize("branch", ("sparse", "dense"))
def test_it_agrees_with_the_program(branch: str) -> None:
    arguments, output = case(branch)
    assert pieces.error(output, wanted(arguments, branch)) < pieces.TOLERANCE / 10


def test_it_sees_another_ranks_fragment_where_that_is_read() -> None:
    arguments, output = case("dense")
    for rank in set(range(PARTICIPANTS)) - {RANK}:
        assert pieces.error(output, wanted(arguments, "dense", rank)) > 100 * pieces.TOLERANCE


def test_it_sees_one_changed_index_and_one_changed_limit() -> None:
    arguments, _ = case("sparse")
    before = wanted(arguments, "sparse")
    for which, place, value in ((5, (0, 2, 0), 0), (2, (1,), 1)):
        changed = [np.array(a) for a in arguments]
        changed[which][place] = value
        if (changed[which] == arguments[which]).all():
            changed[which][place] = 2
        assert pieces.error(wanted(changed, "sparse"), before) > pieces.TOLERANCE


def test_a_token_that_sees_nothing_gives_nothing() -> None:
    arguments, _ = case("sparse")
    arguments[5][...] = -1
    assert not wanted(arguments, "sparse").any()


def test_nan_and_another_shape_are_never_right() -> None:
    good = np.ones((2, 2))
    assert pieces.error(good, good) == 0
    assert pieces.error(np.full((2, 2), np.nan), good) == float("inf")
    assert pieces.error(np.ones((2, 1)), good) == float("inf")


def test_shapes_are_distinct_and_the_first_ones_of_more() -> None:
    many = pieces.shapes(132)
    assert len({dataclasses.astuple(shape) for shape in many}) == 132
    assert pieces.shapes(12) == many[:12]
