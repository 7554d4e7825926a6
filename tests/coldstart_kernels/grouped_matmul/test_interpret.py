"""The kernel against NumPy loops and the reference, interpreted: as plain HLO, and with simulated memory."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels import grouped_matmul, moe_combine, moe_dispatch, moe_permute
from coldstart_kernels.grouped_matmul import TuningParams, kernel

FP8 = ml_dtypes.float8_e4m3fn
SIMULATED = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


@dataclasses.dataclass(frozen=True)
class Case:
    rows: int
    experts: int
    k: int
    n: int
    tuning: TuningParams
    dtype: str = "float32"
    blocks: str = "128"

    @property
    def tolerance(self) -> float:
        """Relative to the size of the result: fp32 sums in another order; bf16 rounds the result once."""
        return 2e-5 if self.dtype == "float32" else 4e-3


CASES = {
    "one block of all": Case(72, 6, 64, 40, TuningParams(72, 64, 40)),
    "many blocks": Case(72, 6, 256, 300, TuningParams(16, 128, 128)),
    "bf16": Case(72, 6, 128, 136, TuningParams(16, 128, 128), "bfloat16"),
    "fp8": Case(72, 6, 256, 384, TuningParams(32, 128, 256), "float8_e4m3fn"),
    "fp8, scales per channel": Case(
        72, 6, 512, 128, TuningParams(32, 512, 128), "float8_e4m3fn", "n"
    ),
}
SIZES = {
    "uneven, empty ones between, rows of nobody": [11, 0, 24, 1, 0, 30],
    "the first and the last are empty": [0, 17, 0, 38, 5, 0],
    "on the blocks": [16, 16, 16, 0, 16, 8],
    "all to one": [0, 0, 72, 0, 0, 0],
    "one row each": [1, 1, 1, 1, 1, 1],
    "nothing at all": [0, 0, 0, 0, 0, 0],
    "many to a block": [2, 3, 2, 4, 3, 2],
}
RACED = [("many blocks", sizes) for sizes in SIZES] + [("fp8", next(iter(SIZES)))]


def operands(case: Case, sizes: list[int]) -> dict[str, np.ndarray]:
    """All that must not be read is NaN: rows of no group, weights of empty groups."""
    rng = np.random.default_rng(3)
    dtype = np.dtype(case.dtype)
    x = rng.standard_normal((case.rows, case.k)).astype(np.float32)
    weights = rng.standard_normal((case.experts, case.k, case.n)).astype(np.float32)
    found = {"group_sizes": np.array(sizes, np.int32)}
    if dtype == FP8:
        shape = (1, case.n) if case.blocks == "n" else (case.k // 128, case.n // 128)
        scales = rng.uniform(0.5, 2.0, (case.experts, *shape)).astype(np.float32)
        scales[np.array(sizes) == 0] = np.nan
        found["weight_scales"] = scales
    x[sum(sizes) :] = np.nan
    weights[np.array(sizes) == 0] = np.nan
    found["x"] = x if dtype == FP8 else x.astype(dtype)
    found["weights"] = weights.astype(dtype)
    return found


@functools.partial(
    jax.jit, static_argnames=("implementation", "tuning", "interpret", "out_dtype", "product_dtype")
)
def multiply(x: Any, weights: Any, group_sizes: Any, weight_scales: Any = None, **options: Any):
    return grouped_matmul(x, weights, group_sizes, weight_scales=weight_scales, **options)


def check(case: Case, sizes: list[int], interpret: Any) -> None:
    arguments = operands(case, sizes)
    live = sum(sizes)
    out_dtype = "float32" if case.dtype == "float32" else "bfloat16"
    actual = multiply(
        **arguments, implementation="pallas", tuning=case.tuning, interpret=interpret,
        out_dtype=out_dtype,
    )[:live]  # fmt: skip
    wanted = multiply(**arguments, implementation="reference", out_dtype="float32")[:live]
    assert np.isfinite(wanted).all()
    wanted = np.asarray(wanted, np.float64)
    error = np.abs(np.asarray(actual, np.float64) - wanted).max(initial=0)
    assert error <= case.tolerance * np.abs(wanted).max(initial=0)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_reference(name: str, sizes: str) -> None:
    check(CASES[name], SIZES[sizes], True)


@pytest.mark.stacks
@pytest.mark.parametrize(("name", "sizes"), RACED)
def test_no_race_in_simulated_memory(name: str, sizes: str) -> None:
    check(CASES[name], SIZES[sizes], SIMULATED)
    assert races_found() is False


def test_products_rounded_to_bf16() -> None:
    """The same roundings in kernel and reference: far nearer to each other than to what isn't rounded."""
    case = CASES["fp8, scales per channel"]
    sizes = next(iter(SIZES.values()))

    def run(**options: Any) -> np.ndarray:
        out = multiply(**operands(case, sizes), out_dtype="float32", **options)
        return np.asarray(out, np.float64)[: sum(sizes)]

    pallas = run(
        product_dtype="bfloat16", implementation="pallas", tuning=case.tuning, interpret=True
    )
    plain = run(product_dtype="bfloat16", implementation="reference")
    exact = run(implementation="reference")
    size = np.linalg.norm(exact)
    # Four products are rounded, 2**-9 / sqrt(3) = 0.001 on average each, relative to their own size.
    assert 5e-4 < np.linalg.norm(plain - exact) / size < 4e-3
    # fp32 sums in another order tip a few of them.
    assert np.linalg.norm(pallas - plain) / size < 1e-4


