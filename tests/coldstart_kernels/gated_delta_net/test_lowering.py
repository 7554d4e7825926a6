"""Production shapes, compiled by libtpu for one device of a described tpu7x; no TPU is needed."""

from __future__ import annotations

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from coldstart_kernels import gated_delta_net
from coldstart_kernels.gated_delta_net import Shape, TuningKey, TuningParams
from coldstart_kernels.gated_delta_net.tuning import decode_vmem, heuristic, prefill_vmem

pytestmark = pytest.mark.stacks

WHOLE = Shape(key_heads=16, value_heads=64, key_dim=128, value_dim=128)
EIGHTH = Shape(key_heads=2, value_heads=8, key_dim=128, value_dim=128)
LAUNCHES = ("gated_delta_net_decode", "gated_delta_net_prefill")


@dataclasses.dataclass(frozen=True)
class Step:
    tokens: int
    sequences: int
    shape: Shape
    window: int = 1
    dtype: str = "bfloat16"

    @property
    def slots(self) -> int:
        return 1 + self.sequences * self.window

    @property
    def key(self) -> TuningKey:
        itemsize = jnp.dtype(self.dtype).itemsize
        return TuningKey(self.shape, self.tokens, self.window, itemsize, "TPU7x")


QUICK = Step(32, 32, EIGHTH)
"""TP8: a device has an eighth of the heads."""
STEPS = {
    "DP8 decode 32": Step(32, 32, WHOLE),
    "DP8 decode 64": Step(64, 64, WHOLE),
    "DP8 prefill 4096": Step(4096, 64, WHOLE),
    "TP8 decode 64": Step(64, 64, EIGHTH),
    "TP8 prefill 4096": Step(4096, 64, EIGHTH),
    "DP8 three speculated": Step(128, 32, WHOLE, window=4),
    "DP8 fp32": Step(64, 16, WHOLE, dtype="float32"),
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
        return topologies.get_topology_desc("tpu7x:2x2x1", "tpu").devices[0]


def lower(device: jax.Device, step: Step, tuning: TuningParams | None = None) -> jax.stages.Lowered:
    here = SingleDeviceSharding(device)
    shape, dtype = step.shape, jnp.dtype(step.dtype)
    heads, tokens, sequences = shape.value_heads, step.tokens, step.sequences
    arrays = {
        "qkv": ((tokens, shape.channels), dtype),
        "a": ((tokens, heads), dtype),
        "b": ((tokens, heads), dtype),
        "conv_state": ((step.slots, 3, shape.channels), dtype),
        "recurrent_state": ((step.slots, heads, shape.key_dim, shape.value_dim), jnp.float32),
        "conv_weight": ((shape.channels, 4), dtype),
        "conv_bias": ((shape.channels,), dtype),
        "a_log": ((heads,), jnp.float32),
        "dt_bias": ((heads,), jnp.float32),
        "query_start_loc": ((sequences + 1,), jnp.int32),
        "state_indices": ((sequences,), jnp.int32),
        "seq_lens": ((sequences,), jnp.int32),
        "distribution": ((3,), jnp.int32),
        "read_indices": ((sequences,), jnp.int32),
        "read_offsets": ((sequences,), jnp.int32),
    }
    arguments = {
        name: jax.ShapeDtypeStruct(*described, sharding=here) for name, described in arrays.items()
    }
    # As the kernel's copies want it; XLA's own choice puts the three inputs outermost.
    pinned = Format(Layout((0, 1, 2)), here)
    conv_state = arguments["conv_state"]
    arguments["conv_state"] = jax.ShapeDtypeStruct(
        conv_state.shape, conv_state.dtype, sharding=pinned
    )
    run = functools.partial(
        gated_delta_net, key_heads=shape.key_heads, window=step.window,
        implementation="pallas", tuning=tuning,
    )  # fmt: skip
    jitted = jax.jit(
        run,
        donate_argnames=("conv_state", "recurrent_state"),
        out_shardings=(None, pinned, None),
    )
    return jitted.lower(**arguments)


def compile_and_check(device: jax.Device, step: Step) -> None:
    """Compiled with no more VMEM than the sums of tuning.py say, and with both states left in place."""
    params = heuristic(step.key)
    needed = max(decode_vmem(step.key, params), prefill_vmem(step.key, params))
    assert needed <= params.vmem_limit_bytes
    lowered = lower(device, step, dataclasses.replace(params, vmem_limit_bytes=needed))
    assert lowered.as_text().count("@tpu_custom_call") == len(LAUNCHES)
    compiled = lowered.compile()
    text = compiled.as_text()
    assert all(f"%{name}" in text for name in LAUNCHES)
    shape, itemsize = step.shape, jnp.dtype(step.dtype).itemsize
    state = step.slots * shape.value_heads * shape.key_dim * shape.value_dim * 4
    # Three rows are laid out as four of bf16, or of fp32.
    history = step.slots * 4 * shape.channels * itemsize
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == state + history
    pool = f"[{step.slots},3,{shape.channels}]"
    assert not [line for line in text.splitlines() if "copy(" in line and pool in line]


def test_compiles_for_tpu7x(described: jax.Device) -> None:
    compile_and_check(described, QUICK)


@pytest.mark.long
@pytest.mark.parametrize("name", STEPS)
def test_production_shape_compiles_for_tpu7x(described: jax.Device, name: str) -> None:
    compile_and_check(described, STEPS[name])


@pytest.mark.long
def test_the_sums_are_no_more_than_a_quarter_too_large(
    described: jax.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With less VMEM than the sum, the compiler says what it wanted: so it is the sum that's checked."""
    step = STEPS["DP8 decode 64"]
    params = heuristic(step.key)
    monkeypatch.setattr(TuningParams, "check", lambda self, key: None)
    needed = decode_vmem(step.key, params)
    short = dataclasses.replace(params, vmem_limit_bytes=int(needed * 0.8))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"vmem.*gated_delta_net_decode"):
        lower(described, step, short).compile()
