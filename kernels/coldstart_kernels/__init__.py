"""Pallas TPU kernels, each beside the slow version that shows it right.

Independent of Coldstart: imports JAX and NumPy only, so that the folder can be taken away and used alone.
"""

from __future__ import annotations

from coldstart_kernels.mla import mla_attention
from coldstart_kernels.moe_routing import (
    MoeSwitches,
    moe_combine,
    moe_dispatch,
    moe_permute,
    moe_route,
)

__all__ = [
    "MoeSwitches",
    "mla_attention",
    "moe_combine",
    "moe_dispatch",
    "moe_permute",
    "moe_route",
]