@pytest.mark.parametrize("sizes", SIZES)
def test_visits_are_the_pairs_that_meet(sizes: str) -> None:
    group, block, starts, ends, total = (
        np.asarray(part) for part in kernel.visits(jnp.asarray(SIZES[sizes], jnp.int32), 72, 16)
    )
    owner = np.repeat(np.arange(6), SIZES[sizes])
    met = sorted({(row // 16, expert) for row, expert in enumerate(owner)})
    assert int(total[0]) == len(met) <= len(group) == 5 + 6 - 1
    assert [*zip(block, group, strict=True)][: len(met)] == met
    # What is too many asks for the block that is there.
    assert set(zip(block[len(met) :], group[len(met) :], strict=True)) <= {
        met[-1] if met else (0, 5)
    }
    np.testing.assert_array_equal(ends - starts, SIZES[sizes])


def test_undefined_rows_do_not_reach_the_combined_tokens() -> None:
    """The whole way of one device's experts: order, multiply, zero, combine; against a loop over tokens."""
    rng = np.random.default_rng(5)
    tokens, chosen, k, n = 24, 3, 128, 128
    ids = np.argsort(rng.random((tokens, 12)), axis=1)[:, :chosen].astype(np.int32)
    ids[-2:] = -1  # padding tokens
    x = rng.standard_normal((tokens, k)).astype(np.float32)
    routing = rng.random((tokens, chosen)).astype(np.float32)
    weights = rng.standard_normal((4, k, n)).astype(np.float32)

    @jax.jit
    def experts(x: jax.Array, ids: jax.Array, routing: jax.Array, weights: jax.Array) -> Any:
        order = moe_permute(ids, local_experts=4, experts_start=4, packed=True)
        rows = grouped_matmul(
            moe_dispatch(x, order), weights, order.group_sizes,
            implementation="pallas", tuning=TuningParams(16, 128, 128), interpret=SIMULATED,
        )  # fmt: skip
        return rows, moe_combine(rows, order, routing), order.group_sizes

    rows, combined, sizes = experts(x, ids, routing, weights)
    assert np.isnan(np.asarray(rows)[int(sizes.sum()) :]).any()  # undefined they are
    wanted = np.zeros((tokens, n))
    for t in range(tokens):
        for expert, weight in zip(ids[t], routing[t], strict=True):
            if 4 <= expert < 8:
                wanted[t] += weight * (x[t].astype(np.float64) @ weights[expert - 4])
    # fp32 sums of 128 products of size 1.
    np.testing.assert_allclose(combined, wanted, atol=1e-4)
    assert not wanted[~((ids >= 4) & (ids < 8)).any(1)].any()
    assert not np.asarray(combined)[~((ids >= 4) & (ids < 8)).any(1)].any()


def races_found() -> bool:
    """The detector only prints (newest JAX: raises); its verdict is a module's variable."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    assert simulator.races is not None, "the race detector did not run"
    return simulator.races.races_found
