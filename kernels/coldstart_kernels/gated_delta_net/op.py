"""The gated delta net of one layer: the one public function.

From the projections to the heads' outputs in one op: causal depthwise convolution with SiLU, gates, normalized queries
and keys, delta rule, and both states, for a ragged batch of decode rows and prompts. Before it lies the
projection, after it the norm, the SiLU(z) gate and the out projection.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels import device
from coldstart_kernels.gated_delta_net import batch, kernel, reference
from coldstart_kernels.gated_delta_net.operands import Operands
from coldstart_kernels.gated_delta_net.shape import CONV_TAPS, HISTORY, Shape
from coldstart_kernels.gated_delta_net.tuning import TuningKey, TuningParams, heuristic

_IMPLEMENTATIONS = ("reference", "pallas")
_DTYPES = ("float32", "bfloat16")


def gated_delta_net(
    qkv: jax.Array,  # [tokens, channels]
    a: jax.Array,  # [tokens, value heads]
    b: jax.Array,  # [tokens, value heads]
    conv_state: jax.Array,  # [slots, 3, channels]
    recurrent_state: jax.Array,  # [slots, value heads, key_dim, value_dim] fp32
    conv_weight: jax.Array,  # [channels, 4]
    conv_bias: jax.Array | None,  # [channels]
    a_log: jax.Array,  # [value heads]
    dt_bias: jax.Array,  # [value heads]
    query_start_loc: jax.Array,  # [sequences + 1] int32
    state_indices: jax.Array,  # [sequences] int32
    seq_lens: jax.Array,  # [sequences] int32
    distribution: jax.Array,  # [3] int32
    read_indices: jax.Array | None = None,  # [sequences] int32
    read_offsets: jax.Array | None = None,  # [sequences] int32
    *,
    key_heads: int,
    window: int = 1,
    implementation: str | None = None,
    tuning: TuningParams | None = None,
    interpret: Any = False,
    device_kind: str = "TPU7x",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Run a step's tokens through the layer's delta rule.

    Value head h reads key head h // (value heads / key heads). With all arrays of sequences, entries from
    `distribution[2]` on may hold anything, and so may token rows of no sequence.

    Args:
        qkv: columns [Q | K | V]; each shard of a layer has its own (`shard_columns`).
        a, b: projections that make the log-decay -exp(a_log) softplus(a + dt_bias) and the strength
            sigmoid(b).
        conv_state: the last three rows of qkv, oldest first, per slot; the type of qkv. Donate both
            states: they are changed in place.
        recurrent_state: per slot.
        conv_weight: taps, the last one is the token's own.
        query_start_loc: first token row of each sequence, and the end of the last; ascending.
        state_indices: the slot that takes a sequence's state. No two live sequences share one, and none reads
            a slot that another writes. Slot 0 (and what is out of range) is the null block: never written.
        seq_lens: tokens of each sequence with this step's. A sequence has an initial state where that is more
            than its tokens here, and starts from zeros otherwise, whatever its slot holds.
        distribution: (i, j, k): sequences 0..i-1 are decode rows of 1 to `window` tokens, i..k-1 anything.
        read_indices: the slot of the initial state, `state_indices` by default; the null block starts
            from zeros.
        read_offsets: added to the slot that is read: tokens accepted in the last step, less one.
        window: tokens of a decode row at most (one and the speculated ones). The state after its token t goes to
            slot state_indices + t.
        implementation: "reference", "pallas", or None to pick by the default backend.
        tuning: tile sizes of the Pallas kernel; the heuristic by default.
        interpret: Pallas only: True (plain HLO, any backend), or `pltpu.InterpretParams`.
        device_kind: whose VMEM the heuristic plans for.

    Returns:
        Outputs [tokens, value heads * value_dim] in the type of qkv, zero in rows of no sequence; the new
        conv_state and recurrent_state.

    Raises:
        ValueError: shapes, types or names that don't go together; the message prints them.
    """
    ragged = (query_start_loc, state_indices, seq_lens, distribution, read_indices, read_offsets)
    shape = _checked_shape(qkv, a, b, conv_state, recurrent_state, key_heads)
    _check_parameters(shape, conv_weight, conv_bias, a_log, dt_bias)
    _check_ragged(*ragged, window=window)
    if implementation is None:
        implementation = device.default_implementation()
    if implementation not in _IMPLEMENTATIONS:
        raise ValueError(f"implementation {implementation!r} is not one of {_IMPLEMENTATIONS}")
    if conv_bias is None:
        conv_bias = jnp.zeros(shape.channels, jnp.float32)
    arrays = (qkv, a, b, conv_state, recurrent_state, conv_weight, conv_bias, a_log, dt_bias)
    operands = Operands(shape, *map(jnp.asarray, arrays))
    reads = state_indices if read_indices is None else read_indices
    # The null block has no neighbours: an offset makes no other slot of it.
    if read_offsets is not None:
        reads = jnp.where(reads > 0, reads + read_offsets, reads)
    sequences = batch.sequences_of(
        query_start_loc, seq_lens, distribution, state_indices, reads, slots=conv_state.shape[0]
    )
    if implementation == "reference":
        return reference.run(operands, sequences, window=window)
    key = TuningKey(shape, qkv.shape[0], window, jnp.dtype(qkv.dtype).itemsize, device_kind)
    params = heuristic(key) if tuning is None else tuning
    params.check(key)
    return kernel.run(operands, sequences, window=window, params=params, interpret=interpret)


