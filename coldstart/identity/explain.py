"""Explain one program: what was stripped from it, by which rule and why, and what each opaque kernel reads.

Pure, from a descriptor. What it says is computed again by the very rules that decided, not remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from coldstart.errors import InvalidDescriptor
from coldstart.identity import rules
from coldstart.identity.canonical import canonicalize
from coldstart.identity.descriptor import GraphDescriptor, Read
from coldstart.identity.liveness import Kind, Liveness, analyse
from coldstart.identity.rewrite import FRAGMENT_OFFSET, Rewrite
from coldstart.identity.rules.uses import uses_of, why_ignored

MAX_STEPS = 10_000  # of a search for the reader of a value
_NAMES = (
    "kernel_name",
    "call_target_name",
)  # attributes that name an opaque kernel, the better first


@dataclass(frozen=True, slots=True)
class Use:
    """One user of a value, and why it does not read it."""

    op: int  # ordinal in the function
    name: str  # of the op
    kernel: str  # of an opaque kernel: what it is called
    operand: int
    why: str


@dataclass(frozen=True, slots=True)
class Edit:
    """One attribute that a rule changes."""

    rule: str
    function: str
    op: int
    name: str  # of the op; "input" for a fragment
    attribute: str
    before: str
    after: str
    reason: str
    uses: tuple[Use, ...]  # of the value that is dead


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an opaque kernel."""

    state: str  # read, unread, unknown (counts as read)
    why: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """An opaque kernel and its read set."""

    function: str
    op: int
    name: str
    kernel: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """A descriptor, analysed."""

    descriptor: GraphDescriptor
    live: Liveness
    rewrites: dict[tuple[str, int, str], Rewrite]  # by function, op, attribute
    edits: tuple[Edit, ...]
    kernels: tuple[Kernel, ...]


def program(descriptor: GraphDescriptor, rules_off: Iterable[str] = ()) -> Program:
    """Raises InvalidDescriptor as `canonicalize` does."""
    live = analyse(descriptor)
    rewrites = canonicalize(descriptor, rules_off).rewrites
    return Program(
        descriptor,
        live,
        {(r.function, r.op, r.attribute): r for r in rewrites},
        tuple(_edit(descriptor, live, rewrite) for rewrite in rewrites),
        tuple(_kernels(descriptor)),
    )


