"""Decode rows: one launch, a tile of sequences per grid step, states streamed through a ring in VMEM.

With L sequences per tile there are 2 L buffers. Sequence n uses buffer n mod 2 L:

    n-L    write-back in flight ........ done: its buffer takes the fetch of n+L
    n      fetch done | conv, gates, delta rule | write-back starts
    n+L    fetch in flight

so that L reads and L writes are under way while one sequence is computed. In VMEM:

    x            [L, window, channels] fp32    x2   projections of the tile
    a, b         [L, window, value heads] fp32 x2
    out          [L, window, value heads, value_dim] x2
    conv weight  [4, channels], bias [1, channels] fp32, a_log, dt_bias [1, value heads] fp32   x2
    ring         2 L x (state [value heads, key_dim, value_dim] fp32 + history [3, channels])
    heads        [channels / width, width] fp32: convolved channels, a head per row
    scalars      2 x [value heads, value_dim] fp32: decay and beta, a head per row
    rows         [value heads, value_dim] fp32: outputs, a head per row

With a window, every token's state is a checkpoint of its own: it leaves before the next token overwrites it, so
only the last write of a sequence overlaps with others.
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
from coldstart_kernels.gated_delta_net.shape import Shape
from coldstart_kernels.gated_delta_net.tuning import TuningParams


def launch(
    x: jax.Array,  # [rows, window, channels] fp32
    a: jax.Array,  # [rows, window, value heads] fp32
    b: jax.Array,  # [rows, window, value heads] fp32
    rows: batch.DecodeRows,
    conv_state: jax.Array,  # [slots, 3, channels]
    recurrent_state: jax.Array,  # [slots, value heads, key_dim, value_dim] fp32
    conv_weight: jax.Array,  # [4, channels] fp32
    conv_bias: jax.Array,  # [1, channels] fp32
    a_log: jax.Array,  # [1, value heads] fp32
    dt_bias: jax.Array,  # [1, value heads] fp32
    *,
    shape: Shape,
    params: TuningParams,
    interpret: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Outputs [rows, window, value heads, value_dim] in the type of the history, and both states.

    Rows that don't count come out as zero.
    """
    count, window, channels = x.shape
    tile = params.decode_tile

    def moving(*block: int) -> pl.BlockSpec:
        zeros = (0,) * (len(block) - 1)
        return pl.BlockSpec(block, lambda i, *_: (i, *zeros))

    def whole(array: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda i, *_: (0,) * array.ndim)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    constants = (conv_weight, conv_bias, a_log, dt_bias)
    heads = (shape.value_heads, shape.value_dim)
    ring = 2 * tile
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(count // tile,),
        in_specs=[
            moving(tile, window, channels),
            moving(tile, window, shape.value_heads),
            moving(tile, window, shape.value_heads),
            *map(whole, constants),
            anywhere,
            anywhere,
        ],
        out_specs=[moving(tile, window, *heads), anywhere, anywhere],
        scratch_shapes=[
            pltpu.VMEM((ring, *conv_state.shape[1:]), conv_state.dtype),
            pltpu.VMEM((ring, *recurrent_state.shape[1:]), jnp.float32),
            pltpu.VMEM((shape.channels // shape.key_dim, shape.key_dim), jnp.float32),
            pltpu.VMEM(heads, jnp.float32),
            pltpu.VMEM(heads, jnp.float32),
            pltpu.VMEM(heads, jnp.float32),
            pltpu.SemaphoreType.DMA((ring, 2)),
            pltpu.SemaphoreType.DMA((ring, 2)),
        ],
    )
    return pl.pallas_call(
        functools.partial(_body, shape=shape, tile=tile, slots=conv_state.shape[0]),
        name="gated_delta_net_decode",
        grid_spec=grid,
        out_shape=[
            jax.ShapeDtypeStruct((count, window, *heads), conv_state.dtype),
            jax.ShapeDtypeStruct(conv_state.shape, conv_state.dtype),
            jax.ShapeDtypeStruct(recurrent_state.shape, recurrent_state.dtype),
        ],
        # Counted over all operands: three of scalars, three moving, four constants, then the states.
        input_output_aliases={10: 1, 11: 2},
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=params.vmem_limit_bytes),
        interpret=interpret,
    )(
        rows.lengths, rows.read_slots, rows.write_slots,
        x, a, b, *constants, conv_state, recurrent_state,
    )  # fmt: skip


def _body(
    lengths: Any,
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
    history_ring: Any,
    state_ring: Any,
    heads_ref: Any,
    decay_ref: Any,
    beta_ref: Any,
    rows_ref: Any,
    arrived: Any,
    left: Any,
    *,
    shape: Shape,
    tile: int,
    slots: int,
) -> None:
    step = pl.program_id(0)
    count = pl.num_programs(0) * tile
    ring = 2 * tile
    copies = StateCopies((conv_ref, state_ref), (history_ring, state_ring), arrived, left)

    def fetching(n: Any) -> Any:
        return (lengths[n] > 0) & (read_slots[n] >= 0)

    def slot_after(n: Any, t: Any) -> Any:
        """Where the state after token t goes; a window's last slots may lie beyond the pool."""
        return write_slots[n] + t

    def writing(n: Any, t: Any) -> Any:
        return (write_slots[n] >= 0) & (t < lengths[n]) & (slot_after(n, t) < slots)

    def finish(n: Any) -> None:
        """Wait until the last state of sequence n has left."""
        last = lengths[n] - 1

        @pl.when((last >= 0) & writing(n, last))
        def _() -> None:
            wait(copies.write_back(n % ring, slot_after(n, last)))

    @pl.when(step == 0)
    def _() -> None:
        for n in range(tile):

            @pl.when(fetching(n))
            def _(n: int = n) -> None:
                start(copies.fetch(n % ring, read_slots[n]))

    out_ref[...] = jnp.zeros(out_ref.shape, out_ref.dtype)

    def sequence(s: Any, carry: Any) -> Any:
        n = step * tile + s
        at = n % ring

        @pl.when(fetching(n))
        def _() -> None:
            wait(copies.fetch(at, read_slots[n]))

        @pl.when((lengths[n] > 0) & (read_slots[n] < 0))
        def _() -> None:
            history_ring[at] = jnp.zeros(history_ring.shape[1:], history_ring.dtype)
            state_ring[at] = jnp.zeros(state_ring.shape[1:], state_ring.dtype)

        def token(t: Any, carry: Any) -> Any:
            _convolve(x_ref, s, t, history_ring, at, weight_ref, bias_ref, heads_ref, shape)
            _gates(a_ref, b_ref, s, t, a_log_ref, dt_bias_ref, decay_ref, beta_ref)
            _step(heads_ref, decay_ref, beta_ref, state_ring, at, rows_ref, shape)
            out_ref[s, t] = rows_ref[...].astype(out_ref.dtype)

            @pl.when(writing(n, t))
            def _() -> None:
                start(copies.write_back(at, slot_after(n, t)))

            @pl.when((t < lengths[n] - 1) & writing(n, t))
            def _() -> None:
                wait(copies.write_back(at, slot_after(n, t)))

            return carry

        jax.lax.fori_loop(0, lengths[n], token, 0)
        following = n + tile

        @pl.when(following < count)
        def _() -> None:
            @pl.when(following >= ring)
            def _() -> None:
                finish(following - ring)

            @pl.when(fetching(following))
            def _() -> None:
                start(copies.fetch(following % ring, read_slots[following]))

        return carry

    jax.lax.fori_loop(0, tile, sequence, 0)

    @pl.when(step == pl.num_programs(0) - 1)
    def _() -> None:
        for back in range(ring, 0, -1):

            @pl.when(count >= back)
            def _(back: int = back) -> None:
                finish(count - back)


def _convolve(
    x_ref: Any,
    s: Any,
    t: Any,
    history_ring: Any,
    at: Any,
    weight_ref: Any,
    bias_ref: Any,
    heads_ref: Any,
    shape: Shape,
) -> None:
    """The token's channels after convolution and SiLU, a head per row; the history moves on by one."""
    history = history_ring[at].astype(jnp.float32)
    x = x_ref[s, pl.ds(t, 1), :]
    inputs = jnp.concatenate([history, x], axis=0)
    history_ring[at] = inputs[1:].astype(history_ring.dtype)
    y = jnp.sum(inputs * weight_ref[...], axis=0, keepdims=True) + bias_ref[...]
    y = rule.silu(y)
    width = shape.key_dim
    for row in range(shape.channels // width):
        heads_ref[row : row + 1, :] = y[:, row * width : (row + 1) * width]


def _gates(
    a_ref: Any,
    b_ref: Any,
    s: Any,
    t: Any,
    a_log_ref: Any,
    dt_bias_ref: Any,
    decay_ref: Any,
    beta_ref: Any,
) -> None:
    """Decay and beta of every value head, spread over a row each."""
    a, b = a_ref[s, pl.ds(t, 1), :], b_ref[s, pl.ds(t, 1), :]
    g, beta = rule.gates(a, b, a_log_ref[...], dt_bias_ref[...])
    heads = a.shape[1]
    diagonal = jax.lax.broadcasted_iota(jnp.int32, (heads, heads), 0) == (
        jax.lax.broadcasted_iota(jnp.int32, (heads, heads), 1)
    )
    for value, ref in ((jnp.exp(g), decay_ref), (beta, beta_ref)):
        column = jnp.sum(jnp.where(diagonal, value, 0.0), axis=1, keepdims=True)
        ref[...] = jnp.broadcast_to(column, ref.shape)


def _step(
    heads_ref: Any,
    decay_ref: Any,
    beta_ref: Any,
    state_ring: Any,
    at: Any,
    rows_ref: Any,
    shape: Shape,
) -> None:
    """The delta rule for every head of one token."""
    key_heads, width = shape.key_heads, shape.key_dim
    q = rule.normalize(heads_ref[:key_heads, :]) * shape.scale
    k = rule.normalize(heads_ref[key_heads : 2 * key_heads, :])
    qk = jnp.sum(q * k, axis=1, keepdims=True)
    q_columns, k_columns = q.T, k.T
    lane = jax.lax.broadcasted_iota(jnp.int32, (width, key_heads), 1)
    head_row = jax.lax.broadcasted_iota(jnp.int32, (key_heads, 1), 0)

    def key_head(h: Any, carry: Any) -> Any:
        # A column at a running index: pick it by its lane.
        q_column = jnp.sum(jnp.where(lane == h, q_columns, 0.0), axis=1, keepdims=True)
        k_column = jnp.sum(jnp.where(lane == h, k_columns, 0.0), axis=1, keepdims=True)
        own_qk = jnp.sum(jnp.where(head_row == h, qk, 0.0), axis=0, keepdims=True)
        for j in range(shape.group):
            head = h * shape.group + j
            v = heads_ref[pl.ds(2 * key_heads + head, 1), :]
            out, state = rule.token_step(
                q_column, k_column, v,
                decay_ref[pl.ds(head, 1), :], beta_ref[pl.ds(head, 1), :],
                own_qk, state_ring[at, head],
            )  # fmt: skip
            state_ring[at, head] = state
            rows_ref[pl.ds(head, 1), :] = out
        return carry

    jax.lax.fori_loop(0, key_heads, key_head, 0)
