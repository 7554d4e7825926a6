"""Hierarchical reduce-scatter: inside the chip first, then over the hypercube of chips."""

from __future__ import annotations

from coldstart_kernels.reduce_scatter.op import reduce_scatter
from coldstart_kernels.reduce_scatter.topology import Hypercube, check_order
from coldstart_kernels.reduce_scatter.tuning import TuningKey, TuningParams

__all__ = ["Hypercube", "TuningKey", "TuningParams", "check_order", "reduce_scatter"]
