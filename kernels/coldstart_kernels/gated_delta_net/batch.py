"""What a ragged batch asks of the kernels: which rows, which slots, in which order.

`distribution` = (i, j, k): sequences 0..i-1 are decode rows, i..k-1 anything, from k on there is nothing (the
difference between i..j-1 and j..k-1 matters to other ops only). Everything here is small integer
work in plain JAX, the same for every layer of a step: XLA computes it once.

A slot that is 0 (the null block) or out of range is nobody's: `NO_SLOT`. From there nothing is read, a sequence starts
from zeros; to there nothing is written.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

NO_SLOT = -1

LIVE = 1
"""The item has rows of a sequence."""
OPENS = 2
"""Its first row is the sequence's first in this step."""
CLOSES = 4
"""Its last row is the sequence's last in this step."""
CLEARS = 8
"""It is the first item of its tile."""


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Per sequence, int32 [sequences]; those beyond the live ones are empty."""

    starts: jax.Array
    """First token row."""
    lengths: jax.Array
    """Tokens in this step; 0 for what isn't there."""
    read_slots: jax.Array
    """Where the state before the first token lies; NO_SLOT starts from zeros."""
    write_slots: jax.Array
    """Where the state goes after the last token (decode rows with a window: after the first)."""
    decode_count: jax.Array
    """int32 []: how many of the first sequences are decode rows."""


def sequences_of(
    query_start_loc: jax.Array,
    seq_lens: jax.Array,
    distribution: jax.Array,
    state_indices: jax.Array,
    read_indices: jax.Array,
    *,
    slots: int,
) -> Sequences:
    """Who is live, with slots checked and initial states decided."""
    order = jnp.arange(seq_lens.shape[0], dtype=jnp.int32)
    live = order < distribution[2]
    starts = jnp.where(live, query_start_loc[:-1], 0)
    lengths = jnp.where(live, query_start_loc[1:] - query_start_loc[:-1], 0)
    # A slot that was somebody else's holds old data: only tokens before this step make a state.
    resumed = seq_lens - lengths > 0
    return Sequences(
        starts=starts,
        lengths=lengths,
        read_slots=jnp.where(resumed, checked_slot(read_indices, slots), NO_SLOT),
        write_slots=jnp.where(live, checked_slot(state_indices, slots), NO_SLOT),
        decode_count=jnp.minimum(distribution[0], distribution[2]),
    )


def checked_slot(slot: jax.Array, slots: int) -> jax.Array:
    """The slot, or NO_SLOT where it is the null block or out of range."""
    return jnp.where((slot > 0) & (slot < slots), slot, NO_SLOT)


@dataclasses.dataclass(frozen=True)
class DecodeRows:
    """The decode rows of a batch as a rectangle: [rows], [rows, window]."""

    lengths: jax.Array
    """int32 [rows]; 0 where there is no decode row."""
    read_slots: jax.Array
    write_slots: jax.Array
    tokens: jax.Array
    """int32 [rows, window]: token rows, those that don't count point at token 0."""
    counts: jax.Array
    """bool [rows, window]"""


def decode_rows(sequences: Sequences, *, tokens: int, window: int, multiple: int) -> DecodeRows:
    """At most min(sequences, tokens) decode rows, rounded up to whole tiles."""
    capacity = min(sequences.lengths.shape[0], tokens)
    missing = -capacity % multiple
    here = jnp.arange(capacity, dtype=jnp.int32) < sequences.decode_count
    lengths = jnp.where(here, jnp.minimum(sequences.lengths[:capacity], window), 0)
    lengths = jnp.pad(lengths, (0, missing))
    starts = jnp.pad(sequences.starts[:capacity], (0, missing))
    step = jnp.arange(window, dtype=jnp.int32)
    counts = step < lengths[:, None]
    return DecodeRows(
        lengths=lengths,
        read_slots=_pad_slots(sequences.read_slots[:capacity], missing),
        write_slots=_pad_slots(sequences.write_slots[:capacity], missing),
        tokens=jnp.where(counts, starts[:, None] + step, 0),
        counts=counts,
    )


