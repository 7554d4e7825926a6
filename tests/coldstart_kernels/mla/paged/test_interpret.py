"""The paged kernels, interpreted, against double precision: as plain HLO, and in simulated memory that finds races."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import paged_latents
import pytest
from jax.experimental.pallas import tpu as pltpu
from paged_latents import Batch, Operands

from coldstart_kernels import mla_attention
from coldstart_kernels.mla import PagedParams

SCALE = 0.2
LIST = 24
CASES = {
    # Three steps of eight rows a token, or blocks of two tokens: both halves of the buffer come into use.
    "fp8": (Batch(), {"dense": PagedParams(2), "sparse": PagedParams(1, 8)}),
    "fp32": (Batch(dtype="float32"), {"dense": PagedParams(2), "sparse": PagedParams(1, 8)}),
    "bf16": (Batch(dtype="bfloat16"), {"dense": PagedParams(1), "sparse": PagedParams(1, 24)}),
    "whole rows": (
        Batch(latent=512, rope=64, heads=8, own_heads=8),
        {"dense": PagedParams(3), "sparse": PagedParams(1, 12)},
    ),
    "decode": (
        Batch((1, 1, 1), (9, 1, 16), tokens=3, page=4),
        {"dense": PagedParams(1), "sparse": PagedParams(1, 12)},
    ),
    "nothing to do": (Batch((0, 0), (4, 4), tokens=2), {"dense": None, "sparse": None}),
}
SHORT = [("fp32", "dense")]  # the sparse one is the raced one below
EVERY = [
    pytest.param(name, branch, marks=[] if (name, branch) in SHORT else [pytest.mark.long])
    for name in CASES
    for branch in ("dense", "sparse")
]
# Weights and results are rounded to bf16, 2**-9 each of values up to 4; fp32 sums of 64 products.
TOLERANCE = {"float8_e4m3fn": 2e-2, "bfloat16": 2e-2, "float32": 1e-5}


def compiled(case: Batch, branch: str, **options: object) -> Callable[..., list[np.ndarray]]:
    @jax.jit
    def attend(*arrays: Any) -> tuple[jax.Array, jax.Array]:
        return mla_attention(
            *arrays, branch=branch, latent_width=case.latent, scale=SCALE,
            implementation="pallas", **options,
        )  # fmt: skip

    return lambda *arrays: [np.asarray(part, np.float32) for part in attend(*arrays)]


def arguments_of(made: Operands, batch: Batch, branch: str) -> list[Any]:
    lists = [paged_latents.index_lists(batch, LIST)] if branch == "sparse" else []
    return [made.fragment, made.q, made.cache, made.limits, *lists]


def compare(name: str, branch: str, interpret: Any) -> None:
    batch, params = CASES[name]
    made = paged_latents.operands(batch)
    arguments = arguments_of(made, batch, branch)
    got, lse = compiled(batch, branch, interpret=interpret, tuning=params[branch])(*arguments)
    q = made.fragment if branch == "dense" else made.q
    lists = arguments[4] if branch == "sparse" else None
    wanted, wanted_lse = paged_latents.attend(q, batch, made.limits, made.values, lists, SCALE)
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE[batch.dtype])
    np.testing.assert_allclose(lse, wanted_lse, rtol=1e-5)  # scores and sums are fp32 in all
    assert not got[batch.starts[-1] :].any()


@pytest.mark.stacks
@pytest.mark.parametrize(("name", "branch"), EVERY)
def test_kernel_equals_loops(name: str, branch: str) -> None:
    compare(name, branch, True)


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("fp8", "sparse"),
        pytest.param("fp8", "dense", marks=pytest.mark.long),
        pytest.param("decode", "sparse", marks=pytest.mark.long),
        pytest.param("fp32", "sparse", marks=pytest.mark.long),
        pytest.param("whole rows", "dense", marks=pytest.mark.long),
    ],
)
def test_no_race_in_simulated_memory(name: str, branch: str) -> None:
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    compare(name, branch, pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"))
    assert simulator.races is not None, "the race detector did not run"
    assert simulator.races.races_found is False


@pytest.mark.long
def test_sparse_over_all_positions_is_dense() -> None:
    batch = dataclasses.replace(Batch(dtype="float32"), own_heads=4)
    made = paged_latents.operands(batch)
    everything = np.broadcast_to(np.arange(16, dtype=np.int32), (batch.tokens, 16)).copy()
    arguments = [made.fragment, made.q, made.cache, made.limits]
    dense = compiled(batch, "dense", interpret=True)(*arguments)
    sparse = compiled(batch, "sparse", interpret=True, tuning=PagedParams(1, 8))(
        *arguments, everything
    )
    for one, other in zip(dense, sparse, strict=True):
        # The same fp32 products; blocks of other sizes add them in another order.
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("branch", ["sparse", "dense"])
def test_the_unread_query_changes_no_bit(branch: str) -> None:
    batch, params = CASES["fp8"]
    made = paged_latents.operands(batch)
    attend = compiled(batch, branch, interpret=True, tuning=params[branch])
    arguments = arguments_of(made, batch, branch)
    plain = attend(*arguments)
    unread = 1 if branch == "dense" else 0
    arguments[unread] = np.full_like(arguments[unread], np.nan)
    for a, b in zip(plain, attend(*arguments), strict=True):
        assert a.tobytes() == b.tobytes()
    # The other query is read: the same poison must show.
    arguments[1 - unread] = np.full_like(arguments[1 - unread], np.nan)
    assert np.isnan(attend(*arguments)[0]).any()