def _checked_shape(
    qkv: jax.Array,
    a: jax.Array,
    b: jax.Array,
    conv_state: jax.Array,
    recurrent_state: jax.Array,
    key_heads: int,
) -> Shape:
    shapes = (
        f"qkv {qkv.shape}, a {a.shape}, b {b.shape}, conv_state {conv_state.shape}, "
        f"recurrent_state {recurrent_state.shape}, key_heads {key_heads}"
    )
    if (qkv.ndim, a.ndim, b.ndim, conv_state.ndim, recurrent_state.ndim) != (2, 2, 2, 3, 4):
        raise ValueError(f"dimensions are not 2, 2, 2, 3, 4: {shapes}")
    if 0 in (*qkv.shape, *conv_state.shape, *recurrent_state.shape):
        raise ValueError(f"empty operand: {shapes}")
    _, value_heads, key_dim, value_dim = recurrent_state.shape
    if key_heads <= 0 or value_heads % key_heads:
        raise ValueError(f"key heads don't divide the value heads: {shapes}")
    shape = Shape(key_heads, value_heads, key_dim, value_dim)
    if qkv.shape[1] != shape.channels:
        raise ValueError(f"qkv needs {shape.channels} columns [Q | K | V]: {shapes}")
    if not a.shape == b.shape == (qkv.shape[0], value_heads):
        raise ValueError(f"a and b are not [tokens, value heads]: {shapes}")
    if conv_state.shape[1:] != (HISTORY, shape.channels):
        raise ValueError(f"conv_state is not [slots, {HISTORY}, {shape.channels}]: {shapes}")
    if conv_state.shape[0] != recurrent_state.shape[0]:
        raise ValueError(f"the states differ in slots: {shapes}")
    if str(qkv.dtype) not in _DTYPES or conv_state.dtype != qkv.dtype:
        raise ValueError(
            f"qkv and conv_state need one type of {_DTYPES}, got {qkv.dtype}, {conv_state.dtype}"
        )
    if recurrent_state.dtype != jnp.float32:
        raise ValueError(f"recurrent_state needs float32, got {recurrent_state.dtype}")
    return shape


def _check_parameters(
    shape: Shape,
    conv_weight: jax.Array,
    conv_bias: jax.Array | None,
    a_log: jax.Array,
    dt_bias: jax.Array,
) -> None:
    if conv_weight.shape != (shape.channels, CONV_TAPS):
        raise ValueError(
            f"conv_weight {conv_weight.shape} is not [{shape.channels}, {CONV_TAPS}]: {shape}"
        )
    if conv_bias is not None and conv_bias.shape != (shape.channels,):
        raise ValueError(f"conv_bias {conv_bias.shape} is not [{shape.channels}]: {shape}")
    if not a_log.shape == dt_bias.shape == (shape.value_heads,):
        raise ValueError(
            f"a_log {a_log.shape} and dt_bias {dt_bias.shape} are not [value heads]: {shape}"
        )


def _check_ragged(
    query_start_loc: jax.Array,
    state_indices: jax.Array,
    seq_lens: jax.Array,
    distribution: jax.Array,
    read_indices: jax.Array | None,
    read_offsets: jax.Array | None,
    *,
    window: int,
) -> None:
    per_sequence = {"state_indices": state_indices, "seq_lens": seq_lens}
    if read_indices is not None:
        per_sequence["read_indices"] = read_indices
    if read_offsets is not None:
        per_sequence["read_offsets"] = read_offsets
    arrays = {"query_start_loc": query_start_loc, "distribution": distribution, **per_sequence}
    shapes = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in arrays.items())
    if any(array.ndim != 1 or array.dtype != jnp.int32 for array in arrays.values()):
        raise ValueError(f"the batch needs int32 of one dimension: {shapes}")
    if state_indices.shape[0] == 0 or distribution.shape != (3,):
        raise ValueError(f"the batch needs sequences, and a distribution of 3: {shapes}")
    if query_start_loc.shape[0] != state_indices.shape[0] + 1:
        raise ValueError(f"query_start_loc is not [sequences + 1]: {shapes}")
    if any(array.shape != state_indices.shape for array in per_sequence.values()):
        raise ValueError(f"arrays differ in sequences: {shapes}")
    if window < 1:
        raise ValueError(f"window {window} is less than one token")