def _pad_slots(slots: jax.Array, missing: int) -> jax.Array:
    return jnp.pad(slots, (0, missing), constant_values=NO_SLOT)


@dataclasses.dataclass(frozen=True)
class ChunkItems:
    """The other sequences cut into work items: a piece of one sequence within one tile of token rows.

    Int32 [tiles + sequences + 1], in order of rows. Tiles are cut from the batch, not from each sequence, so that no
    copy starts at an odd row; a tile that holds several sequences is visited once for each.
    Every tile is visited at least once, and its first visit clears it.
    """

    tiles: jax.Array
    begins: jax.Array
    """First row within the tile."""
    ends: jax.Array
    """One past the last row."""
    sequences: jax.Array
    flags: jax.Array
    """Sum of LIVE, OPENS, CLOSES, CLEARS."""


@dataclasses.dataclass(frozen=True)
class ChunkOrder:
    """Int32 [sequences]: who follows whom, so that a state is fetched while the one before is in use."""

    lengths: jax.Array
    """0 for decode rows and for what isn't there."""
    buffers: jax.Array
    """0 or 1, alternating over the sequences that have items."""
    before: jax.Array
    """The previous sequence that has items, or NO_SLOT."""
    after: jax.Array
    """The next one, or NO_SLOT."""
    first: jax.Array
    """int32 [1]: the first one, or NO_SLOT."""


def chunk_items(sequences: Sequences, *, tokens: int, chunk: int) -> tuple[ChunkItems, ChunkOrder]:
    """Cut at every tile and at every start of a sequence; duplicates become empty items."""
    count = sequences.lengths.shape[0]
    order = jnp.arange(count, dtype=jnp.int32)
    lengths = jnp.where(order >= sequences.decode_count, sequences.lengths, 0)
    starts = jnp.where(lengths > 0, sequences.starts, tokens)
    ends = jnp.where(lengths > 0, sequences.starts + lengths, 0)

    tile_starts = jnp.arange(0, tokens, chunk, dtype=jnp.int32)
    live_end = jnp.max(ends, initial=0)[None]
    begins = jnp.sort(jnp.concatenate([tile_starts, starts, live_end]))
    stops = jnp.concatenate([begins[1:], jnp.full(1, tokens, jnp.int32)])
    tiles = jnp.minimum(begins // chunk, tokens // chunk - 1)
    # Starts of empty sequences were moved to the end, so they may be out of order: count instead of search.
    inside = (starts <= begins[:, None]) & (begins[:, None] < ends)
    owner = jnp.argmax(inside, axis=1).astype(jnp.int32)
    owned = jnp.any(inside, axis=1)
    # A sequence ends where the next cut is, or before it where decode rows or nothing follow.
    stops = jnp.minimum(stops, ends[owner])
    live = owned & (begins < stops)
    clears = jnp.concatenate([jnp.ones(1, bool), tiles[1:] != tiles[:-1]])
    flags = LIVE * live + OPENS * (live & (begins == starts[owner]))
    flags += CLOSES * (live & (stops == ends[owner])) + CLEARS * clears
    items = ChunkItems(
        tiles=tiles,
        begins=begins - tiles * chunk,
        ends=stops - tiles * chunk,
        sequences=owner,
        flags=flags.astype(jnp.int32),
    )
    return items, _order(lengths, order)


def _order(lengths: jax.Array, order: jax.Array) -> ChunkOrder:
    count = lengths.shape[0]
    used = lengths > 0
    latest = jax.lax.cummax(jnp.where(used, order, NO_SLOT))
    nearest = jax.lax.cummin(jnp.where(used, order, count), reverse=True)
    nothing = jnp.full(1, NO_SLOT, jnp.int32)
    after = jnp.concatenate([nearest[1:], jnp.full(1, count, jnp.int32)])
    return ChunkOrder(
        lengths=lengths,
        buffers=(jnp.cumsum(used) - 1).astype(jnp.int32) % 2,
        before=jnp.concatenate([nothing, latest[:-1]]),
        after=jnp.where(after == count, NO_SLOT, after),
        first=jnp.where(nearest[:1] == count, NO_SLOT, nearest[:1]),
    )
