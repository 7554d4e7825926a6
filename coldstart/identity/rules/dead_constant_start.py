"""Rule: a dead constant that only says where dead dynamic slices begin goes to zero.

`dynamic_slice_in_dim(q, rank * 8, 8)` is a constant and a `dynamic_slice`: the offset of the fragment stands in the
constant. Only integer scalars whose every use is a start of a `dynamic_slice` are touched; a constant that also
bounds a loop, feeds arithmetic or starts a live slice stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from coldstart.identity.descriptor import GraphDescriptor
from coldstart.identity.liveness import Liveness
from coldstart.identity.rewrite import Rewrite, Rule
from coldstart.identity.rules.uses import uses_of, who_ignores

NAME = "dead-constant-start"
VERSION = 2
REASON = "it only says where fragments begin whose contents no output and no effect depends on"
PROOF = (
    "The constant is dead in every live context of its function, and each of its uses is a start index of a "
    "dynamic_slice, whose result is dead then, too. dynamic_slice clamps its starts, so zero is legal; the type stays. "
    "Tests: poison, judge, and corpus pairs where the constant has a second use."
)
_SCALAR = re.compile(r"dense<(-?\d+)> : (tensor<(?:u?i(?:8|16|32|64))>)")


def find(d: GraphDescriptor, live: Liveness) -> Iterator[Rewrite]:
    """Dead integer scalars other than zero, all of whose uses are starts of dynamic slices."""
    if "stablehlo.dynamic_slice" not in d.strings or "stablehlo.constant" not in d.strings:
        return
    dynamic_slice = d.strings.index("stablehlo.dynamic_slice")
    constant = d.strings.index("stablehlo.constant")
    # Only constants that start some dynamic slice: most constants of a program don't.
    slices = np.flatnonzero(d.node_op == dynamic_slice)
    starts = {
        v for node in slices.tolist() for v in d.operands_of(node)[1:] if not live.value_live[v]
    }
    definers = sorted({int(d.structure.value_node[v]) for v in starts})
    candidates = [n for n in definers if n >= 0 and d.node_op[n] == constant]
    for node in candidates:
        value = d.results_of(node).start
        match = _SCALAR.fullmatch(d.attributes_of(node).get("value", ""))
        if match is None or int(match[1]) == 0 or not live.idle(d, node):
            continue
        uses = uses_of(d, value)
        if all(
            d.node_op[user] == dynamic_slice and operand >= 1 and live.idle(d, user)
            for user, operand in uses
        ):
            function, ordinal = d.position(node)
            fragment = d.results_of(uses[0][0]).start
            reason = f"starts a fragment; {who_ignores(d, live, fragment)}"
            yield Rewrite(NAME, function, ordinal, "value", f"dense<0> : {match[2]}", reason)


RULE = Rule(NAME, VERSION, REASON, PROOF, changes_module=True, find=find)
