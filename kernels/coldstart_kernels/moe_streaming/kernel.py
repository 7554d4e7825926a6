"""Few tokens past a ring of expert weights, for TPU: one launch, no grid, copies started by hand.

Every chosen expert is fetched once and multiplied with all tokens; a token that didn't choose it is masked. In VMEM,
bytes per token unless said otherwise:

    x                  2 hidden                        out           2 hidden
    x in FP8           1 hidden                        accumulator   4 hidden, fp32
    middle             1 intermediate in FP8, and 2 for the bf16 block it is rounded from
    activation scales  256 (hidden + intermediate) / 512: bf16, spread over 128 lanes
    coefficients       4 experts, padded to 128
    ring               slots x (3 hidden intermediate + 4 (2 intermediate + hidden)) bytes in all

`tuning.vmem_needed` is that sum; one step's fp32 products [tokens, 512] come on top. With 3 slots:

    copy     e0 e1 | e2    | e3    | e4    |
    multiply       | e0    | e1    | e2    | ...
    slot     0  1  | 2   0 | 0   1 | 1   2 |     a copy goes to the slot whose expert was multiplied last

The list of chosen experts is built in SMEM, so that no rank's share is a constant of the program.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels import device
from coldstart_kernels.grouped_matmul.quantize import FP8, block_scale, to_fp8
from coldstart_kernels.moe_streaming.admission import BLOCK
from coldstart_kernels.moe_streaming.tuning import TuningParams

_MATMUL = (((1,), (0,)), ((), ()))


def stream(
    x: jax.Array,  # [tokens, hidden] bf16
    given: jax.Array,  # [tokens, experts] fp32
    chosen: jax.Array,  # [experts] bool
    w1: jax.Array,  # [experts, hidden, 2 * intermediate] FP8
    w2: jax.Array,  # [experts, intermediate, hidden] FP8
    s1: jax.Array,  # [experts, 1, 1, 2 * intermediate] fp32
    s2: jax.Array,  # [experts, 1, 1, hidden] fp32
    *,
    params: TuningParams,
    vmem_limit_bytes: int,
    interpret: Any,
) -> jax.Array:
    """All tokens past every chosen expert in turn [tokens, hidden] bf16."""
    tokens, hidden = x.shape
    experts, intermediate, _ = w2.shape
    slots = params.slots
    given = jnp.pad(given, ((0, 0), (0, -experts % device.LANES)))
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    in_memory = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        _body,
        name="moe_streaming",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            in_specs=[whole, whole, *[in_memory] * 4],
            out_specs=whole,
            scratch_shapes=[
                pltpu.VMEM((slots, *w1.shape[1:]), w1.dtype),
                pltpu.VMEM((slots, *w2.shape[1:]), w2.dtype),
                pltpu.VMEM((slots, *s1.shape[1:]), s1.dtype),
                pltpu.VMEM((slots, *s2.shape[1:]), s2.dtype),
                pltpu.SemaphoreType.DMA((4, slots)),
                pltpu.SMEM((experts,), jnp.int32),
                pltpu.VMEM((tokens, hidden), FP8),
                pltpu.VMEM((hidden // BLOCK, tokens, device.LANES), jnp.bfloat16),
                pltpu.VMEM((tokens, intermediate), FP8),
                pltpu.VMEM((intermediate // BLOCK, tokens, device.LANES), jnp.bfloat16),
                pltpu.VMEM((tokens, hidden), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((tokens, hidden), x.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=vmem_limit_bytes),
        interpret=interpret,
    )(chosen.astype(jnp.int32), x, given, w1, w2, s1, s2)


def _body(
    chosen_ref: Any,
    x_ref: Any,
    given_ref: Any,
    w1_ref: Any,
    w2_ref: Any,
    s1_ref: Any,
    s2_ref: Any,
    out_ref: Any,
    w1_ring: Any,
    w2_ring: Any,
    s1_ring: Any,
    s2_ring: Any,
    semaphores: Any,
    active_ref: Any,
    x_fp8_ref: Any,
    x_scales_ref: Any,
    middle_ref: Any,
    middle_scales_ref: Any,
    accumulator_ref: Any,
) -> None:
    slots = w1_ring.shape[0]
    active = _list_active(chosen_ref, active_ref)
    pairs = ((w1_ref, w1_ring), (w2_ref, w2_ring), (s1_ref, s1_ring), (s2_ref, s2_ring))

    def copies(turn: Any) -> list[Any]:
        slot = jax.lax.rem(turn, slots)
        return [
            pltpu.make_async_copy(
                source.at[active_ref[turn]], ring.at[slot], semaphores.at[part, slot]
            )
            for part, (source, ring) in enumerate(pairs)
        ]

    def fetch(turn: Any) -> None:
        @pl.when(turn < active)
        def _start() -> None:
            for copy in copies(turn):
                copy.start()

    for turn in range(slots - 1):
        fetch(jnp.int32(turn))
    accumulator_ref[...] = jnp.zeros(accumulator_ref.shape, jnp.float32)
    for block in range(x_ref.shape[1] // BLOCK):
        columns = slice(block * BLOCK, (block + 1) * BLOCK)
        _quantise(x_ref[:, columns], block, columns, x_fp8_ref, x_scales_ref)

    def visit(turn: Any, _: None) -> None:
        fetch(turn + slots - 1)
        for copy in copies(turn):
            copy.wait()
        slot = jax.lax.rem(turn, slots)
        _into_middle(
            x_fp8_ref, x_scales_ref, w1_ring.at[slot], s1_ring.at[slot],
            middle_ref, middle_scales_ref,
        )  # fmt: skip
        _into_accumulator(
            middle_ref, middle_scales_ref, w2_ring.at[slot], s2_ring.at[slot],
            _column(given_ref, active_ref[turn]), accumulator_ref,
        )  # fmt: skip

    jax.lax.fori_loop(0, active, visit, None)
    out_ref[...] = accumulator_ref[...].astype(out_ref.dtype)


def _list_active(chosen_ref: Any, active_ref: Any) -> Any:
    """Write the chosen experts in ascending order; how many there are."""

    def look(expert: Any, found: Any) -> Any:
        is_chosen = chosen_ref[expert] > 0

        @pl.when(is_chosen)
        def _add() -> None:
            active_ref[found] = expert

        return found + is_chosen.astype(jnp.int32)

    return jax.lax.fori_loop(0, chosen_ref.shape[0], look, jnp.int32(0))


def _column(given_ref: Any, expert: Any) -> jax.Array:
    """Coefficients of one expert [tokens, 1]. Lanes can't be addressed: take its 128, mask the others."""
    lanes = device.LANES
    # `//` rounds down, which asks for a sign that Pallas can't lower for a device that isn't there.
    first = pl.multiple_of(jax.lax.div(expert, lanes) * lanes, lanes)
    group = given_ref[:, pl.ds(first, lanes)]
    lane = jax.lax.broadcasted_iota(jnp.int32, group.shape, 1)
    return jnp.sum(jnp.where(lane == expert - first, group, 0.0), axis=1, keepdims=True)


