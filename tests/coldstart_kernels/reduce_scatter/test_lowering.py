"""Production shapes, compiled by libtpu for a described tpu7x; no TPU is needed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coldstart_kernels import reduce_scatter
from coldstart_kernels.reduce_scatter import TuningKey, check_order
from coldstart_kernels.reduce_scatter.tuning import heuristic, vmem_budget, vmem_needed

pytestmark = pytest.mark.stacks

CASES = {
    "4 chips, 64 tokens": ("tpu7x:2x2x1", 64, 4096),
    "4 chips, 4096 tokens": ("tpu7x:2x2x1", 4096, 4096),
    "8 chips, 32 tokens": ("tpu7x:2x2x2", 32, 6144),
    "8 chips, 4096 tokens": ("tpu7x:2x2x2", 4096, 6144),
}


@pytest.fixture(scope="module", autouse=True)
def tpu_described() -> Iterator[None]:
    pytest.importorskip("libtpu", reason="needs libtpu to compile for a described TPU")
    # One process may hold libtpu's lock file; these let several describe a TPU side by side.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }.items():
            if name not in os.environ:
                patch.setenv(name, value)
        yield


def devices_of(topology: str) -> list[jax.Device]:
    from jax.experimental import topologies

    described = topologies.get_topology_desc(topology, "tpu").devices
    return sorted(described, key=lambda device: device.id)


@pytest.mark.parametrize(
    "name",
    [
        "4 chips, 64 tokens",
        "8 chips, 4096 tokens",
        pytest.param("4 chips, 4096 tokens", marks=pytest.mark.long),
        pytest.param("8 chips, 32 tokens", marks=pytest.mark.long),
    ],
)
def test_compiles_for_tpu7x(name: str) -> None:
    topology, tokens, hidden = CASES[name]
    devices = devices_of(topology)
    check_order(devices)
    key = TuningKey(len(devices), tokens, hidden, 2, "TPU7x")
    assert vmem_needed(key, heuristic(key)) <= vmem_budget(key)
    mesh = Mesh(np.array(devices), ("d",))
    spec = PartitionSpec("d")
    own = functools.partial(reduce_scatter, axis="d", implementation="pallas")
    run = jax.jit(jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    partial = jax.ShapeDtypeStruct(
        (len(devices) * tokens, hidden), jnp.bfloat16, sharding=NamedSharding(mesh, spec)
    )
    text = run.lower(partial).compile().as_text()
    assert "%reduce_scatter" in text and "tpu_custom_call" in text
    assert "reduce-scatter(" not in text and "all-reduce(" not in text


def test_the_order_of_jaxs_own_mesh_is_refused() -> None:
    """It makes a ring of each plane's chips: good for rings, wrong for a hypercube."""
    from jax.experimental import mesh_utils

    devices = devices_of("tpu7x:2x2x2")
    helped = mesh_utils.create_device_mesh((16,), devices)
    assert [device.id for device in helped] != [device.id for device in devices]
    with pytest.raises(ValueError, match="sort the devices by id"):
        check_order(list(helped))
