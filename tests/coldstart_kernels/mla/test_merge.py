"""Parts over disjoint keys, put together: equal to the whole, a rank without keys exactly nothing, never NaN."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from coldstart_kernels.mla import merge, merge_weights, merged_lse, weighted
from coldstart_kernels.mla.reference import SMALLEST

merge_jit = jax.jit(merge)


@pytest.mark.parametrize("nothing", [SMALLEST, -np.inf])
def test_merged_parts_are_the_whole(nothing: float) -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((5, 3, 12)) * 30
    values = rng.standard_normal((12, 7))
    owner = np.asarray([0, 0, 1, 3, 3, 3, 1, 1, 0, 3, 0, 1])  # rank 2 has no keys
    latents, lse = np.full((4, 5, 3, 7), np.nan), np.full((4, 5, 3), nothing)
    for rank in (0, 1, 3):
        own = np.exp(scores[..., owner == rank])
        lse[rank] = np.log(own.sum(-1))
        latents[rank] = own / own.sum(-1, keepdims=True) @ values[owner == rank]
    whole = np.exp(scores)
    # One token sees nothing anywhere.
    lse[:, 4], latents[:, 4] = nothing, np.nan
    out, total = merge_jit(latents.astype(np.float32), lse.astype(np.float32))
    wanted = whole / whole.sum(-1, keepdims=True) @ values
    # fp32 of sums of 4 parts; the log-sum-exp's own rounding is 30 * 2**-24 in the exponent.
    np.testing.assert_allclose(out[:4], wanted[:4], atol=1e-5)
    np.testing.assert_allclose(total[:4], np.log(whole.sum(-1))[:4], rtol=1e-6)
    assert not np.asarray(out[4]).any()
    assert (np.asarray(total[4]) == np.float32(SMALLEST)).all()
    weights = np.asarray(jax.jit(merge_weights)(lse.astype(np.float32)))
    assert (weights[2] == 0).all() and (weights[:, 4] == 0).all()
    np.testing.assert_allclose(weights[:, :4].sum(0), 1, rtol=1e-6)


def test_a_part_of_weight_nothing_is_nothing_whatever_it_holds() -> None:
    parts = np.asarray([[np.nan, np.inf], [1.0, 2.0]], np.float32)
    got = np.asarray(jax.jit(weighted)(parts, np.asarray([0.0, 0.5], np.float32)))
    np.testing.assert_array_equal(got, [[0, 0], [0.5, 1]])


def test_a_nan_that_counts_is_not_hidden() -> None:
    lse = np.asarray([np.nan, 1.0], np.float32)
    assert np.isnan(jax.jit(merge_weights)(lse)).all()
    assert np.isnan(jax.jit(merged_lse)(lse))
