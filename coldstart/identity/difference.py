"""Where two programs differ: node by node, attribute by attribute, both values, and what becomes of each difference.

Functions are matched by name (private ones that are left over, in order), ops by their place. Where two functions hold
other ops from some place on, that place is named and what follows is not compared. What stands beside the functions
(meshes) is compared in order, and so are the attributes of the program itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from coldstart.identity.descriptor import Effect, Fragment, GraphDescriptor, Read
from coldstart.identity.explain import Program, input_value, kernel_name, who_reads
from coldstart.identity.rewrite import Rewrite

ABSENT = "(none)"
# Normal form is made of the module, not of the descriptor: which of these it takes away is not known here.
_MAY_GO = {
    "sym_name": "symbol-names",
    "callee": "symbol-names",
    "kernel_name": "kernel-names",
    "backend_config": "kernel-names",
    "arg_attrs": "result-info",
    "res_attrs": "result-info",
}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
MAX_USES = 4  # named in a reason
MAX_DIFFERENCES = 10_000  # collected; more are counted as this many


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact that two programs state differently."""

    function: str  # "": beside the functions
    op: int  # ordinal in the function; -1: the function, or the program, itself
    name: str  # of the op
    kernel: str  # of an opaque kernel: what it is called
    # attribute NAME, operands, types, shardings, effect, ops by region, read set, op, function, aliased inputs,
    # donated inputs, fragment, header NAME
    what: str
    left: str
    right: str
    rule: str  # that makes both sides equal; "": it stays
    why: str  # the rule's reason, or why it stays


def differences(left: Program, right: Program) -> list[Difference]:
    """All of them, in the order of the left program; empty for equal descriptors."""
    found: list[Difference] = []
    for difference in _differences(left, right):
        found.append(difference)
        if len(found) == MAX_DIFFERENCES:
            break
    return found


def _differences(left: Program, right: Program) -> Iterator[Difference]:
    l, r = left.descriptor, right.descriptor  # noqa: E741
    for name in ("framework", "final", "version"):
        one, other = str(getattr(l, name)), str(getattr(r, name))
        if one != other:
            yield Difference("", -1, "program", "", f"header {name}", one, other, "", "")
    yield from _beside(left, right)
    for a, b in _functions(l, r):
        if a is None or b is None:
            d, f = (l, a) if a is not None else (r, b)
            assert f is not None
            name = d.strings[d.function_name[f]]
            here, there = f"@{name}", ABSENT
            if a is None:
                here, there = there, here
            yield Difference(name, -1, "func.func", "", "function", here, there, "", "")
        else:
            yield from _in_function(left, right, a, b)
    yield from _inputs(left, right)


def _functions(l: GraphDescriptor, r: GraphDescriptor) -> list[tuple[int | None, int | None]]:  # noqa: E741
    names_l = [l.strings[i] for i in l.function_name]
    names_r = [r.strings[i] for i in r.function_name]
    at = {name: i for i, name in enumerate(names_r)}
    pairs: list[tuple[int | None, int | None]] = []
    left_over: list[int] = []
    for i, name in enumerate(names_l):
        if name in at:
            pairs.append((i, at.pop(name)))
        else:
            left_over.append(i)
    pairs.extend(zip_longest(left_over, at.values()))
    return sorted(pairs, key=lambda p: (p[0] is None, p[0] or 0))


def _beside(left: Program, right: Program) -> Iterator[Difference]:
    l, r = left.descriptor, right.descriptor  # noqa: E741
    if l.op(0) != r.op(0):
        yield Difference("", -1, "program", "", "op", l.op(0), r.op(0), "", "")
    for what, one, other in _attributes(l, r, 0, 0):
        yield _judged(left, right, "", -1, 0, 0, what, one, other)
    for a, b in zip_longest(_at_the_top(l), _at_the_top(r)):
        yield from _in_order(
            left,
            right,
            ("", b if a is None else a),  # as `position` says it
            range(a, int(l.structure.subtree_end[a])) if a is not None else range(0),
            range(b, int(r.structure.subtree_end[b])) if b is not None else range(0),
            (0, 0),
        )


def _at_the_top(d: GraphDescriptor) -> list[int]:
    functions = set(d.function_node.tolist())
    return [n for n in np.flatnonzero(d.structure.node_region == 0).tolist() if n not in functions]


def _in_function(left: Program, right: Program, f: int, g: int) -> Iterator[Difference]:
    l, r = left.descriptor, right.descriptor  # noqa: E741
    a0, b0 = int(l.function_node[f]), int(r.function_node[g])
    a1, b1 = int(l.structure.subtree_end[a0]), int(r.structure.subtree_end[b0])
    where = l.strings[l.function_name[f]], -1
    bases = _base(l, a0), _base(r, b0)
    yield from _in_order(left, right, where, range(a0, a1), range(b0, b1), bases)


