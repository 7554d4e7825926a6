"""Hierarchical reduce-scatter with remote DMA: inside the chip first, then over the hypercube of chips.

With C chips of two devices, hidden columns are cut into micro-batches, and those into D = log2 C slices. Per slice:

    phase 1   send the C chunks (owners' rows) of the partner core's parity to it, add the C that it sends
    phase 2   D steps of halving: at step s, slice d goes along dimension (d + s) mod D, sends the half that
              isn't its own there, adds the half that it gets: C/2, C/4, ... 1 chunks

so at any step the D slices use D different links. Phase 1 of micro-batch m + 1 is under way during phase 2 of m:

    m       add 1 | send, add: step 0 | step 1 | step 2 | write
    m + 1   copy in, send phase 1 ..........................| add 1 | ...

In VMEM, two sets (micro-batch m uses set m mod 2), rows = an owner's rows in whole tiles:

    keep      [D, C chunks of rows x slice columns]         chunks of the own parity; the sum grows here
    partner   [D, C chunks]                                 what phase 1 receives
    halves    [D, C/2 chunks] + [D, C/4] + ... + [D, 1]     what the steps receive

A buffer that somebody else writes is free only when its owner says so: from micro-batch 2 on, a sender waits for the
credit that the receiver sends when it has added. Sums are fp32, rounded to the operand's type after each addition.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from coldstart_kernels.reduce_scatter.topology import CORES, Hypercube
from coldstart_kernels.reduce_scatter.tuning import TuningParams

_ADD_ROWS = 64
"""Rows added at once: a bound on the code, not on the work."""


def run(
    partial: jax.Array,  # [devices * rows, hidden], rows in whole tiles
    *,
    axis: str,
    devices: int,
    params: TuningParams,
    collective_id: int,
    interpret: Any,
) -> jax.Array:
    """Rows [rows, hidden] of the sum over the axis; to be called inside shard_map."""
    cube = Hypercube(devices)
    rows, hidden = partial.shape[0] // devices, partial.shape[1]
    bits = (2,) * cube.dimensions
    width = hidden // params.micro_batches // cube.dimensions
    sets = (2, cube.dimensions)
    halves = [
        pltpu.VMEM((*sets, *bits[step + 1 :], rows, width), partial.dtype)
        for step in range(cube.dimensions)
    ]
    channels = (*sets, 1 + cube.dimensions)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        functools.partial(
            _body, axis=axis, cube=cube, micro_batches=params.micro_batches, width=width
        ),
        name="reduce_scatter",
        in_specs=[anywhere],
        out_specs=anywhere,
        out_shape=jax.ShapeDtypeStruct((rows, hidden), partial.dtype),
        scratch_shapes=[
            pltpu.VMEM((*sets, *bits, rows, width), partial.dtype),
            pltpu.VMEM((*sets, *bits, rows, width), partial.dtype),
            *halves,
            pltpu.SemaphoreType.DMA((*sets, 2)),
            pltpu.SemaphoreType.DMA(channels),
            pltpu.SemaphoreType.DMA(channels),
            pltpu.SemaphoreType.REGULAR(channels),
        ],
        compiler_params=pltpu.CompilerParams(
            collective_id=collective_id,
            vmem_limit_bytes=params.vmem_limit_bytes,
            has_side_effects=True,
        ),
        interpret=interpret,
    )(partial.reshape(*bits, CORES, rows, hidden))


class _Exchange:
    """The copies of one device. `m` is the micro-batch, `d` the slice of its columns."""

    def __init__(
        self, refs: tuple[Any, ...], axis: str, cube: Hypercube, width: int, micro_batches: int
    ):
        self.x, self.out, self.keep, self.partner, *halves = refs[: 4 + cube.dimensions]
        self.halves = halves
        self.local, self.sent, self.received, self.credit = refs[4 + cube.dimensions :]
        self.axis, self.cube, self.width, self.micro_batches = axis, cube, width, micro_batches
        self.me = jax.lax.axis_index(axis)
        self.core = self.me % CORES
        chip = self.me // CORES
        self.bits = [(chip >> e) & 1 for e in range(cube.dimensions)]

    def columns(self, m: Any, d: int) -> Any:
        first = (m * self.cube.dimensions + d) * self.width
        return pl.ds(pl.multiple_of(first, self.width), self.width)

    def neighbour(self, d: int, channel: int) -> Any:
        """Who is at the other end: channel 0 is phase 1, channel 1 + s is step s."""
        if channel == 0:
            return self.me ^ 1
        return self.me ^ (CORES << self.cube.dimension(d, channel - 1))

    def half(self, d: int, step: int, mine: bool) -> tuple[Any, ...]:
        """Index over the chips' bits of the chunks that slice d keeps (or sends) at a step."""
        index: list[Any] = [slice(None)] * self.cube.dimensions
        for done in range(step + 1):
            bit = self.cube.dimension(d, done)
            own = self.bits[bit] if mine or done < step else 1 - self.bits[bit]
            index[self.cube.dimensions - 1 - bit] = own  # the highest bit is the first axis
        return tuple(index)

    def whole(self) -> tuple[slice, ...]:
        return (slice(None),) * self.cube.dimensions

    def copy_in(self, m: Any, d: int) -> Any:
        source = self.x.at[(*self.whole(), self.core, slice(None), self.columns(m, d))]
        return pltpu.make_async_copy(source, self.keep.at[m % 2, d], self.local.at[m % 2, d, 0])

    def copy_out(self, m: Any, d: int) -> Any:
        own = self.half(d, self.cube.dimensions - 1, mine=True)
        source = self.keep.at[(m % 2, d, *own)]
        target = self.out.at[:, self.columns(m, d)]
        return pltpu.make_async_copy(source, target, self.local.at[m % 2, d, 1])

    def send(self, m: Any, d: int, channel: int) -> Any:
        if channel == 0:
            other = (*self.whole(), 1 - self.core, slice(None), self.columns(m, d))
            source, target = self.x.at[other], self.partner.at[m % 2, d]
        else:
            theirs = self.half(d, channel - 1, mine=False)
            source = self.keep.at[(m % 2, d, *theirs)]
            target = self.halves[channel - 1].at[m % 2, d]
        at = (m % 2, d, channel)
        return pltpu.make_async_remote_copy(
            source, target, self.sent.at[at], self.received.at[at],
            device_id={self.axis: self.neighbour(d, channel)},
        )  # fmt: skip

    def start_send(self, m: Any, d: int, channel: int) -> None:
        """Send when the receiver has done with what the buffer held two micro-batches ago."""

        @pl.when(m >= 2)
        def _() -> None:
            pl.semaphore_wait(self.credit.at[m % 2, d, channel], 1)

        self.send(m, d, channel).start()

    def grant(self, m: Any, d: int, channel: int) -> None:
        """Tell the sender that the buffer is free; the last two micro-batches have no successor."""

        @pl.when(m + 2 < self.micro_batches)
        def _() -> None:
            pl.semaphore_signal(
                self.credit.at[m % 2, d, channel], 1,
                device_id={self.axis: self.neighbour(d, channel)},
            )  # fmt: skip


