"""The arrays that a gated delta net works on, validated by op.py."""

from __future__ import annotations

import dataclasses

import jax

from coldstart_kernels.gated_delta_net.shape import Shape


@dataclasses.dataclass(frozen=True)
class Operands:
    """Arrays of one call."""

    shape: Shape
    qkv: jax.Array
    """[tokens, channels]"""
    a: jax.Array
    """[tokens, value heads]"""
    b: jax.Array
    """[tokens, value heads]"""
    conv_state: jax.Array
    """[slots, 3, channels] in the type of qkv"""
    recurrent_state: jax.Array
    """[slots, value heads, key_dim, value_dim] fp32"""
    conv_weight: jax.Array
    """[channels, 4]; the last tap is the token's own"""
    conv_bias: jax.Array
    """[channels]"""
    a_log: jax.Array
    """[value heads]"""
    dt_bias: jax.Array
    """[value heads]"""

    def with_states(self, conv_state: jax.Array, recurrent_state: jax.Array) -> Operands:
        return dataclasses.replace(self, conv_state=conv_state, recurrent_state=recurrent_state)
