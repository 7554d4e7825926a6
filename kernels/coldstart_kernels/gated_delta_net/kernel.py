"""The gated delta net on a TPU: two launches, chained in place on both states.

Decode rows first (decode_kernel.py), then everything else in chunks (prefill_kernel.py). Outputs of the decode rows
are laid over the chunks' outputs, which are zero there. Takes the arguments that reference.py takes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coldstart_kernels.gated_delta_net import batch, decode_kernel, prefill_kernel
from coldstart_kernels.gated_delta_net.operands import Operands
from coldstart_kernels.gated_delta_net.tuning import TuningParams


def run(
    operands: Operands,
    sequences: batch.Sequences,
    *,
    window: int,
    params: TuningParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Outputs [tokens, value heads * value_dim] and both states."""
    rows = batch.decode_rows(
        sequences, tokens=operands.qkv.shape[0], window=window, multiple=params.decode_tile
    )
    decoded, operands = _decode(operands, rows, params, interpret)
    out, operands = _prefill(operands, sequences, params, interpret)
    target = jnp.where(rows.counts, rows.tokens, out.shape[0])
    out = out.at[target].set(decoded, mode="drop")
    return out, operands.conv_state, operands.recurrent_state


def _decode(
    operands: Operands, rows: batch.DecodeRows, params: TuningParams, interpret: Any
) -> tuple[jax.Array, Operands]:
    shape = operands.shape
    # A few rows: gathered into a rectangle, so that each starts a tile of its own.
    x, a, b = (
        part[rows.tokens].astype(jnp.float32) for part in (operands.qkv, operands.a, operands.b)
    )
    out, conv_state, recurrent_state = decode_kernel.launch(
        x, a, b,
        rows,
        operands.conv_state,
        operands.recurrent_state,
        operands.conv_weight.astype(jnp.float32).T,
        operands.conv_bias.astype(jnp.float32)[None],
        operands.a_log.astype(jnp.float32)[None],
        operands.dt_bias.astype(jnp.float32)[None],
        shape=shape, params=params, interpret=interpret,
    )  # fmt: skip
    return out.reshape(*out.shape[:2], shape.values), operands.with_states(
        conv_state, recurrent_state
    )


def _prefill(
    operands: Operands, sequences: batch.Sequences, params: TuningParams, interpret: Any
) -> tuple[jax.Array, Operands]:
    shape, chunk = operands.shape, params.chunk
    count = operands.qkv.shape[0]
    missing = -count % chunk
    tokens = count + missing
    items, order = batch.chunk_items(sequences, tokens=tokens, chunk=chunk)
    grouped = (shape.key_heads, shape.group)

    def gate(x: jax.Array) -> jax.Array:
        """[tokens, value heads] to [tiles, key heads, group, chunk]: rows of one head side by side."""
        padded = jnp.pad(x.astype(jnp.float32), ((0, missing), (0, 0)))
        return padded.reshape(-1, chunk, *grouped).transpose(0, 2, 3, 1)

    out, conv_state, recurrent_state = prefill_kernel.launch(
        jnp.pad(operands.qkv, ((0, missing), (0, 0))) if missing else operands.qkv,
        gate(operands.a),
        gate(operands.b),
        items, order, sequences,
        operands.conv_state,
        operands.recurrent_state,
        operands.conv_weight.astype(jnp.float32).T,
        operands.conv_bias.astype(jnp.float32)[None],
        operands.a_log.astype(jnp.float32).reshape(*grouped, 1),
        operands.dt_bias.astype(jnp.float32).reshape(*grouped, 1),
        shape=shape, params=params, interpret=interpret,
    )  # fmt: skip
    return out[:count], operands.with_states(conv_state, recurrent_state)
