"""Who uses a value, and why none of them reads it, in words; the rules' reasons are made here."""

from __future__ import annotations

import numpy as np

from coldstart.identity.descriptor import GraphDescriptor
from coldstart.identity.liveness import Kind, Liveness

_SHOWN = 3  # uses named in a reason


def uses_of(d: GraphDescriptor, value: int) -> list[tuple[int, int]]:
    """(node, operand number) of every use of a value."""
    order, start = d.uses
    slots = order[start[value] : start[value + 1]]
    users = np.searchsorted(d.operand_start, slots, side="right") - 1
    return [
        (user, slot - int(d.operand_start[user]))
        for slot, user in zip(slots.tolist(), users.tolist(), strict=True)
    ]


def who_ignores(d: GraphDescriptor, live: Liveness, value: int) -> str:
    """One line: the users of a dead value and why each doesn't read it."""
    uses = uses_of(d, value)
    if not uses:
        return "nobody uses it"
    words = [why_ignored(d, live, node, operand) for node, operand in uses[:_SHOWN]]
    if len(uses) > _SHOWN:
        words.append(f"and {len(uses) - _SHOWN} more")
    return "; ".join(words)


def why_ignored(d: GraphDescriptor, live: Liveness, node: int, operand: int) -> str:
    name, kind = d.op(node), live.kinds[node]
    if kind is Kind.KERNEL:
        row = int(np.searchsorted(d.read_operand, d.operand_start[node] + operand))
        return f"{name} never reads operand {operand} ({d.strings[d.read_reason[row]]})"
    if kind is Kind.WHILE:
        return f"a loop carries it as value {operand} only for itself"
    if kind is Kind.CALL:
        callee = int(d.call_function[np.searchsorted(d.call_node, node)])
        return f"@{d.strings[d.function_name[callee]]} doesn't need argument {operand}"
    if kind is Kind.TERMINATOR:
        return f"nobody uses result {operand} of the region it is returned from"
    return f"the result of {name} is used by nothing that matters"
