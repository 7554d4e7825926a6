"""Rows of the pool as they are written and read, and the choice of the best by a threshold."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coldstart.models.glm import counts, select
from coldstart.models.glm.cache import Pool, pool_specs
from coldstart.models.glm.config import GLM52_FP8, GLM52_TINY, GlmConfig
from coldstart.models.glm.fp8 import FP8, product, quantise, round_activations
from coldstart.models.glm.layout import Layout
from coldstart.models.glm.model import cache_specs

EXACT = dataclasses.replace(GLM52_TINY, precision="float32")


def empty(config: GlmConfig, rows: int, first: int = 0) -> Pool:
    specs = pool_specs(config, rows, indexed=True)
    arrays = {name: jnp.zeros(spec.shape, spec.dtype) for name, spec in specs.items()}
    return Pool(config, arrays, first)


@pytest.mark.parametrize("config", [GLM52_TINY, EXACT])
def test_rows_come_back_and_neighbours_keep_theirs(config: GlmConfig) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4, config.width)).astype(np.float32)
    keys = rng.standard_normal((4, config.index_width)).astype(np.float32)
    if config.quantised:  # what FP8 holds
        rows = np.asarray(rows.astype(FP8), np.float32)

    @jax.jit
    def written(rows: jax.Array, keys: jax.Array) -> tuple[jax.Array, ...]:
        # Rows 5, 6 and 7 share words; the second of the four isn't this device's.
        targets = jnp.array([6, -1, 5, 2])
        pool = empty(config, 16, first=8).with_rows(targets, rows).with_index_keys(targets, keys)
        pool = pool.with_rows(jnp.array([7]), rows[:1] * 2)
        pool = pool.with_rows(jnp.array([6]), rows[:1])  # over what is there
        read = pool.rows(jnp.array([[6, 5], [2, 7], [0, 4]]))
        return read, *pool.index_keys(jnp.array([6, 5, 2, 4]))

    found, values, scales = (np.asarray(made, np.float32) for made in written(rows, keys))
    np.testing.assert_array_equal(found[0], rows[[0, 2]])
    np.testing.assert_array_equal(found[1], np.stack([rows[3], rows[0] * 2]))
    assert not found[2].any()

    read, wanted = values * scales[:, None], keys[[0, 2, 3]]
    # Half a step of FP8's three bits of mantissa; subnormals of a row's largest.
    allowed = np.abs(wanted) * 2.0**-4 + np.abs(wanted).max(axis=1)[:, None] * 2.0**-17
    assert np.all(np.abs(read[:3] - wanted) <= (allowed if config.quantised else 0))
    assert not read[3].any()
    assert np.all(np.log2(scales[:3]) % 1 == 0)


def test_the_pool_takes_the_bytes_that_are_counted() -> None:
    layout, pages = Layout(1, 16), 3
    arrays: list[Any] = [
        spec for layer in cache_specs(GLM52_FP8, layout, pages, None) for spec in layer.values()
    ]
    total = sum(np.dtype(a.dtype).itemsize * int(np.prod(a.shape)) for a in arrays)
    tokens = pages * layout.virtual_page
    assert total == counts.kv_bytes_per_token(GLM52_FP8) * tokens == 55_296 * tokens


@pytest.mark.parametrize("count", [7, 40])
def test_the_best_are_those_of_a_stable_sort(count: int) -> None:
    rng = np.random.default_rng(count)
    scores = rng.standard_normal((6, 40)).astype(np.float32)
    scores[1] = np.round(scores[1])  # many ties
    scores[2, 5:] = -np.inf
    scores[3] = np.where(rng.random(40) < 0.5, 0.0, -0.0)
    scores[4] = 1.0
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]

    @jax.jit
    def chosen(scores: jax.Array) -> tuple[jax.Array, ...]:
        mask = select.best(scores, count)
        few = mask & (jnp.arange(40) < 3)
        return mask, select.places(mask, count), select.places(few, count)

    mask, places, few = map(np.asarray, chosen(scores))
    np.testing.assert_array_equal(places, np.sort(order, axis=1))
    for row, allowed in zip(few, mask, strict=True):
        wanted = np.flatnonzero(allowed[:3])[:count]
        np.testing.assert_array_equal(row, [*wanted, *[-1] * (count - len(wanted))])


def test_products_with_blocks_that_do_not_divide() -> None:
    """Each block has its own scale: a column that is a thousand times larger costs the others nothing."""
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((20, 13)).astype(np.float32)
    weight[:, 8:] *= 1000
    quantised = quantise(weight, 8)
    assert quantised.scales.shape == (3, 2)
    dense = np.asarray(quantised.dense(jnp.float32))
    blocks = np.abs(dense - weight) / np.abs(weight)
    assert np.median(blocks[:, :8]) < 0.03 and blocks[:, 8:].mean() < 0.1
    x = rng.standard_normal((4, 20)).astype(np.float32)
    rounded = np.asarray(round_activations(jnp.asarray(x), 8), np.float64)
    assert np.abs(rounded - x).max() <= np.abs(x).max() * 2.0**-4
    found = product(jnp.asarray(x), quantised)
    np.testing.assert_allclose(found, rounded @ dense, rtol=1e-4, atol=1e-3)
    assert not np.asarray(round_activations(jnp.zeros((1, 20)), 8)).any()
