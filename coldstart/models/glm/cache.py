"""One layer's part of the KV pool on a device: how rows are laid out, written and gathered.

In FP8 a token leaves 640 bytes per layer at full size (512 latent, 64 rope, padding) and in layers with an indexer 256
(a key of 128, one byte of scale, padding):

    latent  [rows, latent / lanes, lanes] FP8       four lines of 128 bytes are one tile: a row is written in place
    rope    [rows / 4, lanes] uint32                a word holds one byte each of four neighbouring rows, which is how
    index   [rows / 4 * 2, lanes] uint32            a TPU packs bytes anyway: key, then scale

As plain [rows, bytes] arrays they would be the same bytes, but the compiler then copies the whole pool for a write.
In fp32 there are two plain arrays, `latent` [rows, row] and `index` [rows, index width].
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coldstart.models.glm.config import GlmConfig
from coldstart.models.glm.fp8 import FP8, LARGEST

PACK = 4
"""Rows that share a word."""

_SCALE_BIAS = 128


def pool_specs(
    config: GlmConfig, rows: int, *, indexed: bool, copies: int = 1
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of one layer's arrays, or of so many layers' one after the other."""
    c, rows = config, rows * copies
    if not c.quantised:
        found = {"latent": jax.ShapeDtypeStruct((rows, c.row), np.float32)}
        if indexed:
            found["index"] = jax.ShapeDtypeStruct((rows, c.index_width), np.float32)
        return found
    lines = (c.latent // c.lanes, (c.row - c.latent) // c.lanes, c.index_row // c.lanes)
    found = {
        "latent": jax.ShapeDtypeStruct((rows, lines[0], c.lanes), FP8),
        "rope": jax.ShapeDtypeStruct((rows // PACK * lines[1], c.lanes), np.uint32),
    }
    if indexed:
        found["index"] = jax.ShapeDtypeStruct((rows // PACK * lines[2], c.lanes), np.uint32)
    return found


@dataclasses.dataclass(frozen=True)
class Pool:
    """One layer's arrays, maybe as a part of longer ones that hold several layers."""

    config: GlmConfig
    arrays: dict[str, jax.Array]
    first: jax.Array | int = 0
    """Where this layer's rows begin."""

    def with_rows(self, targets: jax.Array, rows: jax.Array) -> Pool:
        """The pool with rows [tokens, width] at targets [tokens] int32; those with target -1 are dropped."""
        c = self.config
        rows = _widened(rows, c.row)
        if not c.quantised:
            return self._with(latent=self._placed("latent", targets, rows))
        latent = rows[:, : c.latent].reshape(-1, c.latent // c.lanes, c.lanes).astype(FP8)
        return self._with(
            latent=self._placed("latent", targets, latent),
            rope=self._packed("rope", targets, _as_bytes(rows[:, c.latent :])),
        )

    def rows(self, chosen: jax.Array) -> jax.Array:
        """Rows [..., width] in the type of activations; where `chosen` is -1 they are any rows."""
        c = self.config
        if not c.quantised:
            return self.arrays["latent"][self._at(chosen)][..., : c.width]
        latent = self.arrays["latent"][self._at(chosen)].astype(c.activations)
        rope = _from_bytes(self._unpacked("rope", chosen, 0, self._lines("rope")), c.activations)
        return jnp.concatenate(
            [latent.reshape(*chosen.shape, c.latent), rope[..., : c.rope]], axis=-1
        )

    def with_index_keys(self, targets: jax.Array, keys: jax.Array) -> Pool:
        """The pool with the indexer's keys [tokens, index width] at targets; FP8 with a power-of-two scale each."""
        c = self.config
        if not c.quantised:
            return self._with(index=self._placed("index", targets, keys))
        wide = keys.astype(jnp.float32)
        largest = jnp.max(jnp.abs(wide), axis=-1, keepdims=True)
        exponent = jnp.ceil(jnp.log2(jnp.maximum(largest / LARGEST, 2.0**-100)))
        values = _widened(_as_bytes(wide * jnp.exp2(-exponent)), self._key_lines * c.lanes)
        scale = (exponent + _SCALE_BIAS).astype(jnp.uint8)
        packed = _widened(jnp.concatenate([values, scale], axis=-1), c.index_row)
        return self._with(index=self._packed("index", targets, packed))

    def index_keys(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys [..., index width], and their scales [...] fp32. Any type of activations holds every FP8 value."""
        c = self.config
        if not c.quantised:
            return self.arrays["index"][self._at(rows)], jnp.ones(rows.shape, jnp.float32)
        keys = _from_bytes(self._unpacked("index", rows, 0, self._key_lines), c.activations)
        scale = self._unpacked("index", rows, self._key_lines, 1)[..., 0]
        return keys[..., : c.index_width], jnp.exp2(scale.astype(jnp.float32) - _SCALE_BIAS)

    @property
    def _key_lines(self) -> int:
        return -(-self.config.index_width // self.config.lanes)

    def _with(self, **arrays: jax.Array) -> Pool:
        return dataclasses.replace(self, arrays=self.arrays | arrays)

    def _at(self, rows: jax.Array) -> jax.Array:
        return self.first + jnp.maximum(rows, 0)

    def _placed(self, name: str, targets: jax.Array, new: jax.Array) -> jax.Array:
        """What isn't ours is directed out of range, where the write is dropped."""
        array = self.arrays[name]
        at = jnp.where(targets >= 0, self.first + targets, array.shape[0])
        return array.at[at].set(new, mode="drop")

    def _lines(self, name: str) -> int:
        """Lines of one row."""
        c = self.config
        return (c.index_row if name == "index" else c.row - c.latent) // c.lanes

    def _packed(self, name: str, targets: jax.Array, new: jax.Array) -> jax.Array:
        """New bytes [tokens, lines * lanes] among those of the neighbours.

        Differences are added: tokens that share a word in one step then don't overwrite each other.
        """
        array, lines = self.arrays[name], self._lines(name)
        words, shift = self._words(name, targets, 0, lines)
        fresh = new.reshape(-1, lines, self.config.lanes).astype(jnp.uint32) << shift
        old = ((array[words] >> shift) & 0xFF) << shift
        at = jnp.where(targets[:, None] >= 0, words, array.shape[0])
        return array.at[at].add(fresh - old, mode="drop")

    def _unpacked(self, name: str, rows: jax.Array, line: int, count: int) -> jax.Array:
        """Bytes [..., count * lanes] of rows, from a line on."""
        words, shift = self._words(name, rows, line, count)
        found = ((self.arrays[name][words] >> shift) & 0xFF).astype(jnp.uint8)
        return found.reshape(*rows.shape, count * self.config.lanes)

    def _words(
        self, name: str, rows: jax.Array, line: int, count: int
    ) -> tuple[jax.Array, jax.Array]:
        """Where the words of rows are [..., count], and by how much they are shifted [..., 1, 1]."""
        at = self._at(rows)
        words = at[..., None] // PACK * self._lines(name) + line
        shift = (at % PACK * 8).astype(jnp.uint32)[..., None, None]
        return words + jnp.arange(count, dtype=jnp.int32), shift


def _widened(array: jax.Array, width: int) -> jax.Array:
    """Zeros behind the last dimension."""
    missing = width - array.shape[-1]
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)]) if missing else array


def _as_bytes(array: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(array.astype(FP8), jnp.uint8)


def _from_bytes(array: jax.Array, dtype: Any) -> jax.Array:
    return jax.lax.bitcast_convert_type(array, FP8).astype(dtype)