def _in_order(
    left: Program,
    right: Program,
    where: tuple[str, int],
    ours: range,
    theirs: range,
    bases: tuple[int, int],
) -> Iterator[Difference]:
    """Node by node; `where` is the first one's position."""
    l, r = left.descriptor, right.descriptor  # noqa: E741
    function, place = where
    for k, (a, b) in enumerate(zip_longest(ours, theirs)):
        one = l.op(a) if a is not None else ABSENT
        other = r.op(b) if b is not None else ABSENT
        if one != other:
            rest = f"what follows is not compared ({len(ours)} against {len(theirs)} ops)"
            yield Difference(function, place + k, one, "", "op", one, other, "", rest)
            return
        for what, x, y in _facts(l, r, a, b, *bases):
            yield _judged(left, right, function, place + k, a, b, what, x, y)


def _base(d: GraphDescriptor, node: int) -> int:
    """A function's first value: its values have numbers of their own, in order."""
    return int(d.region_first_argument[d.structure.first_region[node]])


def _facts(
    l: GraphDescriptor,  # noqa: E741
    r: GraphDescriptor,
    a: int,
    b: int,
    base_l: int,
    base_r: int,
) -> Iterator[tuple[str, str, str]]:
    """(what, left, right) wherever two nodes that are called the same differ."""
    yield from _attributes(l, r, a, b)
    used_l = [v - base_l for v in l.operands_of(a)]
    used_r = [v - base_r for v in r.operands_of(b)]
    if used_l != used_r:
        yield "operands", str(used_l), str(used_r)
    for what, column_l, column_r in (
        ("types", l.value_type, r.value_type),
        ("shardings", l.value_sharding, r.value_sharding),
    ):
        texts_l = [l.strings[column_l[v]] for v in _defined(l, a)]
        texts_r = [r.strings[column_r[v]] for v in _defined(r, b)]
        if texts_l != texts_r and (any(texts_l) or any(texts_r)):  # "" says nothing
            yield what, ", ".join(texts_l), ", ".join(texts_r)
    if l.node_effect[a] != r.node_effect[b]:
        one, other = (Effect(int(e)).name.lower() for e in (l.node_effect[a], r.node_effect[b]))
        yield "effect", one, other
    if _shape(l, a) != _shape(r, b):
        yield "ops by region", str(_shape(l, a)), str(_shape(r, b))
    if len(l.read_operand) or len(r.read_operand):
        reads_l, reads_r = _reads(l, a), _reads(r, b)
        if reads_l != reads_r:
            yield "read set", ", ".join(reads_l), ", ".join(reads_r)


def _attributes(
    l: GraphDescriptor,  # noqa: E741
    r: GraphDescriptor,
    a: int,
    b: int,
) -> Iterator[tuple[str, str, str]]:
    one, other = l.attributes_of(a), r.attributes_of(b)
    for name in sorted(one.keys() | other.keys()):
        x, y = one.get(name, ABSENT), other.get(name, ABSENT)
        if x != y:
            yield f"attribute {name}", x, y


def _defined(d: GraphDescriptor, node: int) -> list[int]:
    """Results, and the arguments of its regions."""
    values = list(d.results_of(node))
    first = int(d.structure.first_region[node])
    if first >= 0:
        for region in np.flatnonzero(d.region_owner == node).tolist():
            begin = int(d.region_first_argument[region])
            values += range(begin, begin + int(d.region_arguments[region]))
    return values


def _shape(d: GraphDescriptor, node: int) -> list[int]:
    """How many nodes each of its regions holds."""
    if d.structure.first_region[node] < 0:
        return []
    owned = np.flatnonzero(d.region_owner == node)
    return (d.region_end_node[owned] - d.region_first_node[owned]).tolist()  # type: ignore[no-any-return]


def _reads(d: GraphDescriptor, node: int) -> list[str]:
    """Operand by operand, as an account of a kernel says it."""
    begin, end = np.searchsorted(d.read_operand, d.operand_start[node : node + 2])
    return [
        f"operand {row - d.operand_start[node]} {Read(int(state)).name.lower()}"
        for row, state in zip(d.read_operand[begin:end], d.read_state[begin:end], strict=True)
    ]


