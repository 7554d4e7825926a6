"""The gated delta net as the sequential rule in plain JAX: one token after the other, fp32 throughout.

Takes the arguments that kernel.py takes, already validated by op.py.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from coldstart_kernels.gated_delta_net import batch, rule
from coldstart_kernels.gated_delta_net.operands import Operands


class _Carry(NamedTuple):
    history: jax.Array  # [3, channels] of the sequence at hand
    state: jax.Array  # [value heads, key_dim, value_dim] of the sequence at hand
    conv_state: jax.Array
    recurrent_state: jax.Array


def run(
    operands: Operands, sequences: batch.Sequences, *, window: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Outputs [tokens, value heads * value_dim] and both states; rows of no sequence are zero."""
    del window  # decode rows say their lengths
    starts, ends = sequences.starts, sequences.starts + sequences.lengths
    slots = operands.conv_state.shape[0]

    def token(carry: _Carry, row: jax.Array) -> tuple[_Carry, jax.Array]:
        inside = (starts <= row) & (row < ends)
        counts, owner = jnp.any(inside), jnp.argmax(inside)
        opens = row == starts[owner]
        carry = _opened(carry, counts & opens, sequences.read_slots[owner], operands)
        history, state, out = _token(carry.history, carry.state, row, operands)

        decode = owner < sequences.decode_count
        checkpoint = jnp.where(decode, row - starts[owner], 0)
        slot = sequences.write_slots[owner] + checkpoint
        writes = counts & (decode | (row == ends[owner] - 1)) & (sequences.write_slots[owner] >= 0)
        slot = jnp.where(writes, slot, slots)
        carry = _Carry(
            jnp.where(counts, history, carry.history),
            jnp.where(counts, state, carry.state),
            carry.conv_state.at[slot].set(history.astype(carry.conv_state.dtype), mode="drop"),
            carry.recurrent_state.at[slot].set(state, mode="drop"),
        )
        return carry, jnp.where(counts, out, 0).astype(operands.qkv.dtype)

    start = _Carry(
        jnp.zeros(operands.conv_state.shape[1:], jnp.float32),
        jnp.zeros(operands.recurrent_state.shape[1:], jnp.float32),
        operands.conv_state,
        operands.recurrent_state,
    )
    rows = jnp.arange(operands.qkv.shape[0], dtype=jnp.int32)
    end, out = jax.lax.scan(token, start, rows)
    return out, end.conv_state, end.recurrent_state


def _opened(carry: _Carry, opens: jax.Array, read_slot: jax.Array, operands: Operands) -> _Carry:
    """The carry with a sequence's initial state, where a sequence opens."""
    has_state = read_slot != batch.NO_SLOT
    # The state is read from the pool as it came in: slots that are written are read by no other sequence.
    history = jnp.where(has_state, operands.conv_state[read_slot].astype(jnp.float32), 0.0)
    state = jnp.where(has_state, operands.recurrent_state[read_slot], 0.0)
    return carry._replace(
        history=jnp.where(opens, history, carry.history),
        state=jnp.where(opens, state, carry.state),
    )


def _token(
    history: jax.Array, state: jax.Array, row: jax.Array, operands: Operands
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """New history, new state, output [value heads * value_dim] of one token."""
    shape = operands.shape
    inputs = jnp.concatenate([history, operands.qkv[row].astype(jnp.float32)[None]])
    y = jnp.sum(inputs * operands.conv_weight.astype(jnp.float32).T, axis=0)
    y = rule.silu(y + operands.conv_bias.astype(jnp.float32))
    q, k, v = jnp.split(y, [shape.keys, 2 * shape.keys])
    q = rule.normalize(q.reshape(shape.key_heads, shape.key_dim)) * shape.scale
    k = rule.normalize(k.reshape(shape.key_heads, shape.key_dim))
    q, k = jnp.repeat(q, shape.group, axis=0), jnp.repeat(k, shape.group, axis=0)
    v = v.reshape(shape.value_heads, shape.value_dim)

    gate = (operands.a[row], operands.b[row], operands.a_log, operands.dt_bias)
    g, beta = rule.gates(*(part.astype(jnp.float32) for part in gate))
    state = state * jnp.exp(g)[:, None, None]
    seen = jnp.sum(state * k[:, :, None], axis=1)
    u = beta[:, None] * (v - seen)
    state = state + k[:, :, None] * u[:, None, :]
    return inputs[1:], state, jnp.sum(state * q[:, :, None], axis=1).reshape(-1)
