"""Index scores and choices against double precision, quantization, and the words of refusal."""

from __future__ import annotations

import functools
from typing import Any

import index_keys
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from paged_latents import Batch

from coldstart_kernels import index_candidates
from coldstart_kernels.mla_indexer import TuningParams, cache, op


def choose(made: index_keys.Operands, k: int, longest: int, **options: Any) -> list[np.ndarray]:
    function = functools.partial(
        index_candidates, k=k, longest=longest, **{"implementation": "reference", **options}
    )
    got = jax.jit(function)(made.q, made.weights, made.cache, made.limits)
    return [np.asarray(part) for part in got]


@pytest.mark.parametrize("k", [4, pytest.param(30, marks=pytest.mark.long)])
def test_reference_equals_loops(k: int) -> None:
    batch = Batch()
    made = index_keys.operands(batch)
    scores, positions = choose(made, k, longest=1000)
    index_keys.same_choice(scores, positions, index_keys.score(batch, made), k)


def test_runs_of_blocks_choose_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch()
    made = index_keys.operands(batch)
    whole = choose(made, 4, 1000, tuning=TuningParams(2))
    # Room for the scores of three blocks of two tokens: 16 positions, fp32.
    monkeypatch.setattr(op, "SCORE_BYTES", 3 * 2 * 16 * 4)
    for one, other in zip(choose(made, 4, 1000, tuning=TuningParams(2)), whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_short_sequences_are_not_scored() -> None:
    batch = Batch()
    made = index_keys.operands(batch)
    # NaN weights would show in any score.
    made = made._replace(weights=np.full_like(made.weights, np.nan))
    scores, positions = choose(made, 14, longest=14)
    for t, limit in enumerate(made.limits):
        seen = limit if t < batch.starts[-1] else 0
        assert list(positions[t]) == [*range(seen), *([-1] * (14 - seen))]
        assert list(scores[t]) == [*([0.0] * seen), *([-np.inf] * (14 - seen))]
    assert np.isnan(choose(made, 14, longest=15)[0]).any()


def test_key_scales_are_the_least_powers_of_two_that_fit() -> None:
    rng = np.random.default_rng(1)
    keys = rng.standard_normal((40, 16)).astype(np.float32) * np.exp2(
        rng.integers(-20, 20, (40, 1))
    ).astype(np.float32)
    keys[0] = 0
    keys[1, 3], keys[2, 3] = 448 * 4, np.nextafter(np.float32(448 * 4), np.float32(1e9))
    keys[1] = np.clip(keys[1], -1792, 1792)
    keys[2] = np.clip(keys[2], -1792, keys[2, 3])
    codes, exponents = (np.asarray(part) for part in jax.jit(cache.quantize_keys)(keys))
    assert exponents[1] == 2 and exponents[2] == 3  # exactly the largest number, and just above it
    scale = np.exp2(exponents.astype(np.float64))
    largest = np.abs(keys).max(1)
    assert (largest <= 448 * scale).all()
    assert (largest[1:] > 448 * scale[1:] / 2).all()
    wanted = (keys / scale[:, None]).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(codes.view(np.uint8), wanted.view(np.uint8))
    powers = jax.jit(cache.power_of_two)(np.asarray([-100, -1, 0, 7, 100], np.int8))
    np.testing.assert_array_equal(powers, np.exp2([-100.0, -1, 0, 7, 100]).astype(np.float32))


def test_queries_and_keys_go_through_the_cache() -> None:
    """Written keys score as the documented layout says; a dropped one leaves no trace."""
    batch = Batch()
    made = index_keys.operands(batch)
    sequences = np.repeat(np.arange(3), batch.kv_lengths).astype(np.int32)
    slots = np.concatenate([np.arange(n) for n in batch.kv_lengths]).astype(np.int32)
    keys = np.concatenate(made.values).astype(np.float32)
    empty = made.cache._replace(
        keys=jnp.full_like(made.cache.keys, jnp.nan),
        exponents=jnp.full_like(made.cache.exponents, 77),
    )
    written = jax.jit(cache.write)(
        empty, np.append(keys, keys[:2], 0),
        np.append(sequences, [0, -1]).astype(np.int32), np.append(slots, [-1, 0]).astype(np.int32),
    )  # fmt: skip
    # The same values, maybe by other codes: the exponents of `operands` aren't the least.
    stored = (
        np.asarray(written.keys, np.float32)
        * np.exp2(np.asarray(written.exponents, np.float32))[..., None]
    )
    wanted = (
        np.asarray(made.cache.keys, np.float32)
        * np.exp2(np.asarray(made.cache.exponents, np.float32))[..., None]
    )
    np.testing.assert_array_equal(np.isnan(stored), np.isnan(wanted))
    # Codes of another scale may round once more: half a step of e4m3.
    np.testing.assert_allclose(stored, wanted, rtol=2.0**-4, atol=1e-3)
    q, scale = cache.quantize_queries(jnp.asarray([[0.0, 0.0], [3.0, -1.5]]))
    np.testing.assert_array_equal(np.asarray(q, np.float32), [[0, 0], [448, -224]])
    np.testing.assert_allclose(scale, [1, 3 / 448], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": jnp.zeros((8, 4))}, "three dimensions"),
        ({"weights": jnp.zeros((8, 5))}, r"weights \(8, 5\)"),
        ({"q": jnp.zeros((8, 4, 7), jnp.float8_e4m3fn)}, "don't go together"),
        ({"weights": jnp.zeros((8, 4), jnp.bfloat16)}, "weights needs float32, got bfloat16"),
        ({"limits": jnp.zeros(8)}, "limits needs int32"),
        ({"k": 0}, "k 0"),
        ({"implementation": "cuda"}, "'cuda'"),
        ({"tuning": TuningParams(0)}, "block_tokens 0"),
        ({"tuning": TuningParams(1 << 20)}, r"needs \d+ bytes of VMEM"),
    ],
)
def test_refusals_print_the_shapes(changes: dict[str, Any], words: str) -> None:
    made = index_keys.operands(Batch())
    given: dict[str, Any] = {
        "q": made.q, "weights": made.weights, "cache": made.cache, "limits": made.limits,
        "k": 4, "longest": 1000,
    }  # fmt: skip
    with pytest.raises(ValueError, match=words):
        index_candidates(**{**given, **changes})
    broken = made.cache._replace(cu_q_lens=jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match=r"cu_q_lens \(3,\)"):
        index_candidates(**{**given, "cache": broken})
