"""Production shapes, compiled by libtpu for one device of a described tpu7x; no TPU is needed."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from coldstart_kernels import mla_attention

pytestmark = pytest.mark.stacks

HEADS, OWN, WIDTH, LATENT = 64, 4, 576, 512
CASES = {
    # tokens, sequences, positions, index list
    "decode": (32, 32, 2048, 2048),
    "short prefill": (256, 1, 1024, 512),
}


@pytest.fixture(scope="module")
def described() -> jax.Device:
    pytest.importorskip("libtpu", reason="needs libtpu to compile for a described TPU")
    from jax.experimental import topologies

    # One process may hold libtpu's lock file; these let several describe a TPU side by side.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }.items():
            if name not in os.environ:
                patch.setenv(name, value)
        return topologies.get_topology_desc("tpu7x:2x2x2", "tpu").devices[0]


def lower(device: jax.Device, name: str, branch: str, rank: int) -> jax.stages.Lowered:
    tokens, sequences, positions, list_length = CASES[name]
    here = SingleDeviceSharding(device)

    def attend(q_full: jax.Array, cache: jax.Array, limits: jax.Array, *indices: jax.Array):
        fragment = jax.lax.slice(q_full, (0, rank * OWN, 0), (tokens, (rank + 1) * OWN, WIDTH))
        return mla_attention(
            fragment, q_full, cache, limits, *indices,
            branch=branch, latent_width=LATENT, scale=0.0625, implementation="pallas",
        )  # fmt: skip

    arguments = [
        jax.ShapeDtypeStruct((tokens, HEADS, WIDTH), jnp.bfloat16, sharding=here),
        jax.ShapeDtypeStruct((sequences, positions, WIDTH), jnp.bfloat16, sharding=here),
        jax.ShapeDtypeStruct((tokens,), jnp.int32, sharding=here),
    ]
    if branch == "sparse":
        arguments.append(jax.ShapeDtypeStruct((tokens, list_length), jnp.int32, sharding=here))
    return jax.jit(attend).lower(*arguments)


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("decode", "dense"),
        pytest.param("decode", "sparse", marks=pytest.mark.long),
        pytest.param("short prefill", "dense", marks=pytest.mark.long),
    ],
)
def test_compiles_for_tpu7x(described: jax.Device, name: str, branch: str) -> None:
    lowered = lower(described, name, branch, rank=3)
    assert lowered.as_text().count("@tpu_custom_call") == 1
    assert "custom-call" in lowered.compile().as_text()


@pytest.mark.parametrize("branch", ["dense", "sparse"])
def test_the_fragment_stays_an_operand(described: jax.Device, branch: str) -> None:
    """The offset of the slice is in the text of both branches: the fault that is to be canonicalized."""
    texts = {lower(described, "decode", branch, rank).as_text() for rank in (0, 1)}
    assert len(texts) == 2
    call = next(line for line in texts.pop().splitlines() if "@tpu_custom_call" in line)
    assert f"tensor<32x{OWN}x{WIDTH}xbf16>" in call or f"tensor<32x{OWN + 12}x{WIDTH}xbf16>" in call
