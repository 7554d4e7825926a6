"""The top-k kernel against NumPy's stable sort, interpreted: as plain HLO, and with simulated memory."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels import moe_route
from coldstart_kernels.moe_routing import TuningParams, kernel, reference

NAN, INF = float("nan"), float("inf")


@dataclasses.dataclass(frozen=True)
class Case:
    tokens: int
    experts: int
    chosen: int
    block_rows: int
    kind: str = "random"


# Few shapes, as each is compiled: what the rows hold differs by kind.
CASES = {
    "qwen": Case(24, 512, 10, 16),
    "ties": Case(40, 64, 6, 16, "ties"),
    "all equal": Case(40, 64, 6, 16, "equal"),
    "biased": Case(40, 64, 6, 16, "biased"),
    "masked": Case(40, 64, 6, 16, "masked"),
    "one block, partly filled": Case(5, 96, 3, 512),
    "last block partly filled": Case(19, 96, 3, 8),
    "all are chosen": Case(8, 8, 8, 8, "ties"),
    "one expert": Case(3, 1, 1, 8),
}
RACED = ("ties", "masked", "one block, partly filled", "last block partly filled")


def operands(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    shape = (case.tokens, case.experts)
    bias = np.zeros(case.experts, np.float32)
    scores = rng.random(shape).astype(np.float32)
    if case.kind == "biased":
        bias = rng.standard_normal(case.experts).astype(np.float32)
    elif case.kind == "ties":
        scores = rng.integers(0, 4, shape).astype(np.float32) * np.float32(0.25)
        scores[0] = np.where(np.arange(case.experts) % 2, 0.0, -0.0)
    elif case.kind == "equal":
        scores[:] = 0.5
    elif case.kind == "masked":
        scores[0] = NAN
        scores[1] = -INF
        scores[2, 3:] = -INF
        scores[3, 5:] = NAN
        scores[4, :60] = np.finfo(np.float32).min
        scores[5, ::2] = -3.2e38
        scores[6, 7] = INF
        bias[9] = -INF
    return scores, bias


def by_numpy(case: Case, scores: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    biased = scores + bias
    # The rule for what is masked: all that isn't above -3e38 ties there, and NaN isn't above anything.
    keys = np.where(np.isnan(biased) | (biased <= -3e38), np.float32(-3e38), biased)
    ids = np.argsort(-keys, axis=1, kind="stable")[:, : case.chosen]
    return [np.take_along_axis(scores, ids, 1), ids]


@functools.partial(jax.jit, static_argnames=("chosen", "block_rows", "interpret"))
def choose(scores: Any, bias: Any, *, chosen: int, block_rows: int, interpret: Any) -> Any:
    return kernel.choose_by_row_maximum(
        scores, bias, chosen=chosen, params=TuningParams(block_rows), interpret=interpret
    )


@functools.partial(jax.jit, static_argnames=("by", "chosen"))
def choose_plainly(by: Any, scores: Any, bias: Any, *, chosen: int) -> Any:
    return by(scores, bias, chosen=chosen)


def run(case: Case, interpret: Any) -> list[np.ndarray]:
    found = choose(
        *operands(case), chosen=case.chosen, block_rows=case.block_rows, interpret=interpret
    )
    return [np.asarray(part) for part in found]


def check(case: Case, found: list[np.ndarray]) -> None:
    picked, ids = by_numpy(case, *operands(case))
    assert [part.dtype.name for part in found] == ["float32", "int32"]
    np.testing.assert_array_equal(found[1], ids)
    # A choice moves values, it doesn't compute them: no tolerance.
    np.testing.assert_array_equal(found[0], picked)


@pytest.mark.stacks
@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_the_stable_sort(name: str) -> None:
    check(CASES[name], run(CASES[name], True))


@pytest.mark.parametrize("name", RACED)
def test_no_race_and_nothing_read_from_padding(name: str) -> None:
    interpret = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    check(CASES[name], run(CASES[name], interpret))
    assert races_found() is False


@pytest.mark.parametrize("by", [reference.choose_by_sort, reference.choose_by_row_maximum])
@pytest.mark.parametrize("name", CASES)
def test_both_plain_ways_choose_the_same(name: str, by: Any) -> None:
    case = CASES[name]
    found = choose_plainly(by, *operands(case), chosen=case.chosen)
    check(case, [np.asarray(part) for part in found])


def test_a_row_of_nan_has_nan_weights_and_distinct_ids() -> None:
    case = CASES["masked"]
    picked, ids = run(case, True)
    assert np.isnan(picked[0]).all()
    assert sorted(ids[0]) == list(range(case.chosen))
    for row in ids:
        assert len(set(row)) == case.chosen


@pytest.mark.parametrize(("scoring", "biased"), [("softmax", False), ("sigmoid", True)])
def test_the_op_gives_the_same_bits_either_way(scoring: str, biased: bool) -> None:
    rng = np.random.default_rng(4)
    logits = rng.standard_normal((33, 128)).astype(np.float32)
    bias = jnp.asarray(rng.standard_normal(128), jnp.float32) if biased else None

    def route(**options: Any) -> list[bytes]:
        routed = jax.jit(
            lambda x: moe_route(x, chosen=6, scoring=scoring, bias=bias, scale=2.5, **options)
        )(logits)
        return [np.asarray(part).tobytes() for part in routed]

    base = route(topk="sort", implementation="reference")
    assert route(topk="rowmax", implementation="pallas", interpret=True) == base
    assert route(topk="rowmax", implementation="reference") == base


def races_found() -> bool:
    """The detector only prints (newest JAX: raises); its verdict is a module's variable."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    assert simulator.races is not None, "the race detector did not run"
    return simulator.races.races_found
