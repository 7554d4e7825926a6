"""How columns are dealt to shards and which slots prefix caching uses: host-side arithmetic in NumPy."""

from __future__ import annotations

import numpy as np

from coldstart_kernels.gated_delta_net.shape import Shape


def shard_columns(shape: Shape, shards: int) -> np.ndarray:
    """The order of the channels in which equal pieces are [Q | K | V] of one shard each.

    Apply it to the columns of the projection, and to the channels of conv weight, bias and state; then split them
    evenly. Shard i has key heads i*n .. (i+1)*n-1 and the value heads that share them.

    Args:
        shape: heads of the whole layer.
        shards: how many pieces.

    Returns:
        int64 [channels], a permutation: `reordered = original[..., result]`.

    Raises:
        ValueError: the key heads don't divide evenly.
    """
    if shards <= 0 or shape.key_heads % shards:
        raise ValueError(f"{shape.key_heads} key heads don't divide over {shards} shards: {shape}")
    columns = np.arange(shape.channels)
    parts = np.split(columns, [shape.keys, 2 * shape.keys])
    return np.concatenate([part.reshape(shards, -1) for part in parts], axis=1).reshape(-1)


def aligned_slots(
    block_table: np.ndarray,  # [sequences, blocks] int, slot of each block
    query_lens: np.ndarray,  # [sequences] int
    seq_lens: np.ndarray,  # [sequences] int, with this step's tokens
    *,
    block_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Slots to read from and to write to where states are kept per block of tokens (prefix caching, "align").

    The state that a step starts from lies in the block of the last token computed before it; the one
    that it leaves goes to the block of its last token. A step should end at a block's end wherever the block is
    to be found again. What has no such block (nothing computed before, nothing at all) gets slot 0.

    Returns:
        int32 [sequences] each: `read_indices` and `state_indices` of the op.

    Raises:
        ValueError: a sequence is longer than its row of the table.
    """
    computed = seq_lens - query_lens
    longest = int(seq_lens.max(initial=0))
    if longest > block_table.shape[1] * block_size:
        raise ValueError(
            f"a sequence of {longest} tokens doesn't fit block_table {block_table.shape} "
            f"of blocks of {block_size}"
        )

    def slot_of_last(tokens: np.ndarray) -> np.ndarray:
        block = np.maximum(tokens - 1, 0) // block_size
        slots = np.take_along_axis(block_table, block[:, None], axis=1)[:, 0]
        return np.where(tokens > 0, slots, 0).astype(np.int32)

    return slot_of_last(computed), slot_of_last(seq_lens)
