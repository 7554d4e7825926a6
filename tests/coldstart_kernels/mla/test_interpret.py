"""The kernel against the reference, interpreted: as plain HLO, and with simulated memory and race detection."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels import mla_attention
from coldstart_kernels.mla import TuningParams


@dataclasses.dataclass(frozen=True)
class Case:
    tokens: int
    own_heads: int
    heads: int
    sequences: int
    positions: int
    list_length: int
    tuning: TuningParams | None = None
    latent: int = 128
    rope: int = 32
    dtype: str = "float32"


CASES = {
    "prefill": Case(24, 2, 8, 1, 24, 16),
    "decode": Case(4, 2, 8, 4, 40, 16),
    "many blocks": Case(6, 8, 24, 2, 300, 200, TuningParams(8, 128)),
    "one head": Case(3, 1, 16, 3, 9, 5),
    "bf16": Case(16, 2, 16, 2, 130, 130, TuningParams(16, 128), dtype="bfloat16"),
    "512+64": Case(2, 4, 8, 2, 16, 8, latent=512, rope=64),
}
# Sums of up to 576 products in another order; bf16 rounds the weights once more (2**-8 relative).
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}
# A race detector that walks every element is slow: it gets the small cases and one of many blocks.
RACED = ("decode", "many blocks", "one head")


def operands(case: Case, branch: str) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    width = case.latent + case.rope
    dtype = jax.numpy.dtype(case.dtype)
    q_replicated = rng.standard_normal((case.tokens, case.heads, width)).astype(dtype)
    q_fragment = q_replicated[:, : case.own_heads].copy()
    cache = rng.standard_normal((case.sequences, case.positions, width)).astype(dtype)
    limits = rng.integers(1, case.positions + 1, case.tokens).astype(np.int32)
    limits[-1] = 0  # padding: must come out as zero
    for sequence, own in enumerate(limits.reshape(case.sequences, -1)):
        cache[sequence, own.max() :] = np.nan
    result = [q_fragment, q_replicated, cache, limits]
    if branch == "sparse":
        indices = rng.integers(-2, case.positions, (case.tokens, case.list_length))
        result.append(indices.astype(np.int32))
    return result


def compiled(case: Case, branch: str, **options: object) -> Callable[..., list[np.ndarray]]:
    @jax.jit
    def attend(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        return mla_attention(
            *arrays, branch=branch, latent_width=case.latent, scale=0.0625, **options
        )

    return lambda *arrays: [np.asarray(part, np.float32) for part in attend(*arrays)]


def run(case: Case, branch: str, arguments: list[np.ndarray], **options) -> list[np.ndarray]:
    return compiled(case, branch, **options)(*arguments)


@pytest.mark.stacks
@pytest.mark.parametrize("branch", ["dense", "sparse"])
@pytest.mark.parametrize(
    "name", [n if n == "decode" else pytest.param(n, marks=pytest.mark.long) for n in CASES]
)
def test_kernel_equals_reference(name: str, branch: str) -> None:
    case = CASES[name]
    arguments = operands(case, branch)
    expected = run(case, branch, arguments, implementation="reference")
    actual = run(
        case, branch, arguments, implementation="pallas", interpret=True, tuning=case.tuning
    )
    for got, wanted in zip(actual, expected, strict=True):
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(got, wanted, atol=TOLERANCE[case.dtype], rtol=1e-5)
    assert not actual[0][-1].any()


@pytest.mark.parametrize("interpret", [True, pytest.param("memory", marks=pytest.mark.long)])
@pytest.mark.parametrize("branch", ["dense", "sparse"])
def test_the_unread_query_changes_no_bit(branch: str, interpret: object) -> None:
    case = CASES["one head"]
    if interpret == "memory":
        interpret = pltpu.InterpretParams()
    attend = compiled(case, branch, implementation="pallas", interpret=interpret)
    arguments = operands(case, branch)
    plain = attend(*arguments)
    unread = 1 if branch == "dense" else 0
    arguments[unread] = np.full_like(arguments[unread], np.nan)
    for a, b in zip(plain, attend(*arguments), strict=True):
        assert a.tobytes() == b.tobytes()
    # The other query is read: the same poison must show.
    arguments[1 - unread] = np.full_like(arguments[1 - unread], np.nan)
    assert np.isnan(attend(*arguments)[0]).any()


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("many blocks", "dense"),
        *(
            pytest.param(name, branch, marks=pytest.mark.long)
            for name in RACED
            for branch in ("dense", "sparse")
            if (name, branch) != ("many blocks", "dense")
        ),
    ],
)
def test_no_race_in_simulated_memory(name: str, branch: str) -> None:
    case = CASES[name]
    arguments = operands(case, branch)
    expected = run(case, branch, arguments, implementation="reference")
    actual = run(
        case, branch, arguments,
        implementation="pallas", tuning=case.tuning,
        interpret=pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"),
    )  # fmt: skip
    assert races_found() is False
    for got, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=TOLERANCE[case.dtype], rtol=1e-5)


def test_the_detector_finds_a_race_where_there_is_one() -> None:
    """Two cores write one block: without this, "no race was found" could mean that nobody looked."""

    def racy(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + pl.program_id(0).astype(jnp.float32)

    block = pl.BlockSpec((8, 128), lambda i: (0, 0))
    options = {"detect_races": True, "num_cores_or_threads": 2}
    if "on_race" in {field.name for field in dataclasses.fields(pltpu.InterpretParams)}:
        options["on_race"] = "warn"
    call = pl.pallas_call(
        racy,
        grid=(2,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=pltpu.InterpretParams(**options),
    )
    jax.jit(call)(np.zeros((8, 128), np.float32)).block_until_ready()
    assert races_found() is True


def races_found() -> bool:
    """The detector only prints (newest JAX: raises); its verdict is a module's variable."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    assert simulator.races is not None, "the race detector did not run"
    return simulator.races.races_found
