"""Production shapes, compiled by libtpu for one device of a described tpu7x; no TPU is needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from coldstart_kernels import device, grouped_matmul
from coldstart_kernels.grouped_matmul import TuningKey
from coldstart_kernels.grouped_matmul.tuning import heuristic, vmem_needed

CASES = {
    # rows, local experts, k, n, dtype, bytes of VMEM
    "glm gate-up, bf16": (4096, 16, 6144, 4096, "bfloat16", 20_971_520),
    "glm gate-up, fp8": (4096, 16, 6144, 4096, "float8_e4m3fn", 11_993_088),
    "glm down, bf16": (4096, 16, 2048, 6144, "bfloat16", 8_388_608),
    "glm down, fp8": (4096, 16, 2048, 6144, "float8_e4m3fn", 5_570_560),
    "qwen gate-up, bf16": (5120, 64, 4096, 2048, "bfloat16", 11_534_336),
    "qwen gate-up, fp8": (5120, 64, 4096, 2048, "float8_e4m3fn", 6_553_600),
    "qwen down, decode, fp8": (640, 64, 1024, 4096, "float8_e4m3fn", 2_523_136),
}
IN_CI = "qwen down, decode, fp8"


@pytest.fixture(scope="module")
def here() -> SingleDeviceSharding:
    pytest.importorskip("libtpu", reason="needs libtpu to compile for a described TPU")
    from jax.experimental import topologies

    return SingleDeviceSharding(topologies.get_topology_desc("tpu7x:2x2x1", "tpu").devices[0])


@pytest.mark.stacks
@pytest.mark.parametrize(
    "name", [n if n == IN_CI else pytest.param(n, marks=pytest.mark.long) for n in CASES]
)
def test_compiles_for_tpu7x(here: SingleDeviceSharding, name: str) -> None:
    rows, experts, k, n, dtype, vmem = CASES[name]
    fp8 = dtype == "float8_e4m3fn"

    def shape(*sizes: int, dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.dtype(dtype), sharding=here)

    arguments = [
        shape(rows, k, dtype="bfloat16"),
        shape(experts, k, n, dtype=dtype),
        shape(experts, dtype="int32"),
    ]
    if fp8:
        arguments.append(shape(experts, k // 128, n // 128, dtype="float32"))

    def multiply(x: jax.Array, w: jax.Array, g: jax.Array, s: jax.Array | None = None) -> jax.Array:
        return grouped_matmul(x, w, g, weight_scales=s, implementation="pallas")

    lowered = jax.jit(multiply).lower(*arguments)
    assert lowered.as_text().count("@tpu_custom_call") == 1
    assert "custom-call" in lowered.compile().as_text()
    key = TuningKey(rows, experts, k, n, 1 if fp8 else 2, 2, 128 if fp8 else 0, "TPU7x")
    assert vmem_needed(key, heuristic(key)) == vmem
    # The compiler's limit, as its own message names it.
    assert vmem <= device.vmem_bytes("TPU7x") == 67_108_864
