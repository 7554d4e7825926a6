"""Which experts a token goes to, with what weight, and the order in which experts see their rows."""

from __future__ import annotations

from coldstart_kernels.moe_routing.op import moe_route
from coldstart_kernels.moe_routing.permutation import (
    Permutation,
    moe_combine,
    moe_dispatch,
    moe_permute,
)
from coldstart_kernels.moe_routing.switches import MoeSwitches
from coldstart_kernels.moe_routing.tuning import TuningKey, TuningParams

__all__ = [
    "MoeSwitches",
    "Permutation",
    "TuningKey",
    "TuningParams",
    "moe_combine",
    "moe_dispatch",
    "moe_permute",
    "moe_route",
]