def _quantise(x: jax.Array, block: Any, columns: Any, fp8_ref: Any, scales_ref: Any) -> None:
    largest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=1, keepdims=True)
    scale, reciprocal = block_scale(largest, jnp.bfloat16)
    fp8_ref[:, columns] = to_fp8(x, reciprocal)
    scales_ref[block] = jnp.broadcast_to(scale, scales_ref.shape[1:])


def _into_middle(
    x_ref: Any, x_scales_ref: Any, w1_ref: Any, s1_ref: Any, middle_ref: Any, scales_ref: Any
) -> None:
    """First matmul and SiLU(gate) * up, one block of 512 at a time, quantised where it stands."""
    intermediate = middle_ref.shape[1]

    def one(block: Any, _: None) -> None:
        first = pl.multiple_of(block * BLOCK, BLOCK)
        gate = _multiply(x_ref, x_scales_ref, w1_ref, s1_ref, pl.ds(first, BLOCK))
        up = _multiply(x_ref, x_scales_ref, w1_ref, s1_ref, pl.ds(intermediate + first, BLOCK))
        middle = (jax.nn.silu(gate) * up).astype(jnp.bfloat16)
        _quantise(middle, block, pl.ds(first, BLOCK), middle_ref, scales_ref)

    jax.lax.fori_loop(0, intermediate // BLOCK, one, None)


def _into_accumulator(
    middle_ref: Any, scales_ref: Any, w2_ref: Any, s2_ref: Any, given: jax.Array, total_ref: Any
) -> None:
    """Second matmul, weighted, added where the token chose this expert."""

    def one(block: Any, _: None) -> None:
        columns = pl.ds(pl.multiple_of(block * BLOCK, BLOCK), BLOCK)
        out = _multiply(middle_ref, scales_ref, w2_ref, s2_ref, columns)
        # Masked before it is added: what an expert makes of others' tokens may be Inf or NaN.
        total_ref[:, columns] += jnp.where(given != 0.0, given * out, 0.0)

    jax.lax.fori_loop(0, total_ref.shape[1] // BLOCK, one, None)


def _multiply(x_ref: Any, x_scales_ref: Any, w_ref: Any, s_ref: Any, columns: Any) -> jax.Array:
    """All rows times 512 columns of a weight, fp32; each block's product is rounded to bf16."""
    total = None
    for block in range(x_ref.shape[1] // BLOCK):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        part = jax.lax.dot_general(
            x_ref[:, rows], w_ref[rows, columns], _MATMUL, preferred_element_type=jnp.float32
        ).astype(jnp.bfloat16)
        part = part.astype(jnp.float32) * x_scales_ref[block, :, :1].astype(jnp.float32)
        total = part if total is None else total + part
    assert total is not None
    return total * s_ref[0, :, columns]
