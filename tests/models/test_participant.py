"""Participant programs: they compute the same, differ where they must, and in one literal where they need not."""

from __future__ import annotations

import dataclasses
import re

import jax
import numpy as np
import pytest

from coldstart.models.config import TINY
from coldstart.models.participant import PIECE_SHAPES, Piece, PieceShape, attention_piece
from coldstart.models.programs import participant_programs

COUNT = 16
SMALL = PieceShape(tokens=3, kv=20, top=6, layers=2)
ONE_LAYER = dataclasses.replace(SMALL, layers=1)


def piece(rank: int, branch: str, shape: PieceShape = SMALL) -> Piece:
    return attention_piece(rank, COUNT, TINY, shape, branch=branch)


def by_numpy(rank: int, branch: str, arguments: list[np.ndarray]) -> np.ndarray:
    """One layer, one token, one head at a time, in double precision."""
    q_full, kv, limits, w_uv, o_proj, *indices = arguments
    layers, tokens, heads, _ = q_full.shape
    own = heads // COUNT
    if branch == "dense":
        q_full = q_full[:, :, rank * own : (rank + 1) * own]
    total = np.zeros((tokens, TINY.hidden))
    for layer in range(layers):
        for t in range(tokens):
            listed = indices[0][layer, t] if indices else range(kv.shape[2])
            chosen = [int(p) for p in listed if 0 <= p < limits[t]]
            if not chosen:
                continue
            rows = kv[layer, t][chosen].astype(np.float64)
            for h in range(q_full.shape[2]):
                scores = rows @ q_full[layer, t, h] / np.sqrt(TINY.nope + TINY.rope)
                weights = np.exp(scores - scores.max())
                latent = weights @ rows[:, : TINY.latent] / weights.sum()
                total[t] += latent @ w_uv[layer, h] @ o_proj[layer, h]
    return total


@pytest.mark.parametrize(("branch", "rank"), [("sparse", 5), ("dense", 0), ("dense", 5)])
def test_piece_equals_numpy(branch: str, rank: int) -> None:
    made = piece(rank, branch)
    arguments = made.sample_arguments()
    # fp32 against double over a few thousand terms of order one.
    np.testing.assert_allclose(
        jax.jit(made.function)(*arguments), by_numpy(rank, branch, arguments), atol=2e-4
    )


def test_sparse_results_are_the_same_bits_for_all_ranks_and_dense_ones_differ() -> None:
    for branch, distinct in (("sparse", 1), ("dense", 3)):
        arguments = piece(0, branch, ONE_LAYER).sample_arguments()
        results = {
            np.asarray(jax.jit(piece(rank, branch, ONE_LAYER).function)(*arguments)).tobytes()
            for rank in (0, 1, COUNT - 1)
        }
        assert len(results) == distinct, branch


@pytest.mark.parametrize("branch", ["sparse", "dense"])
def test_ranks_differ_in_the_slice_and_nothing_else(branch: str) -> None:
    texts = [piece(rank, branch).lower().as_text() for rank in range(4)]
    assert len(set(texts)) == 4
    own = TINY.heads // COUNT

    def fragment(rank: int) -> str:
        return f"[0:{SMALL.tokens}, {rank * own}:{(rank + 1) * own}, 0:{TINY.width}]"

    for rank, text in enumerate(texts):
        assert text.count(fragment(rank)) == SMALL.layers
        assert text.replace(fragment(rank), fragment(0)) == texts[0]


def test_the_compiler_agrees_on_which_fragments_are_dead() -> None:
    """XLA sees through an interpreted kernel: ranks that compute the same get the same code."""
    for branch, distinct in (("sparse", 1), ("dense", 2)):
        codes = set()
        for rank in (0, 3):
            text = piece(rank, branch, ONE_LAYER).lower().compile().as_text()
            text = re.sub(r", metadata=\{[^}]*\}", "", text)
            codes.add(
                re.sub(r"(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)+", "", text)
            )
        assert len(codes) == distinct, branch


def test_program_list() -> None:
    programs = participant_programs(2, 8, branch="dense")
    assert {program.name for program in programs} == {"mla-dense"}
    assert [program.bucket for program in programs] == [shape.bucket for shape in PIECE_SHAPES]
    assert len({tuple(program.bucket.items()) for program in programs}) == len(programs)
    lowered = programs[0].lower(jax.devices()[:1])
    wanted = attention_piece(2, 8, TINY, PIECE_SHAPES[0], branch="dense").lower()
    assert lowered.as_text() == wanted.as_text()


@pytest.mark.parametrize(
    ("rank", "count", "branch", "words"),
    [
        (16, 16, "sparse", "participant 16 of 16"),
        (-1, 16, "sparse", "participant -1 of 16"),
        (0, 5, "sparse", "divides 32 heads"),
        (0, 4, "both", "branch 'both'"),
    ],
)
def test_refusals(rank: int, count: int, branch: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention_piece(rank, count, TINY, SMALL, branch=branch)