def _judged(
    left: Program,
    right: Program,
    function: str,
    op: int,
    a: int,
    b: int,
    what: str,
    one: str,
    other: str,
) -> Difference:
    """A difference, with the rule that takes it away or why it stays."""
    l, r = left.descriptor, right.descriptor  # noqa: E741
    rule = why = ""
    if what.startswith("attribute "):
        attribute = what.removeprefix("attribute ")
        edit_l = left.rewrites.get((function, op, attribute))
        edit_r = right.rewrites.get((r.position(b)[0], op, attribute))
        edit = edit_l or edit_r
        after_l = edit_l.value if edit_l is not None else one
        after_r = edit_r.value if edit_r is not None else other
        may_go = _may_go(l.op(a), attribute, one, other)
        if edit is not None and after_l == after_r:
            rule = edit.rule
            edited = left if edit_l is not None else right
            why = _why_it_goes(edited, edit) or edit.reason
        elif edit_l is not None and edit_r is not None:
            why = f"{edit_l.rule} makes it {edit_l.value} on the left, {edit_r.value} on the right"
        elif edit is not None:
            kept, node = (right, b) if edit_r is None else (left, a)
            side = "left" if edit_r is None else "right"
            why = _why_it_stays(kept, node) or f"{edit.rule} rewrites the {side} one only"
        elif may_go and not l.final:  # a final descriptor has no normal form
            why = f"unless the rule {may_go} leaves it out of the hash"
        elif len(l.results_of(a)):
            why = _why_it_stays(left, a) or _why_it_stays(right, b)
            why = why or "its result is dead, but no rule covers this attribute"
    elif not l.final and (may_go := _may_go(l.op(a), "", one, other)):
        why = f"unless the rule {may_go} leaves it out of the hash"
    return Difference(function, op, l.op(a), kernel_name(l, a), what, one, other, rule, why)


def _may_go(op: str, attribute: str, one: str, other: str) -> str:
    """The rule of normal form that may take this difference away; "" for none."""
    if op == "builtin.module" and attribute == "sym_name":
        return "module-name"
    shardy = op == "sdy.mesh" or (one.startswith("#sdy") and other.startswith("#sdy"))
    if shardy and _QUOTED.sub("", one) == _QUOTED.sub("", other):
        return "mesh-axes"
    return _MAY_GO.get(attribute, "")


def _why_it_goes(p: Program, rewrite: Rewrite) -> str:
    """The users of the dead value, each with why it doesn't read it."""
    for edit in p.edits:
        if (edit.function, edit.op, edit.attribute) == (
            rewrite.function,
            rewrite.op,
            rewrite.attribute,
        ):
            return "; ".join(
                f"op {use.op}{f' {use.kernel}' if use.kernel else ''}: {use.why}"
                for use in edit.uses[:MAX_USES]
            )
    return ""


def _why_it_stays(p: Program, node: int) -> str:
    if p.live.idle(p.descriptor, node):
        return ""
    if p.live.dead(p.descriptor.results_of(node)):
        return "nothing reads its result, but it has an effect of its own"
    return (
        who_reads(p, p.descriptor.results_of(node)) or "its result reaches an output or an effect"
    )


def _view(f: Fragment) -> str:
    return f"buffer {f.buffer}, offset {f.offset}, sizes {f.sizes}, strides {f.strides}"


def _why_a_view_stays(p: Program, index: int) -> str:
    value = input_value(p.descriptor, index)
    if p.live.dead(range(value, value + 1)):
        return "nothing reads it, but a stride is negative, or a view of its buffer is aliased or donated"
    return who_reads(p, (value,)) or "an output or an effect depends on it"


def _aliased(d: GraphDescriptor) -> str:
    pairs = [(i, output) for i, output in enumerate(d.input_alias_output.tolist()) if output >= 0]
    return ", ".join(f"input {i} with output {output}" for i, output in pairs) or ABSENT


def _donated(d: GraphDescriptor) -> str:
    return ", ".join(f"input {i}" for i in np.flatnonzero(d.input_donated).tolist()) or ABSENT


def _edit_of(p: Program, index: int) -> Rewrite | None:
    d = p.descriptor
    return p.rewrites.get((d.strings[d.function_name[d.entry]], index, "fragment.offset"))


def _inputs(left: Program, right: Program) -> Iterator[Difference]:
    l, r = left.descriptor, right.descriptor  # noqa: E741
    function = l.strings[l.function_name[l.entry]]
    for what, words in (("aliased inputs", _aliased), ("donated inputs", _donated)):
        one, other = words(l), words(r)
        if one != other:
            yield Difference(function, -1, "func.func", "", what, one, other, "", "")
    at_l = {fragment.input: fragment for fragment in l.fragments}
    at_r = {fragment.input: fragment for fragment in r.fragments}
    for index in sorted(at_l.keys() | at_r.keys()):
        a, b = at_l.get(index), at_r.get(index)
        if a == b:
            continue
        rule = why = ""
        if a is not None and b is not None and replace(a, offset=b.offset) == b:
            edit_l, edit_r = _edit_of(left, index), _edit_of(right, index)
            edit = edit_l or edit_r
            after_l = edit_l.value if edit_l is not None else str(a.offset)
            after_r = edit_r.value if edit_r is not None else str(b.offset)
            if edit is not None and after_l == after_r:
                rule, why = edit.rule, edit.reason
            else:
                why = _why_a_view_stays(left if edit_l is None else right, index)
        one, other = (ABSENT if f is None else _view(f) for f in (a, b))
        yield Difference(function, index, "input", "", "fragment", one, other, rule, why)
