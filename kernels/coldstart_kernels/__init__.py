"""Pallas TPU kernels, each beside the slow version that shows it right.

Independent of Coldstart: imports JAX and NumPy only, so that the folder can be taken away and used alone.
"""

from __future__ import annotations

from coldstart_kernels.gated_delta_net import gated_delta_net
from coldstart_kernels.grouped_matmul import grouped_matmul
from coldstart_kernels.mla import PagedCache, mla_attention
from coldstart_kernels.mla_indexer import IndexCache, index_candidates, keep_winners
from coldstart_kernels.moe_routing import (
    MoeSwitches,
    moe_combine,
    moe_dispatch,
    moe_permute,
    moe_route,
)
from coldstart_kernels.moe_streaming import moe_streaming
from coldstart_kernels.reduce_scatter import reduce_scatter

__all__ = [
    "IndexCache",
    "MoeSwitches",
    "PagedCache",
    "gated_delta_net",
    "grouped_matmul",
    "index_candidates",
    "keep_winners",
    "mla_attention",
    "moe_combine",
    "moe_dispatch",
    "moe_permute",
    "moe_route",
    "moe_streaming",
    "reduce_scatter",
]
