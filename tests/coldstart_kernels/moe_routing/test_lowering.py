"""Production shapes, compiled by libtpu for one device of a described tpu7x; no TPU is needed."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from coldstart_kernels import device, moe_permute, moe_route
from coldstart_kernels.moe_routing import TuningKey
from coldstart_kernels.moe_routing.tuning import heuristic, vmem_needed

CASES = {
    # tokens, experts, chosen, scoring
    "glm decode": (64, 256, 8, "sigmoid"),
    "glm prefill": (4096, 256, 8, "sigmoid"),
    "qwen prefill": (4096, 512, 10, "softmax"),
}


@pytest.fixture(scope="module")
def here() -> SingleDeviceSharding:
    pytest.importorskip("libtpu", reason="needs libtpu to compile for a described TPU")
    from jax.experimental import topologies

    return SingleDeviceSharding(topologies.get_topology_desc("tpu7x:2x2x1", "tpu").devices[0])


@pytest.mark.stacks
@pytest.mark.parametrize(
    "name", [n if n == "qwen prefill" else pytest.param(n, marks=pytest.mark.long) for n in CASES]
)
def test_router_compiles_for_tpu7x(here: SingleDeviceSharding, name: str) -> None:
    tokens, experts, chosen, scoring = CASES[name]

    def route(logits: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        return moe_route(
            logits, chosen=chosen, scoring=scoring, bias=bias, scale=2.5,
            topk="rowmax", implementation="pallas",
        )  # fmt: skip

    lowered = jax.jit(route).lower(
        jax.ShapeDtypeStruct((tokens, experts), jnp.float32, sharding=here),
        jax.ShapeDtypeStruct((experts,), jnp.float32, sharding=here),
    )
    assert lowered.as_text().count("@tpu_custom_call") == 1
    text = lowered.compile().as_text()
    assert "custom-call" in text and " sort(" not in text
    key = TuningKey(tokens, experts, chosen, "TPU7x")
    assert vmem_needed(key, heuristic(key)) <= device.vmem_bytes("TPU7x") == 67_108_864


@pytest.mark.long
def test_packed_permutation_compiles_with_one_sort(here: SingleDeviceSharding) -> None:
    """Qwen's 4096 tokens by 10 choices, 64 of 512 experts here."""

    def permute(ids: jax.Array, start: jax.Array) -> tuple[jax.Array, ...]:
        return moe_permute(ids, local_experts=64, experts_start=start, packed=True)

    compiled = (
        jax.jit(permute)
        .lower(
            jax.ShapeDtypeStruct((4096, 10), jnp.int32, sharding=here),
            jax.ShapeDtypeStruct((), jnp.int32, sharding=here),
        )
        .compile()
    )
    assert len(re.findall(r" sort\(", compiled.as_text())) == 1