def off_by(in_force: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """From a record's list of rules in force: names of ours that were off, and ids that are not known here."""
    if not in_force:
        return frozenset(), ()
    if in_force == "none":
        return frozenset(rule.name for rule in rules.RULES), ()
    listed = set(in_force.split())
    ours = {rule.id for rule in rules.RULES}
    off = frozenset(rule.name for rule in rules.RULES if rule.id not in listed)
    return off, tuple(sorted(listed - ours))


def node_at(d: GraphDescriptor, function: str, op: int) -> int:
    """The node of a position. Raises InvalidDescriptor."""
    for index, node in enumerate(d.function_node.tolist()):
        if d.strings[d.function_name[index]] == function:
            if not node < node + 1 + op < d.structure.subtree_end[node]:
                break
            return int(node) + 1 + op
    raise InvalidDescriptor(f"there is no op {op} in @{function}")


def input_value(d: GraphDescriptor, index: int) -> int:
    """The value that an input of the program is."""
    region = d.structure.first_region[d.function_node[d.entry]]
    return int(d.region_first_argument[region]) + index


def kernel_name(d: GraphDescriptor, node: int) -> str:
    """What an opaque op is called; "" for ops that are not opaque."""
    attributes = d.attributes_of(node)
    return next((attributes[n].strip('"') for n in _NAMES if n in attributes), "")


def who_reads(p: Program, values: Iterable[int]) -> str:
    """Why these values matter: what reads them in the end, in words; "" where nothing does."""
    d, live = p.descriptor, p.live
    todo = list(values)
    seen, steps = set(todo), 0
    via: dict[int, int] = {}  # value → the value before it
    while todo and steps < MAX_STEPS:
        value = todo.pop(0)
        for user, operand in uses_of(d, value):
            steps += 1
            kind = live.kinds[user]
            if not _is_read(p, user, operand):
                continue
            if kind is Kind.PURE:
                for result in d.results_of(user):
                    if result not in seen and live.value_live[result]:
                        seen.add(result)
                        via[result] = value
                        todo.append(result)
                continue
            ops = []
            while value in via:
                ops.append(d.op(int(d.structure.value_node[value])))
                value = via[value]
            through = f", through {', '.join(reversed(ops[:4]))}" if ops else ""
            more = " and more" if len(ops) > 4 else ""
            return f"{_reader(d, live, user, operand)}{through}{more}"
    return ""


def _is_read(p: Program, user: int, operand: int) -> bool:
    d, live = p.descriptor, p.live
    if live.kinds[user] is Kind.KERNEL:
        return bool(live.node_live[user]) and _state(d, user, operand)[0] is not Read.UNREAD
    return bool(live.node_live[user]) or live.kinds[user] is Kind.TERMINATOR


def _reader(d: GraphDescriptor, live: Liveness, user: int, operand: int) -> str:
    kind = live.kinds[user]
    _, ordinal = d.position(user)
    where = f"{d.op(user)} (op {ordinal})"
    called = kernel_name(d, user)
    if called:
        where = f"{d.op(user)} {called} (op {ordinal})"
    if kind is Kind.KERNEL or len(d.read_operand):
        why = _state(d, user, operand)[1]
        if why:
            return f"{where} reads operand {operand} ({why})"
    if kind is Kind.TERMINATOR:
        return f"it is result {operand} of what {where} ends"
    if kind is Kind.ROOT:
        return (
            f"{where} has effects or is not known to be pure, so operand {operand} counts as read"
        )
    return f"{where} needs operand {operand}"


def _state(d: GraphDescriptor, node: int, operand: int) -> tuple[Read, str]:
    """The read set's row of one operand; UNKNOWN and "" where there is none."""
    slot = int(d.operand_start[node]) + operand
    row = int(np.searchsorted(d.read_operand, slot))
    if row == len(d.read_operand) or d.read_operand[row] != slot:
        return Read.UNKNOWN, ""
    return Read(int(d.read_state[row])), d.strings[d.read_reason[row]]


def _edit(d: GraphDescriptor, live: Liveness, rewrite: Rewrite) -> Edit:
    if rewrite.attribute == FRAGMENT_OFFSET:
        fragment = next(f for f in d.fragments if f.input == rewrite.op)
        value = input_value(d, rewrite.op)
        name, before = "input", str(fragment.offset)
    else:
        node = node_at(d, rewrite.function, rewrite.op)
        value = d.results_of(node).start
        name, before = d.op(node), d.attributes_of(node)[rewrite.attribute]
    return Edit(
        rewrite.rule,
        rewrite.function,
        rewrite.op,
        name,
        rewrite.attribute,
        before,
        rewrite.value,
        rewrite.reason,
        tuple(_uses(d, live, value)),
    )


def _uses(d: GraphDescriptor, live: Liveness, value: int) -> Iterable[Use]:
    for user, operand in uses_of(d, value):
        yield Use(
            d.position(user)[1],
            d.op(user),
            kernel_name(d, user),
            operand,
            why_ignored(d, live, user, operand),
        )


def _kernels(d: GraphDescriptor) -> Iterable[Kernel]:
    if not len(d.read_operand):
        return
    owners = np.searchsorted(d.operand_start, d.read_operand, side="right") - 1
    for node in np.unique(owners).tolist():
        function, ordinal = d.position(node)
        operands = []
        for k in range(int(d.node_operands[node])):
            state, why = _state(d, node, k)
            operands.append(Operand(state.name.lower(), why))
        yield Kernel(function, ordinal, d.op(node), kernel_name(d, node), tuple(operands))
