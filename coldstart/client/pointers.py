"""Finds what may be a pointer in a module: such a program means something in its own process only (H7).

Custom calls come from a list of targets whose configuration is understood. Any other target is kept byte for byte and
scanned: an integer of 2^32 or more in its attributes, or in a constant handed to it, makes the program unshareable.
`CustomSPMDPartitioning` names a Python object by its address, always.
"""

from __future__ import annotations

import re
from typing import Any

from coldstart.client.jax_internals import ir
from coldstart.client.mosaic import names_of

# Their configuration holds sizes, costs, layouts or an index into the loader's own callbacks.
UNDERSTOOD = frozenset(
    {
        "tpu_custom_call",
        "xla_ffi_python_cpu_callback",
        "xla_ffi_partitioned_python_cpu_callback",
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "LayoutConstraint",
        "annotate_device_placement",
        "AllocateBuffer",
        "ApproxTopK",
        "PartialReduce",
        "TopK",
    }
)
# Bound to one process, whatever stands in their attributes.
POINTERS = frozenset({"CustomSPMDPartitioning", "InspectSharding"})

_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|\d+")
_LEAST = 1 << 32


def scan_pointers(module: Any) -> str | None:
    """The reason why a module can't be shared, or None."""
    found: list[str] = []

    def visit(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            reason = _custom_call(op)
            if reason is not None:
                found.append(reason)
                return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[0] if found else None


def _custom_call(op: Any) -> str | None:
    attributes = names_of(op)
    target = str(ir.StringAttr(attributes["call_target_name"]).value)
    if target in POINTERS:
        return f"custom call {target} refers to an object of this process"
    if target in UNDERSTOOD:
        return None
    for name, attribute in attributes.items():
        number = _large_number(str(attribute))
        if number is not None:
            return f"attribute {name} of custom call {target} holds {number}, maybe a pointer"
    for k, operand in enumerate(op.operands):
        owner = operand.owner
        if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
            continue
        number = _large_number(str(owner.attributes["value"]))
        if number is not None:
            return f"operand {k} of custom call {target} is {number}, maybe a pointer"
    return None


def _large_number(text: str) -> str | None:
    for found in _NUMBER.findall(text):
        if (int(found, 16) if found[:2] in ("0x", "0X") else int(found)) >= _LEAST:
            return str(found)
    return None
