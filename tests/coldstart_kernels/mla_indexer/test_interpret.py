"""The scoring kernel against double precision: as plain HLO, and in simulated memory that finds races."""

from __future__ import annotations

import functools
from typing import Any

import index_keys
import jax
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from paged_latents import Batch

from coldstart_kernels import index_candidates
from coldstart_kernels.mla_indexer import TuningParams

CASES: dict[str, tuple[Batch, TuningParams | None]] = {
    "ragged": (Batch(), TuningParams(2)),
    "decode": (Batch((1, 1, 1), (9, 1, 16), tokens=3, page=4), None),
    "prefill": (Batch((13,), (29,), tokens=16, page=16), TuningParams(4)),
}


def compare(name: str, interpret: Any) -> None:
    batch, params = CASES[name]
    made = index_keys.operands(batch)
    choose = functools.partial(
        index_candidates,
        k=5, longest=1000, implementation="pallas", tuning=params, interpret=interpret,
    )  # fmt: skip
    scores, positions = jax.jit(choose)(made.q, made.weights, made.cache, made.limits)
    index_keys.same_choice(
        np.asarray(scores), np.asarray(positions), index_keys.score(batch, made), 5
    )


@pytest.mark.stacks
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("ragged", marks=pytest.mark.long),  # raced below
        pytest.param("decode", marks=pytest.mark.long),
        pytest.param("prefill", marks=pytest.mark.long),
    ],
)
def test_kernel_equals_loops(name: str) -> None:
    compare(name, True)


@pytest.mark.parametrize("name", ["ragged", pytest.param("decode", marks=pytest.mark.long)])
def test_no_race_in_simulated_memory(name: str) -> None:
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    compare(name, pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"))
    assert simulator.races is not None, "the race detector did not run"
    assert simulator.races.races_found is False
