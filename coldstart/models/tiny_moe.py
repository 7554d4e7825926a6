"""The tiny MLA+MoE decoder: a prefill step and a decode step under `shard_map`, and greedy generation.

`TinyMoe` binds a `Config` to devices, live or described. Both steps are jitted once, with every sharding and the
donation of the cache spelt out; a bucket is a shape they are called with. `generate` calls these two functions and
nothing else that JAX would compile: sampling and bookkeeping are NumPy, placement is `device_put` with a given
sharding. So the programs that `programs.py` lowers ahead of time are the ones that a generating process asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from coldstart.models.attention import decode_attention, prefill_attention
from coldstart.models.config import Config
from coldstart.models.layers import (
    AXIS,
    Params,
    ParamSpec,
    embed,
    init_params,
    is_spec,
    param_specs,
    rms_norm,
)
from coldstart.models.moe import dense_mlp, moe

PREFILL_TOKENS = (16, 32, 64, 128)
"""Prefill buckets: tokens of one padded prompt."""

DECODE_BATCHES = (1, 2, 4, 8)
"""Decode buckets: sequences of one step."""

_WHOLE = PartitionSpec()
_CACHE = PartitionSpec(None, AXIS, None)
_LOGITS = PartitionSpec(None, AXIS)

Cache = tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class Generation:
    """What `generate` made."""

    tokens: list[list[int]]
    """New tokens of each prompt."""
    logits: np.ndarray[Any, Any]
    """What each was chosen from: [steps, prompts, vocabulary] fp32."""


def bucket_for(size: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds this size.

    Raises:
        ValueError: none does.
    """
    fitting = [bucket for bucket in buckets if bucket >= size]
    if size < 1 or not fitting:
        raise ValueError(f"{size} fits none of the buckets {tuple(buckets)}")
    return min(fitting)


