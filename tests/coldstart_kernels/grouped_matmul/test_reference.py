"""The reference against NumPy in double precision, the quantisation bit for bit, and the words of refusal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from coldstart_kernels import grouped_matmul
from coldstart_kernels.grouped_matmul import quantize_blocks

FP8 = ml_dtypes.float8_e4m3fn
SIZES = [7, 0, 16, 1, 0, 12]
ROWS = 40  # four beyond the last group


def by_loops(x: np.ndarray, weights: np.ndarray, sizes: list[int]) -> np.ndarray:
    rows = []
    for expert, size in enumerate(sizes):
        rows += [row.astype(np.float64) @ weights[expert] for row in x[len(rows) :][:size]]
    return np.array(rows)


def quantize_by_numpy(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = x.astype(np.float32).reshape(x.shape[0], -1, block)
    scales = np.abs(blocks).max(-1) * np.float32(1 / 448)
    scales[scales < np.finfo(np.float32).tiny] = 0
    reciprocals = np.where(scales == 0, 0, 1 / np.where(scales == 0, 1, scales)).astype(np.float32)
    scaled = np.clip(blocks * reciprocals[..., None], -448, 448)
    return scaled.astype(FP8).reshape(x.shape), scales


def operands(k: int, n: int, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((ROWS, k)).astype(dtype)
    weights = (rng.standard_normal((len(SIZES), k, n)) / np.sqrt(k)).astype(dtype)
    x[sum(SIZES) :] = np.nan
    weights[np.array(SIZES) == 0] = np.nan
    return x, weights, np.array(SIZES, np.int32)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # fp32 sums of 48 products; bf16 rounds the result once (2**-9 relative) and nothing before.
    [(np.float32, 1e-5), (ml_dtypes.bfloat16, 4e-3)],
)
def test_reference_equals_loops(dtype: type, tolerance: float) -> None:
    x, weights, sizes = operands(48, 24, dtype)
    out = jax.jit(lambda *a: grouped_matmul(*a, implementation="reference"))(x, weights, sizes)
    assert out.dtype == dtype
    wanted = by_loops(x, weights.astype(np.float64), SIZES)
    np.testing.assert_allclose(
        np.asarray(out[: sum(SIZES)], np.float64), wanted, rtol=tolerance, atol=tolerance
    )
    # Undefined, and told so: who forgets to zero these rows sees it.
    assert np.isnan(np.asarray(out[sum(SIZES) :], np.float32)).all()


@pytest.mark.parametrize("per_channel", [False, True])
def test_fp8_reference_equals_loops_over_dequantised_values(per_channel: bool) -> None:
    k, n = 256, 384
    x, weights, sizes = operands(k, n, np.float32)
    rng = np.random.default_rng(10)
    fp8 = np.nan_to_num(weights * 100).astype(FP8)
    shape = (len(SIZES), 1, n) if per_channel else (len(SIZES), k // 128, n // 128)
    scales = rng.uniform(0.5, 2.0, shape).astype(np.float32)
    out = jax.jit(
        lambda x, w, g, s: grouped_matmul(x, w, g, weight_scales=s, implementation="reference")
    )(x, fp8, sizes, scales)
    quantised, x_scales = quantize_by_numpy(x[: sum(SIZES)], 128)
    wide = quantised.astype(np.float64) * np.repeat(x_scales, 128, 1)
    spread = scales if per_channel else np.repeat(np.repeat(scales, 128, 1), 128, 2)
    wanted = by_loops(wide, fp8.astype(np.float64) * spread, SIZES)
    # The same FP8 values on both sides: what is left are fp32 sums of 256 products.
    np.testing.assert_allclose(out[: sum(SIZES)], wanted, rtol=1e-4, atol=1e-4 * wanted.std())
    # And quantising costs what e4m3's three bits of mantissa cost: 2**-4 / sqrt(3) = 3.6 % of a value
    # at most, 2.6 % on average over a binade.
    exact = by_loops(x, fp8.astype(np.float64) * spread, SIZES)
    assert 0.01 < np.linalg.norm(wanted - exact) / np.linalg.norm(exact) < 0.036


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_quantisation_bit_for_bit(dtype: type) -> None:
    rng = np.random.default_rng(12)
    x = (rng.standard_normal((9, 256)) * 10.0 ** rng.integers(-6, 7, (9, 1))).astype(dtype)
    x[3] = 0
    x[4, :128] = 0
    x[5, 7] = 448
    x[6, :128] = 1e-42  # the scale is below the smallest normal number: counts as zero
    values, scales = jax.jit(quantize_blocks)(x)
    wanted, wanted_scales = quantize_by_numpy(x, 128)
    assert wanted_scales[6, 0] == 0 < wanted_scales[6, 1]
    np.testing.assert_array_equal(scales, wanted_scales)
    np.testing.assert_array_equal(
        np.asarray(values).view(np.uint8) & 127, wanted.view(np.uint8) & 127
    )
    nonzero = wanted.astype(np.float32) != 0
    np.testing.assert_array_equal(np.asarray(values)[nonzero], wanted[nonzero])


def test_a_scale_rounded_down_makes_no_nan() -> None:
    """bf16 keeps 8 bits: a scale may be rounded down by 2**-8, and the largest value lands above 448."""
    x = np.linspace(1, 2, 4096, dtype=np.float32).reshape(-1, 1)
    values, scales = jax.jit(lambda x: quantize_blocks(x, 1, jnp.bfloat16))(x)
    assert (x / np.asarray(scales) > 448).any()
    assert set(np.asarray(values, np.float32).ravel()) <= {448.0}
    np.testing.assert_array_equal(scales, (x * np.float32(1 / 448)).astype(ml_dtypes.bfloat16))


X, W, G = jnp.zeros((6, 256)), jnp.zeros((3, 256, 128)), jnp.zeros(3, jnp.int32)
W8, S8 = jnp.zeros((3, 256, 128), jnp.float8_e4m3fn), jnp.ones((3, 2, 1))
X8 = jnp.zeros((6, 256), jnp.float8_e4m3fn)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((X[0], W, G), {}, r"need x \[rows, k\].*x \(256,\)"),
        ((X[:0], W, G), {}, r"empty operand: x \(0, 256\)"),
        ((X[:, :255], W, G), {}, r"differ in k: x \(6, 255\)"),
        ((X, W, G[:2]), {}, r"differ in experts.*group_sizes \(2,\)"),
        ((X, W, G.astype(jnp.int16)), {}, "int32, got int16"),
        ((X.astype(jnp.bfloat16), W, G), {}, "one type of .*bfloat16, float32"),
        ((X, W, G), {"implementation": "cuda"}, "implementation 'cuda'"),
        ((X, W, G), {"weight_scales": S8}, "scales need FP8 weights, got float32"),
        ((X, W8, G), {}, "FP8 weights need weight_scales"),
        ((X, W8, G), {"weight_scales": jnp.ones((3, 3, 1))}, r"equal blocks.*\(3, 3, 1\)"),
        ((X, W8, G), {"weight_scales": S8.astype(jnp.bfloat16)}, "scales need float32"),
        ((X, W8, G), {"weight_scales": S8, "x_scales": jnp.ones((6, 2))}, "only with one"),
        ((X8, W8, G), {"weight_scales": S8}, "only with one; x is float8"),
        ((X8, W8, G), {"weight_scales": S8, "x_scales": jnp.ones((6, 3))}, r"x_scales \(6, 3\)"),
        ((X8, W8, G), {"weight_scales": S8, "x_scales": jnp.ones((5, 2))}, r"x_scales \(5, 2\)"),
        ((X.astype(jnp.int32), W8, G), {"weight_scales": S8}, "one type of .*int32"),
        (
            (jnp.zeros((6, 384)), jnp.zeros((3, 384, 128), jnp.float8_e4m3fn), G),
            {"weight_scales": jnp.ones((3, 2, 1))},
            "don't nest: 128 of x, 192 of the weights",
        ),
    ],
)
def test_refusals_print_the_shapes(arguments: tuple, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        grouped_matmul(*arguments, **options)


def test_x_is_quantised_by_blocks_that_divide_it() -> None:
    with pytest.raises(ValueError, match=r"blocks of 128 don't divide x \(2, 200\)"):
        quantize_blocks(jnp.zeros((2, 200)))
