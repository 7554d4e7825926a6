"""Both plain paths against NumPy, one token and one expert at a time; and the words of refusal."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from moe_operands import BF16, by_numpy, operands, relative_error

from coldstart_kernels import moe_streaming

START = jnp.int32(7)
# The specification's bound against the base path. Both paths and NumPy share the roundings that are part of the
# definition; what is left are the result's rounding to bf16, 2**-9 = 0.002, the base path's of each expert's
# part, as much, and the few middle values that an fp32 sum in another order tips into the next FP8 number.
TOLERANCE = 0.008

run = functools.partial(
    jax.jit,
    static_argnames=("threshold", "activation", "weight_dtype", "packed_sort", "implementation"),
)(functools.partial(moe_streaming, implementation="reference"))


@pytest.mark.parametrize("threshold", [0, 32])
def test_both_paths_equal_numpy(threshold: int) -> None:
    given = operands(32, 1024, 512, 5, 3)
    given["ids"][5] = [3, 99, 7]  # one local, two foreign
    out = run(**given, experts_start=START, threshold=threshold)
    assert out.dtype == jnp.bfloat16
    assert relative_error(out, by_numpy(given)) < TOLERANCE


def test_streaming_and_base_path_within_the_bound() -> None:
    given = operands(32, 1024, 512, 5, 3)
    streamed = run(**given, experts_start=START, threshold=32)
    base = run(**given, experts_start=START, threshold=0)
    assert 0 < relative_error(streamed, base) < TOLERANCE


def test_the_packed_sort_changes_no_bit() -> None:
    given = operands(16, 512, 512, 4, 2)
    base, other = (
        run(**given, experts_start=START, packed_sort=packed) for packed in (False, True)
    )
    assert np.asarray(base).tobytes() == np.asarray(other).tobytes()


def plain(given: dict[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
    wide = {name: given[name].astype(np.float32) for name in ("w1", "w2")}
    return {
        **{name: given[name] for name in ("weights", "ids")},
        "x": given["x"].astype(dtype),
        "w1": (wide["w1"] * given["s1"][:, 0]).astype(dtype),
        "w2": (wide["w2"] * given["s2"][:, 0]).astype(dtype),
    }


def by_loops(given: dict[str, np.ndarray], b1: Any, b2: Any, activation: str) -> np.ndarray:
    x, w1, w2 = (given[name].astype(np.float64) for name in ("x", "w1", "w2"))
    out = np.zeros(x.shape)
    for token, row in enumerate(x):
        for expert, weight in zip(given["ids"][token] - 7, given["weights"][token], strict=True):
            gate, up = np.split(row @ w1[expert] + b1[expert], 2)
            if activation == "silu":
                gate = gate / (1 + np.exp(-gate))
            else:
                gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            out[token] += weight * ((gate * up) @ w2[expert] + b2[expert])
    return out


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_the_base_path_takes_biases_and_other_types(activation: str) -> None:
    given = plain(operands(9, 48, 24, 3, 2), np.float32)
    rng = np.random.default_rng(3)
    b1 = rng.standard_normal((3, 48)).astype(np.float32)
    b2 = rng.standard_normal((3, 48)).astype(np.float32)
    out = run(**given, experts_start=START, b1=b1, b2=b2, activation=activation, threshold=1024)
    # fp32 against double precision.
    assert relative_error(out, by_loops(given, b1, b2, activation)) < 1e-5


def test_another_weight_type_dequantises() -> None:
    given = operands(8, 64, 32, 3, 2)
    asked = run(**given, experts_start=START, weight_dtype="bfloat16")
    dequantised = run(**plain(given, BF16), experts_start=START)
    assert np.asarray(asked).tobytes() == np.asarray(dequantised).tobytes()


def test_block_scales_take_the_base_path() -> None:
    given = operands(16, 512, 512, 3, 2)
    scales = {"s1": (3, 4, 8), "s2": (3, 4, 4)}
    rng = np.random.default_rng(4)
    blocks = {name: rng.uniform(0.02, 0.06, s).astype(np.float32) for name, s in scales.items()}
    out = run(**{**given, **blocks}, experts_start=START, threshold=16)
    wide = plain(given, np.float32)
    for weight, name in (("w1", "s1"), ("w2", "s2")):
        spread = np.repeat(np.repeat(blocks[name], 128, 1), 128, 2)
        wide[weight] = given[weight].astype(np.float32) * spread
    zero = np.zeros((3, 1024))
    exact = by_loops(wide, zero, zero[:, :512], "silu")
    # Against activations that aren't quantised: e4m3 costs up to 3.6 % in each of two matmuls.
    assert 0.01 < relative_error(out, exact) < 0.06


def test_the_first_expert_is_no_constant() -> None:
    """Ranks that own other experts run the same program."""
    given = {name: jnp.asarray(array) for name, array in operands(16, 512, 512, 4, 2).items()}
    texts = {
        run.lower(**given, experts_start=jnp.int32(start), threshold=16).as_text()
        for start in (0, 48)
    }
    assert len(texts) == 1
    with pytest.raises(ValueError, match="experts_start needs an int32 array"):
        moe_streaming(**given, experts_start=48)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"activation": "relu"}, "activation 'relu'"),
        ({"implementation": "cuda"}, "implementation 'cuda'"),
        ({"s2": None}, "s1 and s2 come together"),
        ({"x": jnp.zeros((0, 512), jnp.bfloat16)}, r"empty operand.*x \(0, 512\)"),
        ({"x": jnp.zeros(512, jnp.bfloat16)}, r"two dimensions.*x \(512,\)"),
        ({"x": jnp.zeros((15, 512), jnp.bfloat16)}, r"differ in tokens.*x \(15, 512\)"),
        ({"x": jnp.zeros((16, 256), jnp.bfloat16)}, r"don't go together.*x \(16, 256\)"),
        ({"w1": jnp.zeros((4, 512, 512))}, r"don't go together.*w1 \(4, 512, 512\)"),
        ({"weights": jnp.zeros((16, 2), jnp.bfloat16)}, "float32, got bfloat16"),
        ({"ids": jnp.zeros((16, 2), jnp.uint32)}, "int32: uint32"),
        ({"experts_start": jnp.zeros(1, jnp.int32)}, "no dimension"),
        ({"experts_start": jnp.float32(0)}, "int32: int32, float32"),
    ],
)
def test_refusals_print_the_shapes(changes: dict[str, Any], words: str) -> None:
    shapes = {
        "x": jnp.zeros((16, 512), jnp.bfloat16),
        "weights": jnp.zeros((16, 2)),
        "ids": jnp.zeros((16, 2), jnp.int32),
        "w1": jnp.zeros((4, 512, 1024)),
        "w2": jnp.zeros((4, 512, 512)),
        "s1": jnp.zeros((4, 1, 1, 1024)),
        "experts_start": START,
    }
    if changes.get("s2", 0) is not None:
        shapes["s2"] = jnp.zeros((4, 1, 1, 512))
    with pytest.raises(ValueError, match=words):
        moe_streaming(**{**shapes, **changes})
