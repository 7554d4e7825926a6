"""GraphDescriptor and rewrites ↔ protobuf. Sizes are checked before anything is copied; the rest at construction."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from coldstart.errors import InvalidDescriptor
from coldstart.identity.descriptor import (
    LIMITS,
    Fragment,
    GraphDescriptor,
    Limits,
    column,
)
from coldstart.rpc.v1 import descriptor_pb2

# Column of the domain -> (message field, its column); "" means the field is the column.
_COLUMNS = {
    "value_type": ("values", "type"),
    "value_sharding": ("values", "sharding"),
    "node_op": ("nodes", "op"),
    "node_effect": ("nodes", "effect"),
    "node_first_result": ("nodes", "first_result"),
    "node_results": ("nodes", "results"),
    "node_operands": ("nodes", "operands"),
    "node_attributes": ("nodes", "attributes"),
    "operands": ("operands", ""),
    "attribute_name": ("attributes", "name"),
    "attribute_value": ("attributes", "value"),
    "region_owner": ("regions", "owner"),
    "region_first_node": ("regions", "first_node"),
    "region_end_node": ("regions", "end_node"),
    "region_first_argument": ("regions", "first_argument"),
    "region_arguments": ("regions", "arguments"),
    "function_node": ("functions", "node"),
    "function_name": ("functions", "name"),
    "function_public": ("functions", "public"),
    "call_node": ("calls", "node"),
    "call_function": ("calls", "function"),
    "reference_node": ("references", "node"),
    "reference_function": ("references", "function"),
    "input_alias_output": ("inputs", "alias_output"),
    "input_donated": ("inputs", "donated"),
    "read_operand": ("reads", "operand"),
    "read_state": ("reads", "state"),
    "read_reason": ("reads", "reason"),
}


def descriptor_to_pb(d: GraphDescriptor) -> descriptor_pb2.GraphDescriptor:
    message = descriptor_pb2.GraphDescriptor(
        version=d.version,
        framework=d.framework,
        program_name=d.program_name,
        final=d.final,
        entry=d.entry,
    )
    index = {text: i for i, text in enumerate(d.strings)}
    strings = list(d.strings)
    for fragment in d.fragments:
        if fragment.buffer not in index:
            index[fragment.buffer] = len(strings)
            strings.append(fragment.buffer)
        message.inputs.fragments.add(
            input=fragment.input,
            buffer=index[fragment.buffer],
            offset=fragment.offset,
            sizes=fragment.sizes,
            strides=fragment.strides,
        )
    # Text that is not UTF-8 (attribute bytes) can't travel as a string; it is escaped, never dropped.
    message.strings.extend(s.encode("utf-8", "backslashreplace").decode() for s in strings)
    for name, (outer, inner) in _COLUMNS.items():
        target = getattr(message, outer)
        (getattr(target, inner) if inner else target).extend(getattr(d, name).tolist())
    return message


def descriptor_from_bytes(data: bytes, limits: Limits = LIMITS) -> GraphDescriptor:
    """A serialized message's descriptor. Raises InvalidDescriptor."""
    try:
        message = descriptor_pb2.GraphDescriptor.FromString(data)
    except DecodeError as exc:
        raise InvalidDescriptor("it can't be parsed as a GraphDescriptor") from exc
    if message.final:
        _all_known(message)
    return descriptor_from_pb(message, limits)


def _all_known(message: descriptor_pb2.GraphDescriptor) -> None:
    """A final descriptor is the program: what isn't understood can't be left out, and it isn't kept either."""
    before = message.ByteSize()
    message.DiscardUnknownFields()
    unknown = before - message.ByteSize()
    if unknown:
        raise InvalidDescriptor(
            f"{unknown} bytes of it are fields that aren't known here; leave them out, or update the daemon"
        )


def descriptor_from_pb(
    message: descriptor_pb2.GraphDescriptor, limits: Limits = LIMITS
) -> GraphDescriptor:
    """Raises InvalidDescriptor; the sizes first."""
    bounds = {
        "values": limits.values,
        "operands": limits.operands,
        "attributes": limits.attributes,
        "regions": limits.regions,
        "reads": limits.operands,
    }
    columns: dict[str, Any] = {}
    for name, (outer, inner) in _COLUMNS.items():
        source = getattr(message, outer)
        numbers = getattr(source, inner) if inner else source
        bound = bounds.get(outer, limits.nodes)
        if len(numbers) > bound:
            raise InvalidDescriptor(f"{len(numbers)} rows of {name} are more than {bound}")
        columns[name] = column(np.fromiter(numbers, dtype=np.int64, count=len(numbers)))
    if len(message.strings) > limits.attributes:
        raise InvalidDescriptor(f"{len(message.strings)} strings are more than {limits.attributes}")
    strings = tuple(message.strings)
    fragments = []
    if len(message.inputs.fragments) > len(columns["input_donated"]):
        raise InvalidDescriptor("more fragments than inputs")
    for f in message.inputs.fragments:
        if f.buffer >= len(strings) or len(f.sizes) > 64 or len(f.strides) > 64:
            raise InvalidDescriptor(f"the fragment of input {f.input} is not well formed")
        fragments.append(
            Fragment(f.input, strings[f.buffer], f.offset, tuple(f.sizes), tuple(f.strides))
        )
    return GraphDescriptor(
        framework=message.framework,
        program_name=message.program_name,
        final=message.final,
        strings=strings,
        entry=message.entry,
        fragments=tuple(fragments),
        version=message.version,
        limits=limits,
        **columns,
    )
