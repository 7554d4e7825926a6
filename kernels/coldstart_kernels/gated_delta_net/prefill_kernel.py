"""Chunked prefill: one launch over work items, each a piece of one sequence within one tile of rows.

Tiles are cut from the batch's rows (batch.py says why). A grid step is an item; items of one tile follow each other,
so its rows are copied in once and its outputs copied out once. A sequence's state and the last three inputs stay
in VMEM from its first item to its last; two buffers alternate between sequences:

    item            first of n               ...   last of n            first of n+1
    buffer n%2      wait fetch, use          use   use, start write     writing
    buffer (n+1)%2  write of n-1 done,             fetching             wait fetch, use
                    start fetch of n+1

In VMEM:

    x            [chunk, channels]                         x2
    a, b         [key heads, group, chunk] fp32            x2 each
    out          [chunk, value heads * value_dim]          x2
    conv weight  [4, channels], bias [1, channels] fp32, a_log, dt_bias [key heads, group, 1] fp32   x2
    buffers      2 x (state [value heads, key_dim, value_dim] fp32 + history [3, channels])
    values of one key head: q, k, v, corrections, their solution, outputs: rule.chunk_step
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels.gated_delta_net import batch, rule
from coldstart_kernels.gated_delta_net.copies import StateCopies, start, wait
from coldstart_kernels.gated_delta_net.shape import CONV_TAPS, HISTORY, Shape
from coldstart_kernels.gated_delta_net.tuning import TuningParams

_SCALARS = 11


def launch(
    x: jax.Array,  # [tokens, channels], whole chunks
    a: jax.Array,  # [tiles, key heads, group, chunk] fp32
    b: jax.Array,  # [tiles, key heads, group, chunk] fp32
    items: batch.ChunkItems,
    order: batch.ChunkOrder,
    sequences: batch.Sequences,
    conv_state: jax.Array,  # [slots, 3, channels]
    recurrent_state: jax.Array,  # [slots, value heads, key_dim, value_dim] fp32
    conv_weight: jax.Array,  # [4, channels] fp32
    conv_bias: jax.Array,  # [1, channels] fp32
    a_log: jax.Array,  # [key heads, group, 1] fp32
    dt_bias: jax.Array,  # [key heads, group, 1] fp32
    *,
    shape: Shape,
    params: TuningParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Outputs [tokens, value heads * value_dim] in the type of x, and both states; other rows are zero."""
    chunk = params.chunk

    def by_tile(*block: int) -> pl.BlockSpec:
        zeros = (0,) * (len(block) - 1)
        return pl.BlockSpec(block, lambda i, tiles, *_: (tiles[i], *zeros))

    def whole(array: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda i, *_: (0,) * array.ndim)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    constants = (conv_weight, conv_bias, a_log, dt_bias)
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=_SCALARS,
        grid=items.tiles.shape,
        in_specs=[
            by_tile(chunk, shape.channels),
            by_tile(1, shape.key_heads, shape.group, chunk),
            by_tile(1, shape.key_heads, shape.group, chunk),
            *map(whole, constants),
            anywhere,
            anywhere,
        ],
        out_specs=[by_tile(chunk, shape.values), anywhere, anywhere],
        scratch_shapes=[
            pltpu.VMEM((2, *conv_state.shape[1:]), conv_state.dtype),
            pltpu.VMEM((2, *recurrent_state.shape[1:]), jnp.float32),
            pltpu.SemaphoreType.DMA((2, 2)),
            pltpu.SemaphoreType.DMA((2, 2)),
        ],
    )
    moving = 3 + len(constants)
    return pl.pallas_call(
        functools.partial(_body, shape=shape, chunk=chunk),
        name="gated_delta_net_prefill",
        grid_spec=grid,
        out_shape=[
            jax.ShapeDtypeStruct((x.shape[0], shape.values), x.dtype),
            jax.ShapeDtypeStruct(conv_state.shape, conv_state.dtype),
            jax.ShapeDtypeStruct(recurrent_state.shape, recurrent_state.dtype),
        ],
        input_output_aliases={_SCALARS + moving: 1, _SCALARS + moving + 1: 2},
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=params.vmem_limit_bytes),
        interpret=interpret,
    )(
        items.tiles, items.begins, items.ends, items.sequences, items.flags,
        order.buffers, order.before, order.after, order.first,
        sequences.read_slots, sequences.write_slots,
        x, a, b, *constants, conv_state, recurrent_state,
    )  # fmt: skip


