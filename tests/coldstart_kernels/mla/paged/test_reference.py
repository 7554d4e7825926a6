"""The paged reference against double precision, what a cache keeps of what is written, and the words of refusal."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import paged_latents
import pytest
from paged_latents import Batch

from coldstart_kernels import PagedCache, mla_attention, ragged
from coldstart_kernels.mla import PagedParams, TuningParams, cache

SCALE = 0.2
# Inputs are exact in both; bf16 results are rounded to 2**-9 of values up to 4, fp32 sums 64 products.
TOLERANCE = {"float8_e4m3fn": 1e-2, "bfloat16": 1e-2, "float32": 1e-5}


@pytest.mark.parametrize(
    ("branch", "dtype"),
    [
        ("dense", "float8_e4m3fn"),
        ("sparse", "float8_e4m3fn"),
        pytest.param("sparse", "float32", marks=pytest.mark.long),
        pytest.param("dense", "float32", marks=pytest.mark.long),
        pytest.param("dense", "bfloat16", marks=pytest.mark.long),
        pytest.param("sparse", "bfloat16", marks=pytest.mark.long),
    ],
)
def test_reference_equals_loops(branch: str, dtype: str) -> None:
    batch = Batch(dtype=dtype)
    made = paged_latents.operands(batch)
    lists = paged_latents.index_lists(batch, 9) if branch == "sparse" else None
    attend = functools.partial(
        mla_attention,
        branch=branch, latent_width=batch.latent, scale=SCALE, implementation="reference",
    )  # fmt: skip
    indices = [] if lists is None else [lists]
    out, lse = jax.jit(attend)(made.fragment, made.q, made.cache, made.limits, *indices)
    q = made.fragment if branch == "dense" else made.q
    wanted, wanted_lse = paged_latents.attend(q, batch, made.limits, made.values, lists, SCALE)
    assert out.dtype == batch.query_dtype
    np.testing.assert_allclose(np.asarray(out, np.float32), wanted, atol=TOLERANCE[dtype])
    # fp32 whatever the type: scores and sums are.
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5)


def test_what_is_written_lies_where_the_layout_says() -> None:
    batch = Batch()
    made = paged_latents.operands(batch)
    wanted = np.asarray(made.cache.rows)
    # Values that FP8 holds exactly at this scale, so that writing them again stores the same codes.
    sequences = np.repeat(np.arange(3), batch.kv_lengths).astype(np.int32)
    slots = np.concatenate([np.arange(n) for n in batch.kv_lengths]).astype(np.int32)
    rows = np.concatenate(made.values).astype(np.float32)
    # Four that must be dropped: another rank's, padding's, one past the table, one on an entry that is no page.
    sequences = np.append(sequences, [0, -1, 0, 1]).astype(np.int32)
    slots = np.append(slots, [-1, 0, 2 * batch.page, batch.page]).astype(np.int32)
    rows = np.append(rows, np.ones((4, rows.shape[1]), np.float32), axis=0)
    empty = made.cache._replace(rows=jnp.full_like(made.cache.rows, jnp.nan))
    written = jax.jit(cache.write)(
        empty, rows[:, : batch.latent], rows[:, batch.latent :], sequences, slots
    )
    got = np.asarray(written.rows)
    assert got.view(np.uint8).tobytes() == wanted.view(np.uint8).tobytes()
    assert cache.page_size(written.rows) == batch.page
    # 640 bytes a position.
    assert cache.empty_rows(3, 1024).nbytes == 3 * 1024 * 640


def test_quantizing_saturates_and_keeps_nan() -> None:
    values = jnp.asarray([1e9, -1e9, np.nan, 0.5, np.inf])
    codes = cache.quantize(values, jnp.float32(0.5), jnp.float8_e4m3fn).astype(np.float32)
    np.testing.assert_array_equal(codes, [448, -448, np.nan, 1, 448])


def test_ragged_blocks_hold_every_token_once_and_one_sequence_each() -> None:
    rng = np.random.default_rng(0)
    cut = jax.jit(ragged.token_blocks, static_argnums=(1, 2))
    causal = jax.jit(ragged.causal_limits, static_argnums=2)
    for lengths in [(5, 0, 1, 9), (0, 0, 0, 0), (0, 16, 0, 0), (1, 1, 1, 1), (4, 4, 4, 4)]:
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        for block in (1, 4):
            blocks = cut(starts, 16, block)
            held = np.asarray(blocks.tokens)
            assert sorted(held[held >= 0]) == list(range(starts[-1]))
            for sequence, tokens in zip(np.asarray(blocks.sequence), held, strict=True):
                for t in tokens[tokens >= 0]:
                    assert starts[sequence] <= t < starts[sequence + 1]
            place = np.asarray(blocks.place)
            assert all(held.reshape(-1)[place[t]] == t for t in range(starts[-1]))
            assert (place[starts[-1] :] == held.size).all()
        kv = (np.asarray(lengths) + rng.integers(0, 5, 4)).astype(np.int32)
        wanted = [kv[s] - n + r + 1 for s, n in enumerate(lengths) for r in range(n)]
        wanted += [0] * (16 - len(wanted))
        np.testing.assert_array_equal(causal(starts, kv, 16), wanted)


def _with(made: paged_latents.Operands, **changes: object) -> PagedCache:
    return made.cache._replace(**changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: {"cache": _with(m, rows=jnp.zeros((2, 10, 4, 64)))}, r"\[pages, page \+ page"),
        (lambda m: {"cache": _with(m, rows=jnp.zeros((2, 9, 4, 128)))}, "9 tiles a page"),
        (lambda m: {"cache": _with(m, rows=m.cache.rows.astype(jnp.float16))}, "float16"),
        (lambda m: {"cache": _with(m, rows=m.cache.rows.astype(jnp.float32))}, "float32 queries"),
        (lambda m: {"cache": _with(m, scale=jnp.zeros(1))}, r"scale needs fp32 \[\]"),
        (lambda m: {"cache": _with(m, cu_q_lens=jnp.zeros(3, jnp.int32))}, r"cu_q_lens \(3,\)"),
        (lambda m: {"cache": _with(m, page_table=jnp.zeros((3, 2)))}, "int32, got float32"),
        (lambda m: {"latent_width": 0}, "latent_width 0"),
        (lambda m: {"tuning": TuningParams(16, 128)}, "TuningParams doesn't go with a PagedCache"),
        (lambda m: {"cache": jnp.zeros((1, 9, 64), jnp.bfloat16), "out_dtype": "float32"}, "paged"),
        (
            lambda m: {"implementation": "pallas", "tuning": PagedParams(block_tokens=0)},
            "block_tokens 0",
        ),
    ],
)
def test_refusals_say_what_is_wrong(change: object, words: str) -> None:
    batch = Batch()
    made = paged_latents.operands(batch)
    options: dict[str, object] = {
        "q_fragment": jnp.asarray(made.fragment), "q_replicated": jnp.asarray(made.q),
        "cache": made.cache, "limits": jnp.asarray(made.limits),
        "branch": "dense", "latent_width": batch.latent, "scale": SCALE,
    }  # fmt: skip
    with pytest.raises(ValueError, match=words):
        mla_attention(**{**options, **change(made)})
    with pytest.raises(ValueError, match="latent 600 and rope"):
        wide = jnp.zeros((batch.tokens, 2, 664), jnp.bfloat16)
        mla_attention(**{**options, "q_fragment": wide, "q_replicated": wide, "latent_width": 600})


@pytest.mark.parametrize(("page", "dtype"), [(12, "float32"), (2, "float32"), (8, "int8")])
def test_a_cache_that_can_not_be(page: int, dtype: str) -> None:
    with pytest.raises(ValueError, match=r"power of two|not one of"):
        cache.empty_rows(1, page, dtype)


def test_batches_differ_in_what_they_should() -> None:
    """The operands' own poison: without it the tests above would pass a kernel that reads too much."""
    batch = dataclasses.replace(Batch(), dtype="float32")
    made = paged_latents.operands(batch)
    assert np.isnan(np.asarray(made.cache.rows)).any()
    assert np.isnan(made.q[batch.starts[-1] :]).all()
    assert (made.limits[batch.starts[-1] :] > 0).all()
