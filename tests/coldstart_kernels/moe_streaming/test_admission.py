"""Which calls stream: each rule by itself, the table of thresholds, and the program that comes of it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from coldstart_kernels import moe_streaming
from coldstart_kernels.moe_streaming import Request

GOOD = Request(256, 4096, 1024, 64)


def test_what_is_right_streams() -> None:
    assert GOOD.refusal(256) is None
    assert dataclasses.replace(GOOD, weight_dtype="float8_e4m3fn").refusal(256) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": 0}, "empty"),
        ({"hidden": 0}, "empty"),
        ({"intermediate": 0}, "empty"),
        ({"experts": 0}, "empty"),
        ({"tokens": 1040}, "more tokens"),
        ({"tokens": 15}, "no multiple of 16"),
        ({"hidden": 4096 + 256}, "hidden is no multiple of 512"),
        ({"intermediate": 768}, "intermediate is no multiple of 512"),
        ({"hidden_dtype": "float32"}, "hidden is not bf16"),
        ({"w1_dtype": "bfloat16"}, "weights are not FP8"),
        ({"w2_dtype": "int4"}, "weights are not FP8"),
        ({"w2_dtype": "float8_e5m2"}, "weights are not FP8"),
        ({"per_channel_scales": False}, "scales are not"),
        ({"biased": True}, "biases"),
        ({"activation": "gelu"}, "not SiLU"),
        ({"weight_dtype": "bfloat16"}, "another weight type"),
    ],
)
def test_each_rule_by_itself(changes: dict[str, object], reason: str) -> None:
    refusal = dataclasses.replace(GOOD, **changes).refusal(1024)
    assert refusal is not None and reason in refusal


THRESHOLDS = [
    # tokens, threshold, streams
    (256, 0, False),
    (256, 1024, True),
    (1024, 1024, True),
    (1040, 1024, False),
    (256, 128, False),
    (272, 272, True),
    (15, 1024, False),
]


@pytest.mark.parametrize(("tokens", "threshold", "streams"), THRESHOLDS)
def test_the_table_of_thresholds(tokens: int, threshold: int, streams: bool) -> None:
    assert (dataclasses.replace(GOOD, tokens=tokens).refusal(threshold) is None) is streams
    kernels = traced(tokens, threshold=threshold)
    assert ("moe_streaming" in kernels, "grouped_matmul" in kernels) == (streams, not streams)


def traced(tokens: int, **options: object) -> str:
    """The program of one call, as text; nothing runs."""
    fp8, experts, width = jnp.float8_e4m3fn, 4, 512
    shapes = [
        ((tokens, width), jnp.bfloat16),
        ((tokens, 2), jnp.float32),
        ((tokens, 2), jnp.int32),
        ((experts, width, 2 * width), fp8),
        ((experts, width, width), fp8),
        ((experts, 1, 1, 2 * width), jnp.float32),
        ((experts, 1, 1, width), jnp.float32),
        ((), jnp.int32),
    ]

    def call(*arrays: jax.Array) -> jax.Array:
        *operands, start = arrays
        return moe_streaming(
            *operands, experts_start=start, implementation="pallas", interpret=True, **options
        )

    return str(jax.make_jaxpr(call)(*(jax.ShapeDtypeStruct(*shape) for shape in shapes)))


def test_off_by_default() -> None:
    assert "moe_streaming" not in traced(16)


def test_the_base_path_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    traced(15, threshold=1024)
    assert not list(recwarn)


@pytest.mark.parametrize("threshold", [-1, 16.5, "16", None, True])
def test_thresholds_that_can_not_be(threshold: object) -> None:
    with pytest.raises(ValueError, match="MOE_DENSE_EXPERT_THRESHOLD"):
        traced(16, threshold=threshold)