def _body(
    _tiles: Any,
    begins: Any,
    ends: Any,
    owners: Any,
    flags: Any,
    buffers: Any,
    before: Any,
    after: Any,
    first: Any,
    read_slots: Any,
    write_slots: Any,
    x_ref: Any,
    a_ref: Any,
    b_ref: Any,
    weight_ref: Any,
    bias_ref: Any,
    a_log_ref: Any,
    dt_bias_ref: Any,
    _conv_in: Any,
    _state_in: Any,
    out_ref: Any,
    conv_ref: Any,
    state_ref: Any,
    history_buffer: Any,
    state_buffer: Any,
    arrived: Any,
    left: Any,
    *,
    shape: Shape,
    chunk: int,
) -> None:
    item = pl.program_id(0)
    copies = StateCopies((conv_ref, state_ref), (history_buffer, state_buffer), arrived, left)
    owner, flag = owners[item], flags[item]
    at = buffers[owner]

    def fetch(n: Any) -> None:
        """Start to bring the state of sequence n, where there is such a sequence and such a state."""
        known = jnp.maximum(n, 0)

        @pl.when((n >= 0) & (read_slots[known] >= 0))
        def _() -> None:
            start(copies.fetch(buffers[known], read_slots[known]))

    def finish(n: Any) -> None:
        """Wait until the state of sequence n has left."""
        known = jnp.maximum(n, 0)

        @pl.when((n >= 0) & (write_slots[known] >= 0))
        def _() -> None:
            wait(copies.write_back(buffers[known], write_slots[known]))

    @pl.when(item == 0)
    def _() -> None:
        fetch(first[0])

    @pl.when(flag & batch.CLEARS != 0)
    def _() -> None:
        out_ref[...] = jnp.zeros(out_ref.shape, out_ref.dtype)

    opens = flag & batch.OPENS != 0

    @pl.when(opens & (read_slots[owner] >= 0))
    def _() -> None:
        wait(copies.fetch(at, read_slots[owner]))

    @pl.when(opens & (read_slots[owner] < 0))
    def _() -> None:
        history_buffer[at] = jnp.zeros(history_buffer.shape[1:], history_buffer.dtype)
        state_buffer[at] = jnp.zeros(state_buffer.shape[1:], state_buffer.dtype)

    @pl.when(flag & batch.LIVE != 0)
    def _() -> None:
        convolve = functools.partial(
            _convolve, x_ref, history_buffer.at[at], weight_ref, bias_ref, begins[item], ends[item]
        )

        def key_head(h: Any, carry: Any) -> Any:
            _key_head(
                h, convolve, begins[item], ends[item], a_ref, b_ref, a_log_ref, dt_bias_ref,
                state_buffer.at[at], out_ref, shape, chunk,
            )  # fmt: skip
            return carry

        jax.lax.fori_loop(0, shape.key_heads, key_head, 0)

    @pl.when(opens)
    def _() -> None:
        finish(before[owner])
        fetch(after[owner])

    @pl.when((flag & batch.CLOSES != 0) & (write_slots[owner] >= 0))
    def _() -> None:
        start(copies.write_back(at, write_slots[owner]))

        @pl.when(after[owner] < 0)
        def _() -> None:
            finish(owner)


def _key_head(
    h: Any,
    convolve: Any,
    begin: Any,
    end: Any,
    a_ref: Any,
    b_ref: Any,
    a_log_ref: Any,
    dt_bias_ref: Any,
    state: Any,
    out_ref: Any,
    shape: Shape,
    chunk: int,
) -> None:
    """One key head and the value heads that share it, for the rows begin..end-1 of the tile."""
    width, group = shape.key_dim, shape.group
    q = rule.normalize(convolve(h * width, width)) * shape.scale
    k = rule.normalize(convolve(shape.keys + h * width, width))
    values = group * shape.value_dim
    v = convolve(2 * shape.keys + h * values, values)
    kk, qk = rule.chunk_products(q, k)

    column = jax.lax.broadcasted_iota(jnp.int32, (group, chunk), 1)
    inside = (column >= begin) & (column < end)
    g, beta = rule.gates(a_ref[0, h], b_ref[0, h], a_log_ref[h], dt_bias_ref[h])
    g, beta = jnp.where(inside, g, 0.0), jnp.where(inside, beta, 0.0)
    row = jax.lax.broadcasted_iota(jnp.int32, (chunk, shape.value_dim), 0)
    inside = (row >= begin) & (row < end)
    for j in range(group):
        head = h * group + j
        own = slice(j * shape.value_dim, (j + 1) * shape.value_dim)
        out, new_state = rule.chunk_step(
            q, k, v[:, own], kk, qk, g[j : j + 1], beta[j : j + 1], state[head]
        )
        state[head] = new_state
        columns = pl.ds(pl.multiple_of(head * shape.value_dim, shape.value_dim), shape.value_dim)
        # Other rows of the tile belong to the sequences before and after.
        out_ref[:, columns] = jnp.where(inside, out.astype(out_ref.dtype), out_ref[:, columns])


def _convolve(
    x_ref: Any,
    history_ref: Any,
    weight_ref: Any,
    bias_ref: Any,
    begin: Any,
    end: Any,
    first_column: Any,
    width: int,
) -> jax.Array:
    """Some channels of the rows begin..end-1 after convolution and SiLU, other rows zero [chunk, width] fp32.

    The three inputs before row `begin` are the history, which moves on to the last three before `end`.
    Other rows of the tile may hold anything, NaN included: they are never multiplied.
    """
    columns = pl.ds(pl.multiple_of(first_column, width), width)
    x = x_ref[:, columns].astype(jnp.float32)
    history = history_ref[:, columns].astype(jnp.float32)
    weight = weight_ref[:, columns]
    row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    y = x * weight[HISTORY:] + bias_ref[:, columns]
    for back in range(1, CONV_TAPS):
        shifted = pltpu.roll(x, back, 0)
        for i in range(back):
            old = history[HISTORY - back + i : HISTORY - back + i + 1]
            shifted = jnp.where(row == begin + i, old, shifted)
        y = y + shifted * weight[HISTORY - back : CONV_TAPS - back]
    inside = (row >= begin) & (row < end)

    moved = []
    for i in range(HISTORY):
        recent = inside & (row == end - HISTORY + i)
        value = jnp.sum(jnp.where(recent, x, 0.0), axis=0, keepdims=True)
        for length in range(1, HISTORY - i):
            value = jnp.where(end - begin == length, history[i + length : i + length + 1], value)
        moved.append(value)
    history_ref[:, columns] = jnp.concatenate(moved, axis=0).astype(history_ref.dtype)
    return jnp.where(inside, rule.silu(y), 0.0)
