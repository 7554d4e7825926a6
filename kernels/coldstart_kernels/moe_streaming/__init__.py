"""Routed experts of one device: few tokens past a ring of expert weights, many by groups."""

from __future__ import annotations

from coldstart_kernels.moe_streaming.admission import Request
from coldstart_kernels.moe_streaming.op import moe_streaming
from coldstart_kernels.moe_streaming.tuning import TuningKey, TuningParams, ring_slots

__all__ = ["Request", "TuningKey", "TuningParams", "moe_streaming", "ring_slots"]