def _body(*refs: Any, axis: str, cube: Hypercube, micro_batches: int, width: int) -> None:
    exchange = _Exchange(refs, axis, cube, width, micro_batches)
    parts, channels = range(cube.dimensions), range(1 + cube.dimensions)
    _meet(exchange)

    def begin(m: Any) -> None:
        for d in parts:
            exchange.copy_in(m, d).start()
            exchange.start_send(m, d, 0)

    def finish(m: Any) -> None:
        """Nothing of micro-batch m is read any more: its sends have left, its rows are written."""
        for d in parts:
            exchange.copy_out(m, d).wait()
            for channel in channels:
                exchange.send(m, d, channel).wait_send()

    def micro_batch(m: Any, carry: Any) -> Any:
        @pl.when(m >= 1)
        def _() -> None:
            finish(m - 1)

        @pl.when(m + 1 < micro_batches)
        def _() -> None:
            begin(m + 1)

        for d in parts:
            exchange.copy_in(m, d).wait()
            exchange.send(m, d, 0).wait_recv()
            _add(exchange.keep.at[m % 2, d], exchange.partner.at[m % 2, d])
            exchange.grant(m, d, 0)
        for step in parts:
            for d in parts:
                exchange.start_send(m, d, 1 + step)
            for d in parts:
                exchange.send(m, d, 1 + step).wait_recv()
                mine = exchange.half(d, step, mine=True)
                _add(exchange.keep.at[(m % 2, d, *mine)], exchange.halves[step].at[m % 2, d])
                exchange.grant(m, d, 1 + step)
        for d in parts:
            exchange.copy_out(m, d).start()
        return carry

    begin(0)
    jax.lax.fori_loop(0, micro_batches, micro_batch, 0)
    finish(micro_batches - 1)


def _meet(exchange: _Exchange) -> None:
    """Nobody writes into a neighbour's memory before the neighbour is in the kernel too."""
    barrier = pltpu.get_barrier_semaphore()
    others = [exchange.me ^ 1]
    others += [exchange.me ^ (CORES << e) for e in range(exchange.cube.dimensions)]
    for other in others:
        pl.semaphore_signal(
            barrier,
            1,
            device_id={exchange.axis: other},
        )
    pl.semaphore_wait(barrier, len(others))


def _add(total: Any, more: Any) -> None:
    """Add chunk by chunk, [2, ..., rows, width]."""
    *leading, rows, _ = more.shape
    block = next(size for size in range(min(rows, _ADD_ROWS), 0, -1) if rows % size == 0)
    for index in itertools.product(*map(range, leading)):

        def add(i: Any, carry: Any, index: tuple[int, ...] = index) -> Any:
            at = (*index, pl.ds(i * block, block), slice(None))
            summed = total[at].astype(jnp.float32) + more[at].astype(jnp.float32)
            total[at] = summed.astype(total.dtype)
            return carry

        jax.lax.fori_loop(0, rows // block, add, 0)
