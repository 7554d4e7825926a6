"""Production shapes, compiled by libtpu for one device of a described tpu7x; no TPU is needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from coldstart_kernels import device, moe_streaming
from coldstart_kernels.moe_streaming import TuningKey
from coldstart_kernels.moe_streaming.tuning import heuristic, vmem_needed

CASES = {
    # tokens, hidden, intermediate, local experts, chosen, slots, planned bytes of VMEM
    "qwen, 16 tokens": (16, 4096, 1024, 64, 10, 3, 38_510_592),
    "qwen, 64 tokens": (64, 4096, 1024, 64, 10, 3, 40_574_976),
    "qwen, 256 tokens": (256, 4096, 1024, 64, 10, 3, 48_832_512),
    "glm, 64 tokens": (64, 6144, 2048, 16, 8, 1, 42_016_768),
    "glm, 256 tokens": (256, 6144, 2048, 16, 8, 1, 54_697_984),
    "129 experts": (272, 1536, 1536, 129, 4, 3, 26_998_784),
}
IN_CI = "qwen, 16 tokens"


@pytest.fixture(scope="module")
def here() -> SingleDeviceSharding:
    pytest.importorskip("libtpu", reason="needs libtpu to compile for a described TPU")
    from jax.experimental import topologies

    return SingleDeviceSharding(topologies.get_topology_desc("tpu7x:2x2x1", "tpu").devices[0])


def lower(
    here: SingleDeviceSharding,
    tokens: int,
    hidden: int,
    intermediate: int,
    experts: int,
    chosen: int,
) -> jax.stages.Lowered:
    def shape(dtype: str, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=here)

    def run(*arrays: jax.Array) -> jax.Array:
        *operands, start = arrays
        return moe_streaming(
            *operands, experts_start=start, threshold=1024, implementation="pallas"
        )

    return jax.jit(run).lower(
        shape("bfloat16", tokens, hidden),
        shape("float32", tokens, chosen),
        shape("int32", tokens, chosen),
        shape("float8_e4m3fn", experts, hidden, 2 * intermediate),
        shape("float8_e4m3fn", experts, intermediate, hidden),
        shape("float32", experts, 1, 1, 2 * intermediate),
        shape("float32", experts, 1, 1, hidden),
        shape("int32"),
    )


@pytest.mark.stacks
@pytest.mark.parametrize(
    "name", [n if n == IN_CI else pytest.param(n, marks=pytest.mark.long) for n in CASES]
)
def test_compiles_for_tpu7x(here: SingleDeviceSharding, name: str) -> None:
    *sizes, slots, vmem = CASES[name]
    lowered = lower(here, *sizes)
    assert lowered.as_text().count("@tpu_custom_call") == 1
    text = lowered.compile().as_text()
    # No permutation is left: nothing sorts.
    assert "custom-call" in text and " sort(" not in text
    key = TuningKey(*sizes[:4], "TPU7x")
    assert heuristic(key).slots == slots
    assert vmem_needed(key, heuristic(key)) == vmem <= device.vmem_bytes("TPU7x") == 67_108_864


@pytest.mark.long
def test_what_does_not_fit_is_the_compilers_to_refuse(here: SingleDeviceSharding) -> None:
    """One slot is planned even where it doesn't fit, and the failure isn't hidden behind the base path."""
    with pytest.raises(Exception, match=r"memory space vmem. Used \d+\.\d+M of 64.00M"):
        lower(here, 1024, 4096, 1024, 64, 10).compile()