class TinyMoe:
    """The decoder on given devices, which may be described ones: then it can be lowered and not run."""

    def __init__(self, config: Config, devices: Sequence[jax.Device]) -> None:
        config.check(len(devices))
        self.config = config
        self.mesh = Mesh(np.array(devices), (AXIS,))
        # Plain interpretation lowers to HLO, which caches and shares like any other program.
        self._interpret = devices[0].platform != "tpu"
        self._param_split = jax.tree.map(lambda s: s.split, param_specs(config), is_leaf=is_spec)
        self.prefill = self._jit(self._prefill_local, small=3)
        self.decode = self._jit(self._decode_local, small=2)

    def _jit(self, local: Any, *, small: int) -> Any:
        """Map over the mesh and jit; `small` counts the whole arguments after parameters and cache."""
        cache = (_CACHE,) * self.config.layers
        taken = (self._param_split, cache, *[_WHOLE] * small)
        given = (_LOGITS, cache)
        mapped = jax.shard_map(
            local, mesh=self.mesh, in_specs=taken, out_specs=given, check_vma=False
        )
        # The name is what the compiled program is called in traces and key records.
        mapped.__name__ = local.__name__.strip("_").removesuffix("_local")
        return jax.jit(
            mapped,
            in_shardings=self._shardings(taken),
            out_shardings=self._shardings(given),
            donate_argnums=1,
        )

    def _shardings(self, splits: Any) -> Any:
        return jax.tree.map(
            lambda split: NamedSharding(self.mesh, split),
            splits,
            is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
        )

    # The two steps, as one device sees them.

    def _prefill_local(
        self,
        params: Params,
        cache: Cache,
        tokens: jax.Array,  # [bucket] int32, one prompt, padded
        length: jax.Array,  # int32
        slot: jax.Array,  # int32
    ) -> tuple[jax.Array, Cache]:
        x = embed(tokens, params["embedding"])
        written = []
        for layer, rows in zip(params["layers"], cache, strict=True):
            normed = rms_norm(x, layer["attention_norm"], self.config.norm_epsilon)
            attended, rows = prefill_attention(
                normed, rows, slot, layer, self.config, self._interpret
            )
            x = self._feed_forward(x + attended, layer)
            written.append(rows)
        last = jax.lax.dynamic_slice_in_dim(x, length - 1, 1)
        return self._logits(last, params), tuple(written)

    def _decode_local(
        self,
        params: Params,
        cache: Cache,
        tokens: jax.Array,  # [bucket] int32, one token each of the first slots
        positions: jax.Array,  # [bucket] int32
    ) -> tuple[jax.Array, Cache]:
        x = embed(tokens, params["embedding"])
        written = []
        for layer, rows in zip(params["layers"], cache, strict=True):
            normed = rms_norm(x, layer["attention_norm"], self.config.norm_epsilon)
            attended, rows = decode_attention(
                normed, rows, positions, layer, self.config, self._interpret
            )
            x = self._feed_forward(x + attended, layer)
            written.append(rows)
        return self._logits(x, params), tuple(written)

    def _feed_forward(self, x: jax.Array, layer: Params) -> jax.Array:
        normed = rms_norm(x, layer["mlp_norm"], self.config.norm_epsilon)
        return x + (
            moe(normed, layer, self.config) if "router" in layer else dense_mlp(normed, layer)
        )

    def _logits(self, x: jax.Array, params: Params) -> jax.Array:
        normed = rms_norm(x, params["norm"], self.config.norm_epsilon)
        return (normed @ params["head"]).astype(jnp.float32)

    # Arguments: abstract, and real.

    def _abstract(self, shape: tuple[int, ...], dtype: Any, split: PartitionSpec) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(self.mesh, split))

    def _abstract_state(self) -> tuple[Params, Cache]:
        def abstract(spec: ParamSpec) -> Any:
            return self._abstract(spec.shape, self.config.dtype, spec.split)

        c = self.config
        params = jax.tree.map(abstract, param_specs(c), is_leaf=is_spec)
        rows = self._abstract((c.slots, c.positions, c.cache_width), c.dtype, _CACHE)
        return params, (rows,) * c.layers

    def lower_prefill(self, tokens: int) -> jax.stages.Lowered:
        """The prefill program of one bucket, from shapes alone."""
        number = self._abstract((), np.int32, _WHOLE)
        prompt = self._abstract((tokens,), np.int32, _WHOLE)
        lowered: jax.stages.Lowered = self.prefill.lower(
            *self._abstract_state(), prompt, number, number
        )
        return lowered

    def lower_decode(self, batch: int) -> jax.stages.Lowered:
        """The decode program of one bucket, from shapes alone."""
        numbers = self._abstract((batch,), np.int32, _WHOLE)
        lowered: jax.stages.Lowered = self.decode.lower(*self._abstract_state(), numbers, numbers)
        return lowered

    def params(self, seed: int = 0) -> Params:
        """The parameters of a seed, on the devices."""
        placed: Params = jax.device_put(
            init_params(self.config, seed), self._shardings(self._param_split)
        )
        return placed

    def empty_cache(self) -> Cache:
        """A cache with nothing in it, on the devices."""
        c = self.config
        rows = np.zeros((c.slots, c.positions, c.cache_width), c.dtype)
        split = NamedSharding(self.mesh, _CACHE)
        # One array per layer, never the same one twice: each is donated.
        return tuple(jax.device_put(rows, split) for _ in range(c.layers))

    def put(self, values: Any) -> jax.Array:
        """Small integers, whole on every device."""
        return jax.device_put(np.asarray(values, np.int32), NamedSharding(self.mesh, _WHOLE))

    def generate(self, params: Params, prompts: Sequence[Sequence[int]], steps: int) -> Generation:
        """Greedily continue each prompt by `steps` tokens.

        Raises:
            ValueError: too many prompts, or one that doesn't fit.
        """
        c = self.config
        batch = bucket_for(len(prompts), [b for b in DECODE_BATCHES if b <= c.slots])
        longest = max(map(len, prompts))
        if longest + steps > c.positions:
            raise ValueError(f"{longest} + {steps} tokens exceed {c.positions} positions")
        cache = self.empty_cache()
        first = []
        for slot, prompt in enumerate(prompts):
            tokens = np.zeros(bucket_for(len(prompt), PREFILL_TOKENS), np.int32)
            tokens[: len(prompt)] = prompt
            row, cache = self.prefill(
                params, cache, self.put(tokens), self.put(len(prompt)), self.put(slot)
            )
            first.append(np.asarray(row)[0])
        logits = [np.stack(first)]
        # Slots without a prompt repeat position 0, which nobody looks at.
        last, positions = np.zeros(batch, np.int32), np.zeros(batch, np.int32)
        positions[: len(prompts)] = [len(prompt) for prompt in prompts]
        for _ in range(steps - 1):
            last[: len(prompts)] = logits[-1].argmax(axis=-1)
            rows, cache = self.decode(
                params, cache, self.put(last.copy()), self.put(positions.copy())
            )
            logits.append(np.asarray(rows)[: len(prompts)])
            positions[: len(prompts)] += 1
        stacked = np.stack(logits)
        return Generation(stacked.argmax(axis=-1).T.tolist(), stacked)
