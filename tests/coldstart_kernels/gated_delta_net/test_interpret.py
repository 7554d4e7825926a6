"""The kernel against the rule, interpreted: as plain HLO, and with simulated memory and race detection."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from delta_net_batches import CASES, SPECULATIVE, Ragged, by_loops
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels import gated_delta_net
from coldstart_kernels.gated_delta_net import TuningParams

VMEM = 46 << 20
# fp32 sums of 128 products in another order, over up to 200 tokens. bf16 rounds outputs once: 2**-9 of up to 1.
TOLERANCE = {"float32": 1e-5, "bfloat16": 4e-3}
WIDE = {
    "bf16": Ragged(((1, 5), (1, 9)), ((20, 0), (3, 7)), tokens=40, key_heads=2, group=4,
                   dtype="bfloat16"),
    "one head": Ragged(((1, 5), (1, 9)), ((40, 1),), tokens=64, key_heads=1, group=1),
    "three key heads": Ragged(((1, 5),), ((40, 1),), tokens=50, key_heads=3, group=2),
}  # fmt: skip


@functools.cache
def compiled(
    key_heads: int, window: int, tuning: TuningParams | None, memory: bool
) -> Callable[..., Any]:
    """One program per shape. Compiled without optimizations: most of a test's time otherwise."""
    interpret: Any = True
    if memory:
        interpret = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    return jax.jit(
        functools.partial(
            gated_delta_net, key_heads=key_heads, window=window,
            implementation="pallas", interpret=interpret, tuning=tuning,
        ),
        compiler_options={"xla_backend_optimization_level": 0},
    )  # fmt: skip


def run(
    batch: Ragged,
    arguments: dict[str, Any],
    *,
    tuning: TuningParams | None = None,
    memory: bool = False,
) -> list[np.ndarray]:
    results = compiled(batch.key_heads, batch.window, tuning, memory)(**arguments)
    return [np.asarray(result, np.float32) for result in results]


def check(batch: Ragged, actual: list[np.ndarray], arguments: dict[str, np.ndarray]) -> None:
    wanted_out, wanted_conv, wanted_state = by_loops(batch, arguments)
    out, conv_state, state = actual
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out, wanted_out, atol=TOLERANCE[batch.dtype])
    np.testing.assert_array_equal(conv_state, wanted_conv)  # inputs, moved as they are
    np.testing.assert_allclose(state, wanted_state, atol=1e-5)


@pytest.mark.stacks
@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_loops(name: str) -> None:
    batch = CASES[name]
    arguments = batch.arguments()
    check(batch, run(batch, arguments), arguments)


@pytest.mark.parametrize("name", ["decode and prompts", "lengths", "only decode", "nothing"])
def test_no_race_in_simulated_memory(name: str) -> None:
    batch = CASES[name]
    arguments = batch.arguments()
    actual = run(batch, arguments, memory=True)
    assert races_found() is False
    check(batch, actual, arguments)


@pytest.mark.parametrize("name", SPECULATIVE)
def test_no_race_with_checkpoints_after_every_token(name: str) -> None:
    batch = SPECULATIVE[name]
    arguments = batch.arguments()
    actual = run(batch, arguments, memory=True, tuning=TuningParams(16, 2, VMEM))
    assert races_found() is False
    check(batch, actual, arguments)


@pytest.mark.long
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(
    ("name", "tuning"),
    [
        ("bf16", None),
        ("one head", TuningParams(32, 1, VMEM)),
        ("three key heads", TuningParams(48, 3, VMEM)),
    ],
)
def test_other_shapes_and_tiles(name: str, tuning: TuningParams | None, memory: bool) -> None:
    batch = WIDE[name]
    arguments = batch.arguments()
    actual = run(batch, arguments, tuning=tuning, memory=memory)
    assert not memory or races_found() is False
    check(batch, actual, arguments)


CUTS = {"whole": (90,), "uneven": (17, 1, 46, 2, 24), "decode at the end": (87, 1, 1, 1)}


def test_a_prompt_may_be_cut_anywhere() -> None:
    """Chunk by chunk or token by token: the same outputs and the same state."""
    results = [in_steps(cuts) for cuts in CUTS.values()]
    for result in results[1:]:
        for got, wanted in zip(result, results[0], strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)  # other sums of 128 products


def in_steps(cuts: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """A prompt's outputs and state; steps of one token are decode rows, longer ones prompts."""
    first = CASES["one prompt, resumed"].arguments()
    qkv, a, b = (first[name][: sum(cuts)] for name in ("qkv", "a", "b"))
    slot = first["state_indices"][0]
    states = {name: np.full_like(first[name], np.nan) for name in ("conv_state", "recurrent_state")}
    done, outputs = 0, []
    for length in cuts:
        step = ((length, done),)
        batch = Ragged(decode=step) if length == 1 else Ragged(mixed=step)
        arguments = {**first, **ragged_part(batch, slot), **states}
        for name, array in (("qkv", qkv), ("a", a), ("b", b)):
            arguments[name] = np.full_like(first[name], np.nan)
            arguments[name][:length] = array[done : done + length]
        out, states["conv_state"], states["recurrent_state"] = run(batch, arguments)
        outputs.append(out[:length])
        done += length
    return np.concatenate(outputs), states["conv_state"][slot], states["recurrent_state"][slot]


def ragged_part(batch: Ragged, slot: int) -> dict[str, np.ndarray]:
    """What says who is where, for a batch of one sequence in this slot."""
    made = batch.arguments()
    part = {name: made[name] for name in ("query_start_loc", "seq_lens", "distribution")}
    for name in ("state_indices", "read_indices"):
        part[name] = np.full_like(made[name], slot)
    part["read_offsets"] = np.zeros_like(made["read_offsets"])
    return part


def test_neighbours_in_a_tile_change_no_bit() -> None:
    """A sequence's rows are computed from its own: what lies beside them in the tile is masked, not averaged in."""
    batch = CASES["shorter than the taps"]
    arguments = batch.arguments()
    plain = run(batch, arguments)
    starts = arguments["query_start_loc"]
    for name in ("qkv", "a", "b"):
        arguments[name] = arguments[name].copy()
        arguments[name][starts[3] : starts[4]] = np.nan
    poisoned = run(batch, arguments)
    others = np.r_[0 : starts[3], starts[4] : batch.tokens]
    assert plain[0][others].tobytes() == poisoned[0][others].tobytes()
    # The same rows are read by the sequence that owns them.
    assert np.isnan(poisoned[0][starts[3] : starts[4]]).all()


def races_found() -> bool:
    """The detector only prints (newest JAX: raises); its verdict is a module's variable."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as simulator

    assert simulator.races is not None, "the race detector did not run"
    return simulator.races.races_found
