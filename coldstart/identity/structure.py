"""Checks a GraphDescriptor and derives its tree: who stands where, what ends where, who defines a value.

Every check is over whole columns or, for the tree, over regions; nothing recurses. A descriptor that passes can be
walked by trusting code: indices are in range, the tree is a tree, every value has one definition that comes before
its uses in an enclosing region (so there are no cycles), and calls name functions of fitting arity.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coldstart.errors import InvalidDescriptor
from coldstart.identity.descriptor import VERSION, Column, Effect, GraphDescriptor, Read


@dataclass(frozen=True, eq=False, slots=True)
class Structure:
    """What follows from a descriptor's columns."""

    node_region: Column  # the region that directly holds a node; -1 for node 0
    subtree_end: Column  # one past the last node nested in a node
    value_node: Column  # the node that defines a value; -1 for arguments
    value_region: Column  # the region whose argument a value is; -1 for results
    first_region: Column  # a node's first region; -1 without any
    region_count: Column  # how many regions a node has
    terminator: Column  # the last direct node of a region; -1 for an empty one


def _need(condition: object, message: str) -> None:
    if not condition:
        raise InvalidDescriptor(message)


def _in_range(name: str, values: Column, bound: int) -> None:
    _need(
        not values.size or (values.min() >= 0 and values.max() < bound),
        f"{name} holds an index outside of 0..{bound - 1}",
    )


def _same_length(name: str, length: int, *columns: Column) -> None:
    _need(
        all(len(c) == length for c in columns), f"the columns of {name} differ in length ({length})"
    )


def check(d: GraphDescriptor) -> Structure:
    """Raises InvalidDescriptor; returns the derived tree."""
    _check_sizes(d)
    _check_indices(d)
    node_region, subtree_end, first_region, region_count, depth_ok = _tree(d)
    _need(depth_ok, f"regions nest deeper than {d.limits.depth}")
    value_node, value_region = _definitions(d)
    _check_uses(d, subtree_end, value_node, value_region, node_region)
    terminator = np.full(len(d.region_owner), -1, dtype=np.int32)
    inner = node_region[1:]
    terminator[inner] = np.arange(1, d.nodes, dtype=np.int32)  # the last write per region stays
    structure = Structure(
        node_region, subtree_end, value_node, value_region, first_region, region_count, terminator
    )
    _check_attributes(d)
    _check_functions(d, structure)
    _check_inputs(d, structure)
    _check_reads(d)
    return structure


def _check_sizes(d: GraphDescriptor) -> None:
    limits = d.limits
    _need(
        d.version == VERSION, f"descriptor version {d.version} is not known here; this is {VERSION}"
    )
    for name, size, limit in (
        ("nodes", len(d.node_op), limits.nodes),
        ("values", len(d.value_type), limits.values),
        ("operands", len(d.operands), limits.operands),
        ("attributes", len(d.attribute_name), limits.attributes),
        ("regions", len(d.region_owner), limits.regions),
        ("strings", len(d.strings), limits.attributes),
        ("text bytes", sum(map(len, d.strings)), limits.text_bytes),
    ):
        _need(size <= limit, f"{size} {name} are more than the {limit} that are allowed")
    _need(d.nodes >= 1, "a descriptor has at least the program's own node")
    _need(d.strings and d.strings[0] == "", "strings[0] is the empty string")
    _need(len(set(d.strings)) == len(d.strings), "a string stands twice in the string table")
    _same_length("values", d.values, d.value_sharding)
    _same_length(
        "nodes",
        d.nodes,
        d.node_effect,
        d.node_first_result,
        d.node_results,
        d.node_operands,
        d.node_attributes,
    )
    _same_length("attributes", len(d.attribute_name), d.attribute_value)
    _same_length(
        "regions",
        len(d.region_owner),
        d.region_first_node,
        d.region_end_node,
        d.region_first_argument,
        d.region_arguments,
    )
    _same_length("functions", len(d.function_node), d.function_name, d.function_public)
    _same_length("calls", len(d.call_node), d.call_function)
    _same_length("references", len(d.reference_node), d.reference_function)
    _same_length("inputs", len(d.input_alias_output), d.input_donated)
    _same_length("reads", len(d.read_operand), d.read_state, d.read_reason)


