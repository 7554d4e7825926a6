"""Rule: the offset of a fragment that nobody reads goes to zero.

A participant cuts its own piece of a tensor, `q[rank * 8 : rank * 8 + 8]`, and hands it to an op whose chosen branch
reads only the whole `q`. The slice stays (as an operand it keeps its type and its memory), its offset goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from coldstart.identity.descriptor import GraphDescriptor
from coldstart.identity.liveness import Liveness
from coldstart.identity.rewrite import FRAGMENT_OFFSET, Rewrite, Rule
from coldstart.identity.rules.uses import who_ignores

NAME = "unread-fragment-offset"
VERSION = 2
REASON = "no output and no effect depends on the contents of this fragment, so where it was cut can't matter"
PROOF = (
    "The slice's result is dead in every live context of its function (liveness.py). start -> 0 and "
    "limit -> limit - start keep strides, sizes and result type and stay inside of the operand; no op, operand or "
    "argument changes, so memory and schedule don't. An input's fragment goes to the start of its buffer, where it "
    "fits as it did; it stays if it, or another view of that buffer, is aliased or donated. Tests: poison (the dead "
    "slice's result replaced by other data moves nothing), judge (XLA's optimized HLO equal), corpus (slices with one "
    "live use stay)."
)
# A slice that says anything else (frontend attributes steer the compiler) is left alone.
_KNOWN = frozenset({"start_indices", "limit_indices", "strides", "sdy.sharding", "mhlo.sharding"})
_ARRAY = re.compile(r"array<i64(?:: (-?\d+(?:, -?\d+)*))?>")


def find(d: GraphDescriptor, live: Liveness) -> Iterator[Rewrite]:
    """Dead `stablehlo.slice` ops with a start other than zero, and dead input fragments with an offset."""
    if "stablehlo.slice" in d.strings:
        op = d.strings.index("stablehlo.slice")
        for node in np.flatnonzero(d.node_op == op).tolist():
            if live.idle(d, node):
                yield from _slice(d, live, node)
    entry_node = int(d.function_node[d.entry])
    first = int(d.region_first_argument[d.structure.first_region[entry_node]])
    # A buffer in which anything is written in place: how its views lie to each other stays as it is.
    written = {
        fragment.buffer
        for fragment in d.fragments
        if d.input_alias_output[fragment.input] >= 0 or d.input_donated[fragment.input]
    }
    for fragment in d.fragments:
        value = first + fragment.input
        kept = (
            fragment.buffer in written
            or min(fragment.strides, default=0) < 0  # from offset 0 it would reach below the buffer
        )
        if fragment.offset != 0 and not kept and live.dead(range(value, value + 1)):
            yield Rewrite(
                NAME,
                d.strings[d.function_name[d.entry]],
                fragment.input,
                FRAGMENT_OFFSET,
                "0",
                f"input {fragment.input}: {who_ignores(d, live, value)}",
            )


def _slice(d: GraphDescriptor, live: Liveness, node: int) -> Iterator[Rewrite]:
    attributes = d.attributes_of(node)
    if not attributes.keys() <= _KNOWN:
        return
    starts = _integers(attributes.get("start_indices", ""))
    limits = _integers(attributes.get("limit_indices", ""))
    if starts is None or limits is None or len(starts) != len(limits) or not any(starts):
        return
    function, ordinal = d.position(node)
    reason = who_ignores(d, live, d.results_of(node).start)
    cut = [limit - start for start, limit in zip(starts, limits, strict=True)]
    for attribute, numbers in (("start_indices", [0] * len(starts)), ("limit_indices", cut)):
        text = f"array<i64: {', '.join(map(str, numbers))}>"
        yield Rewrite(NAME, function, ordinal, attribute, text, reason)


def _integers(text: str) -> list[int] | None:
    match = _ARRAY.fullmatch(text)
    if match is None:
        return None
    return [int(number) for number in match[1].split(", ")] if match[1] else []


RULE = Rule(NAME, VERSION, REASON, PROOF, changes_module=True, find=find)
