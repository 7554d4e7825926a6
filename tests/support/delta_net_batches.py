"""Ragged batches for the gated delta net, and the rule by NumPy loops in double precision.

A batch is made as an engine leaves it: every slot that a sequence may not read, every row of padding and
every entry beyond the live sequences is poisoned.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Sequences as (tokens in this step, tokens computed before); decode rows come first.

    Room for tokens and sequences is fixed, as in an engine's buckets: many batches, one program.
    """

    decode: tuple[tuple[int, int], ...] = ()
    mixed: tuple[tuple[int, int], ...] = ()
    tokens: int = 224
    sequences: int = 9
    key_heads: int = 1
    group: int = 2
    width: int = 128
    dtype: str = "float32"
    window: int = 1
    apart: bool = False
    """States are read from other slots than they are written to."""
    seed: int = 11

    @property
    def live(self) -> tuple[tuple[int, int], ...]:
        return self.decode + self.mixed

    @property
    def used(self) -> int:
        """Token rows before the padding."""
        return sum(length for length, _ in self.live)

    @property
    def value_heads(self) -> int:
        return self.key_heads * self.group

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.value_heads) * self.width

    def arguments(self) -> dict[str, np.ndarray | None]:
        """The op's arrays by name."""
        rng = np.random.default_rng(self.seed)
        tokens, heads = self.tokens, self.value_heads
        dtype = jnp.dtype(self.dtype)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        qkv, a, b = normal(tokens, self.channels), normal(tokens, heads), normal(tokens, heads)
        for array in (qkv, a, b):
            array[self.used :] = np.nan
        lengths = np.array([length for length, _ in self.live], np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        sequences = self._slots(rng)
        slots = sequences.pop("slots")
        conv_state = np.full((slots, 3, self.channels), np.nan, np.float32)
        recurrent = np.full((slots, heads, self.width, self.width), np.nan, np.float32)
        for index, (_, computed) in enumerate(self.live):
            if computed:
                slot = sequences["read_indices"][index] + sequences["read_offsets"][index]
                conv_state[slot] = normal(3, self.channels)
                recurrent[slot] = normal(heads, self.width, self.width)
        count = len(self.live)
        return {
            "qkv": qkv.astype(dtype),
            "a": a,
            "b": b,
            "conv_state": conv_state.astype(dtype),
            "recurrent_state": recurrent,
            "conv_weight": normal(self.channels, 4) / 2,
            "conv_bias": normal(self.channels) / 4,
            # Halves a state in one to some twenty tokens, as trained layers do.
            "a_log": rng.uniform(-3, 0.5, heads).astype(np.float32),
            "dt_bias": normal(heads),
            "query_start_loc": self._padded(starts, 1 << 20),
            "state_indices": sequences["state_indices"],
            "seq_lens": self._padded([length + before for length, before in self.live], 77),
            "distribution": np.array([len(self.decode), len(self.decode), count], np.int32),
            "read_indices": sequences["read_indices"],
            "read_offsets": sequences["read_offsets"],
        }

    def _slots(self, rng: np.random.Generator) -> dict:
        """Slots in no order, a window of them each; 0 is the null block."""
        count, room = len(self.live), 2 * self.sequences + 1
        starts = 1 + self.window * rng.permutation(room).astype(np.int32)
        writes, reads = starts[:count], starts[count : 2 * count] if self.apart else starts[:count]
        offsets = rng.integers(0, self.window, count) if self.apart else np.zeros(count)
        return {
            "state_indices": self._padded(writes, 1),
            "read_indices": self._padded(reads, 1),
            "read_offsets": self._padded(offsets, 3),
            "slots": 1 + self.window * room,
        }

    def _padded(self, values: object, filler: int) -> np.ndarray:
        """Entries of sequences that aren't there point at what a live one may own."""
        missing = self.sequences - len(self.live)
        return np.concatenate([np.asarray(values), [filler] * missing]).astype(np.int32)


CASES = {
    "decode and prompts": Ragged(
        ((1, 5), (1, 9), (1, 0)), ((70, 0), (3, 7), (65, 0), (1, 2)), apart=True
    ),
    "lengths": Ragged(mixed=((1, 0), (63, 0), (64, 0), (65, 0), (1, 64))),
    "only decode": Ragged(tuple((1, before) for before in (1, 2, 3, 700, 5, 0, 6, 2, 1))),
    "one decode row": Ragged(((1, 40),)),
    "one prompt, resumed": Ragged(mixed=((200, 13),)),
    "whole tiles": Ragged(mixed=((64, 0), (64, 64), (64, 0))),
    "shorter than the taps": Ragged(((1, 1),), ((2, 0), (1, 1), (2, 2), (1, 0), (3, 1), (2, 60))),
    "empty ones in between": Ragged(((1, 5), (0, 9), (1, 2)), ((10, 0), (0, 5), (60, 3))),
    "nothing": Ragged(),
}
"""All of one program."""

SPECULATIVE = {
    "checkpoints": Ragged(
        ((3, 5), (1, 9), (2, 0), (3, 1), (2, 8)), ((20, 0), (3, 7)),
        tokens=48, window=3, apart=True,
    ),
    "in place": Ragged(((2, 4), (3, 2)), ((4, 0), (30, 1), (1, 1)), tokens=48, window=3),
}  # fmt: skip
"""Decode rows of up to three tokens; all of one program."""


def by_loops(
    batch: Ragged, arguments: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One sequence, one token, one head at a time, in double precision."""
    given = {name: np.asarray(array, np.float64) for name, array in arguments.items()}
    conv_state, recurrent = given["conv_state"].copy(), given["recurrent_state"].copy()
    heads, width = batch.value_heads, batch.width
    out = np.zeros((batch.tokens, heads * width))
    row = 0
    for index, (length, computed) in enumerate(batch.live):
        history = np.zeros((3, batch.channels))
        state = np.zeros((heads, width, width))
        if computed:
            slot = arguments["read_indices"][index] + arguments["read_offsets"][index]
            history, state = given["conv_state"][slot].copy(), given["recurrent_state"][slot].copy()
        for t in range(length):
            history, state, out[row] = _token(batch, given, history, state, row)
            row += 1
            decode = index < len(batch.decode)
            if decode or t == length - 1:
                slot = arguments["state_indices"][index] + (t if decode else 0)
                conv_state[slot], recurrent[slot] = history, state
    return out, conv_state, recurrent


def _token(
    batch: Ragged, given: dict[str, np.ndarray], history: np.ndarray, state: np.ndarray, row: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    inputs = np.vstack([history, given["qkv"][row]])
    y = given["conv_bias"] + sum(inputs[tap] * given["conv_weight"][:, tap] for tap in range(4))
    y = y / (1 + np.exp(-y))
    width, keys = batch.width, batch.key_heads * batch.width
    q, k, v = y[:keys], y[keys : 2 * keys], y[2 * keys :]
    new_state, out = np.empty_like(state), []
    for h in range(batch.value_heads):
        own = slice(h // batch.group * width, (h // batch.group + 1) * width)
        q_h = q[own] / np.sqrt(q[own] @ q[own] + 1e-6) / np.sqrt(width)
        k_h = k[own] / np.sqrt(k[own] @ k[own] + 1e-6)
        g = -np.exp(given["a_log"][h]) * np.logaddexp(0, given["a"][row, h] + given["dt_bias"][h])
        beta = 1 / (1 + np.exp(-given["b"][row, h]))
        decayed = np.exp(g) * state[h]
        u = beta * (v[h * width : (h + 1) * width] - decayed.T @ k_h)
        new_state[h] = decayed + np.outer(k_h, u)
        out.append(new_state[h].T @ q_h)
    return inputs[1:], new_state, np.concatenate(out)
