"""Gated delta net: convolution, gates, delta rule and both states in one op."""

from __future__ import annotations

from coldstart_kernels.gated_delta_net.layout import aligned_slots, shard_columns
from coldstart_kernels.gated_delta_net.op import gated_delta_net
from coldstart_kernels.gated_delta_net.shape import Shape
from coldstart_kernels.gated_delta_net.tuning import TuningKey, TuningParams

__all__ = [
    "Shape",
    "TuningKey",
    "TuningParams",
    "aligned_slots",
    "gated_delta_net",
    "shard_columns",
]