def _check_indices(d: GraphDescriptor) -> None:
    strings = len(d.strings)
    _in_range("values.type", d.value_type, strings)
    _in_range("values.sharding", d.value_sharding, strings)
    _in_range("nodes.op", d.node_op, strings)
    _in_range("nodes.effect", d.node_effect, len(Effect))
    for name, counts, total in (
        ("results", d.node_results, d.values),
        ("operands", d.node_operands, len(d.operands)),
        ("attributes", d.node_attributes, len(d.attribute_name)),
    ):
        _in_range(f"nodes.{name}", counts, total + 1)
        if name != "results":
            _need(
                int(counts.sum(dtype=np.int64)) == total,
                f"nodes.{name} doesn't add up to the {total} {name} given",
            )
    _in_range("operands", d.operands, d.values)
    _in_range("attributes.name", d.attribute_name, strings)
    _in_range("attributes.value", d.attribute_value, strings)
    _in_range("regions.owner", d.region_owner, d.nodes)
    _in_range("regions.first_node", d.region_first_node, d.nodes + 1)
    _in_range("regions.end_node", d.region_end_node, d.nodes + 1)
    _in_range("regions.arguments", d.region_arguments, d.values + 1)
    functions = len(d.function_node)
    _in_range("functions.node", d.function_node, d.nodes)
    _in_range("functions.name", d.function_name, strings)
    _in_range("functions.public", d.function_public, 2)
    _need(0 <= d.entry < functions, f"entry {d.entry} is not one of {functions} functions")
    for name, nodes, callees in (
        ("calls", d.call_node, d.call_function),
        ("references", d.reference_node, d.reference_function),
    ):
        _in_range(f"{name}.node", nodes, d.nodes)
        _in_range(f"{name}.function", callees, functions)
    _in_range("inputs.donated", d.input_donated, 2)


def _tree(d: GraphDescriptor) -> tuple[Column, Column, Column, Column, bool]:
    owners = d.region_owner.tolist()
    firsts = d.region_first_node.tolist()
    ends = d.region_end_node.tolist()
    node_region = np.full(d.nodes, -1, dtype=np.int32)
    subtree_end = np.arange(1, d.nodes + 1, dtype=np.int32)
    first_region = np.full(d.nodes, -1, dtype=np.int32)
    region_count = np.zeros(d.nodes, dtype=np.int32)
    depth = [0] * len(owners)
    _need(
        owners and owners[0] == 0 and firsts[0] == 1 and ends[0] == d.nodes,
        "region 0 is node 0's and holds all other nodes",
    )
    # In this order a region's parent is painted before it, and nothing painted later reaches back over it.
    _need(
        bool(np.all(np.diff(d.region_first_node) >= 0)),
        "regions are not in the order of their first node",
    )
    last_of: dict[int, int] = {}  # owner -> its latest region
    for region, (owner, first, end) in enumerate(zip(owners, firsts, ends, strict=True)):
        _need(first <= end, f"region {region} ends before it begins")
        if region:
            _need(owner > 0, f"node 0 has one region; region {region} says otherwise")
            parent = int(node_region[owner])
            _need(parent >= 0, f"the owner of region {region} stands in no earlier region")
            _need(end <= ends[parent], f"region {region} is not inside of region {parent}")
            depth[region] = depth[parent] + 1
            if depth[region] > d.limits.depth:
                return node_region, subtree_end, first_region, region_count, False
            previous = last_of.get(owner)
            begins = owner + 1 if previous is None else ends[previous]
            _need(first == begins, f"region {region} doesn't follow its owner or its sibling")
        node_region[first:end] = region
        if owner not in last_of:
            first_region[owner] = region
        last_of[owner] = region
        region_count[owner] += 1
        subtree_end[owner] = end
    return node_region, subtree_end, first_region, region_count, True


def _definitions(d: GraphDescriptor) -> tuple[Column, Column]:
    value_node = np.full(d.values, -1, dtype=np.int32)
    value_region = np.full(d.values, -1, dtype=np.int32)
    total = int(d.node_results.sum(dtype=np.int64)) + int(d.region_arguments.sum(dtype=np.int64))
    _need(total == d.values, f"{total} definitions for {d.values} values")
    seen = np.zeros(d.values, dtype=np.int32)
    for counts, firsts, out in (
        (d.node_results, d.node_first_result, value_node),
        (d.region_arguments, d.region_first_argument, value_region),
    ):
        who = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        starts = np.cumsum(counts, dtype=np.int64) - counts
        which = np.arange(len(who), dtype=np.int64) - starts[who] + firsts[who]
        _need(
            not which.size or (which.min() >= 0 and which.max() < d.values),
            "a definition names a value that doesn't exist",
        )
        out[which] = who
        np.add.at(seen, which, 1)
    _need(bool(np.all(seen == 1)), "a value is defined twice or never")
    return value_node, value_region


