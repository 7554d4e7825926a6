"""Choosing over ranks that exchange scores only: equal to one rank's choice, ties by the stated rule."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from coldstart_kernels import keep_winners, ownership
from coldstart_kernels.mla_indexer.winners import best, everything

RANKS, K, TOKENS = 4, 6, 5
best_of = jax.jit(best, static_argnums=1)
keep = jax.jit(keep_winners)


def split(scores: np.ndarray, interleave: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each rank's positions, and its scores as it would have them; -inf past its own."""
    ids = np.arange(scores.shape[1])
    held = [ids[ownership.owner_of(ids, RANKS, interleave) == rank] for rank in range(RANKS)]
    width = max(len(h) for h in held)
    own = [np.full((TOKENS, width), -np.inf, np.float32) for _ in held]
    for array, positions in zip(own, held, strict=True):
        array[:, : len(positions)] = scores[:, positions]
    return held, own


def choose(scores: np.ndarray, interleave: int = 2) -> list[list[set[int]]]:
    """What every rank keeps, as positions of the whole: [rank][token]."""
    held, own = split(scores, interleave)
    candidates = [best_of(part, K) for part in own]
    gathered = np.stack([np.asarray(found) for found, _ in candidates])
    kept = []
    for rank, (_, slots) in enumerate(candidates):
        winners = np.asarray(keep(np.asarray(slots), gathered, rank))
        for row in winners:  # in front, then -1
            assert sorted(row < 0) == list(row < 0)
        kept.append([{int(held[rank][s]) for s in row if s >= 0} for row in winners])
    return kept


@pytest.mark.parametrize("interleave", [1, 4])
def test_ranks_together_choose_what_one_would(interleave: int) -> None:
    rng = np.random.default_rng(2)
    scores = rng.standard_normal((TOKENS, 30)).astype(np.float32)
    scores[1, 3:] = -np.inf  # fewer than K: all of them
    scores[2] = -np.inf  # none at all
    scores[3, ownership.owner_of(np.arange(30), RANKS, interleave) == 2] -= 100  # a rank keeps none
    kept = choose(scores, interleave)
    for t in range(TOKENS):
        alone = {int(p) for p in best_of(scores, K)[1][t] if p >= 0}
        together = [rank[t] for rank in kept]
        assert sum(map(len, together)) == len(alone)
        assert set().union(*together) == alone
    assert kept[2][3] == set()


def test_equal_scores_of_one_rank_go_by_position() -> None:
    scores = np.asarray([[1, 2, 2, 0, -0.0, 0, 2, 1]], np.float32)
    found, columns = best_of(scores, 6)
    assert list(np.asarray(columns)[0]) == [1, 2, 6, 0, 7, 3]
    assert list(np.asarray(found)[0]) == [2, 2, 2, 1, 1, 0]
    # Minus zero is zero: position 4 comes before 5.
    assert list(np.asarray(best_of(scores, 8)[1])[0]) == [1, 2, 6, 0, 7, 3, 4, 5]


def test_equal_scores_of_different_ranks_go_to_the_lower_rank() -> None:
    scores = np.zeros((TOKENS, 30), np.float32)  # the indexer's max(0, .) gives many zeros
    scores[:, 29] = 1
    kept = choose(scores, interleave=1)
    owner = 29 % RANKS
    for t in range(TOKENS):
        together = [rank[t] for rank in kept]
        # As many as asked for, none twice, the scores those of one rank's choice.
        assert sum(map(len, together)) == K
        assert 29 in together[owner]
        # The rest from rank 0, its lowest positions first.
        assert together[0] == {0, 4, 8, 12, 16}
        assert all(not rest - {29} for rest in together[1:])


def test_everything_is_positions_in_order() -> None:
    scores, positions = everything(np.asarray([0, 2, 3], np.int32), 3)
    assert np.asarray(positions).tolist() == [[-1, -1, -1], [0, 1, -1], [0, 1, 2]]
    assert np.asarray(scores).tolist() == [[-np.inf] * 3, [0, 0, -np.inf], [0, 0, 0]]


@pytest.mark.parametrize(("ranks", "interleave"), [(1, 1), (4, 1), (8, 4), (16, 2)])
def test_ownership_deals_every_position_once(ranks: int, interleave: int) -> None:
    ids = np.arange(300)
    owner = ownership.owner_of(ids, ranks, interleave)
    slot = ownership.slot_of(ids, ranks, interleave)
    assert len(set(zip(owner, slot, strict=True))) == 300
    assert (ownership.position_of(slot, owner, ranks, interleave) == ids).all()
    for rank in range(ranks):
        mine = slot[owner == rank]
        assert list(mine) == list(range(len(mine)))  # dense and ascending
        limits = np.arange(0, 300, 7)
        counts = [(owner[:limit] == rank).sum() for limit in limits]
        np.testing.assert_array_equal(ownership.own_limits(limits, rank, ranks, interleave), counts)
    # By formula: virtual pages of 16 positions a rank, d * I to a round.
    page = 16 * ranks
    for p in range(0, 300, 13):
        o = p % page
        assert owner[p] == o % (ranks * interleave) // interleave
        assert slot[p] % 16 == o // (ranks * interleave) * interleave + o % interleave