def _check_uses(
    d: GraphDescriptor,
    subtree_end: Column,
    value_node: Column,
    value_region: Column,
    node_region: Column,
) -> None:
    users = np.repeat(np.arange(d.nodes, dtype=np.int32), d.node_operands)
    definer = value_node[d.operands]
    by_node = definer >= 0
    # A result is seen by later nodes of its own region and whatever is nested in them, not by its own regions.
    scope = np.where(by_node, node_region[definer], value_region[d.operands])
    after = np.where(by_node, users >= subtree_end[definer], True)
    _need(bool(np.all(scope >= 0)), "node 0 can't define values")
    inside = (d.region_first_node[scope] <= users) & (users < d.region_end_node[scope])
    _need(bool(np.all(after & inside)), "a value is used before its definition or out of its scope")


def _check_attributes(d: GraphDescriptor) -> None:
    if not d.final:
        return  # steering ones are never hashed, and their emitter writes them so
    used, at = np.unique(d.attribute_name, return_inverse=True)
    rank = np.empty(len(used), dtype=np.int64)
    rank[sorted(range(len(used)), key=lambda i: d.strings[used[i]])] = np.arange(len(used))
    order, owner = rank[at], np.repeat(np.arange(d.nodes), d.node_attributes)
    _need(
        not np.any((owner[1:] == owner[:-1]) & (order[1:] <= order[:-1])),
        "the attributes of a node are not sorted by name, or one stands there twice",
    )


def _check_functions(d: GraphDescriptor, s: Structure) -> None:
    nodes = d.function_node
    _need(bool(np.all(np.diff(nodes) > 0)), "functions are not in the order of their nodes")
    _need(
        bool(np.all(s.node_region[nodes] == 0)) and bool(np.all(s.region_count[nodes] == 1)),
        "a function is a node of region 0 with one region",
    )
    _need(bool(np.all(d.node_operands[nodes] == 0)), "a function node has no operands")
    _need(len(set(d.function_name.tolist())) == len(nodes), "two functions have one name")
    calls = d.call_node
    _need(bool(np.all(np.diff(calls) > 0)), "calls are not in the order of their nodes")
    _need(bool(np.all(s.region_count[calls] == 0)), "a call has no regions")
    callee = s.first_region[nodes[d.call_function]]
    _need(
        bool(np.all(d.node_operands[calls] == d.region_arguments[callee])),
        "a call has not as many operands as its function has arguments",
    )
    last = s.terminator[callee]
    returned = np.where(last >= 0, d.node_operands[last], 0)
    _need(
        bool(np.all(d.node_results[calls] == returned)),
        "a call has not as many results as its function returns",
    )


def _check_inputs(d: GraphDescriptor, s: Structure) -> None:
    inputs = len(d.input_alias_output)
    arguments = int(d.region_arguments[s.first_region[d.function_node[d.entry]]])
    _need(inputs == arguments, f"{inputs} inputs are given for {arguments} arguments of the entry")
    seen: set[int] = set()
    for fragment in d.fragments:
        _need(0 <= fragment.input < inputs, f"a fragment names input {fragment.input} of {inputs}")
        _need(fragment.input not in seen, f"input {fragment.input} has two fragments")
        seen.add(fragment.input)
        _need(
            len(fragment.sizes) == len(fragment.strides) <= 64,
            f"the fragment of input {fragment.input} has other numbers of sizes and strides",
        )
        _need(
            all(size >= 0 for size in fragment.sizes) and fragment.offset >= 0,
            f"the fragment of input {fragment.input} has a negative size or offset",
        )


def _check_reads(d: GraphDescriptor) -> None:
    _in_range("reads.operand", d.read_operand, len(d.operands))
    _in_range("reads.state", d.read_state, len(Read))
    _in_range("reads.reason", d.read_reason, len(d.strings))
    _need(bool(np.all(np.diff(d.read_operand) > 0)), "reads are not sorted by operand")
