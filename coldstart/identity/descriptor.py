"""The domain's GraphDescriptor: one program as plain columns (NumPy arrays and a string table).

The format and its rules are written down field by field in `proto/coldstart/rpc/v1/descriptor.proto`; this is the
same data without protobuf. Construction validates: a GraphDescriptor that exists is well formed, is a tree, uses
every value only after its definition, and is no larger than `Limits` allows. `DescriptorBuilder` writes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coldstart.errors import InvalidDescriptor

if TYPE_CHECKING:
    from coldstart.identity.structure import Structure

VERSION = 1

Column = NDArray[np.int32]


class Effect(IntEnum):
    """What an emitter knows about a node beyond its name."""

    BY_NAME = 0
    PURE = 1  # believed of final descriptors only
    EFFECT = 2


class Read(IntEnum):
    """Can a kernel's result or effect depend on an operand's contents? UNKNOWN counts as read."""

    UNKNOWN = 0
    READ = 1
    UNREAD = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes beyond which a descriptor is refused before any work is done on it."""

    nodes: int = 500_000
    values: int = 2_000_000
    operands: int = 4_000_000
    attributes: int = 4_000_000
    regions: int = 200_000
    depth: int = 128  # of nested regions
    text_bytes: int = 256 << 20


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Fragment:
    """An input that is a view of a larger buffer; offsets and strides in elements."""

    input: int
    buffer: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def column(values: Iterable[int] | NDArray[np.generic]) -> Column:
    """A column of a descriptor. Raises InvalidDescriptor for numbers that don't fit."""
    wide = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.int64)
    if wide.ndim != 1 or (wide.size and (wide.min() < -1 or wide.max() > 0x7FFFFFFF)):
        raise InvalidDescriptor("a column holds numbers from -1 to 2^31-1 in one dimension")
    narrow = wide.astype(np.int32)
    narrow.flags.writeable = False
    return narrow


_EMPTY = column(())


@dataclass(frozen=True, eq=False)
class GraphDescriptor:
    """See the module's docstring. Columns are documented in descriptor.proto under the same names."""

    framework: str
    program_name: str
    final: bool
    strings: tuple[str, ...]
    value_type: Column
    value_sharding: Column
    node_op: Column
    node_effect: Column
    node_first_result: Column
    node_results: Column
    node_operands: Column
    node_attributes: Column
    operands: Column
    attribute_name: Column
    attribute_value: Column
    region_owner: Column
    region_first_node: Column
    region_end_node: Column
    region_first_argument: Column
    region_arguments: Column
    function_node: Column
    function_name: Column
    function_public: Column
    entry: int
    call_node: Column = field(default_factory=lambda: _EMPTY)
    call_function: Column = field(default_factory=lambda: _EMPTY)
    reference_node: Column = field(default_factory=lambda: _EMPTY)
    reference_function: Column = field(default_factory=lambda: _EMPTY)
    input_alias_output: Column = field(default_factory=lambda: _EMPTY)
    input_donated: Column = field(default_factory=lambda: _EMPTY)
    fragments: tuple[Fragment, ...] = ()
    read_operand: Column = field(default_factory=lambda: _EMPTY)
    read_state: Column = field(default_factory=lambda: _EMPTY)
    read_reason: Column = field(default_factory=lambda: _EMPTY)
    version: int = VERSION
    limits: Limits = field(default=LIMITS, repr=False)
    structure: Structure = field(init=False, repr=False)
    """The tree that follows from the columns; derived by the check at construction."""

    def __post_init__(self) -> None:
        # Imported here because structure.py names this class; it is the half that checks.
        from coldstart.identity.structure import check

        object.__setattr__(self, "structure", check(self))

    @cached_property
    def operand_start(self) -> Column:
        """Where each node's operands begin in the flat list; one longer than the nodes."""
        return _starts(self.node_operands)

    @cached_property
    def attribute_start(self) -> Column:
        return _starts(self.node_attributes)

    @cached_property
    def uses(self) -> tuple[Column, Column]:
        """Slots of the flat list of operands, sorted by value, and where each value's begin in that order."""
        order = np.argsort(self.operands, kind="stable").astype(np.int32)
        counts = np.bincount(self.operands, minlength=self.values)
        return order, _starts(column(counts))

    @property
    def nodes(self) -> int:
        return len(self.node_op)

    @property
    def values(self) -> int:
        return len(self.value_type)

    def op(self, node: int) -> str:
        return self.strings[int(self.node_op[node])]

    def attributes_of(self, node: int) -> dict[str, str]:
        begin, end = self.attribute_start[node], self.attribute_start[node + 1]
        return {
            self.strings[self.attribute_name[i]]: self.strings[self.attribute_value[i]]
            for i in range(begin, end)
        }

    def operands_of(self, node: int) -> list[int]:
        return [
            int(v) for v in self.operands[self.operand_start[node] : self.operand_start[node + 1]]
        ]

    def results_of(self, node: int) -> range:
        first = int(self.node_first_result[node])
        return range(first, first + int(self.node_results[node]))

    def function_of(self, node: int) -> int:
        """Index of the function that holds a node (or is it); -1 for nodes outside of functions."""
        at = int(np.searchsorted(self.function_node, node, side="right")) - 1
        if at < 0 or node >= self.structure.subtree_end[self.function_node[at]]:
            return -1
        return at

    def position(self, node: int) -> tuple[str, int]:
        """A node's stable name: its function and its ordinal in a pre-order walk of that function's body.

        What stands beside the functions is named "" and its number among all nodes; no rule edits it.
        """
        function = self.function_of(node)
        if function < 0:
            return "", node
        return (
            self.strings[self.function_name[function]],
            node - int(self.function_node[function]) - 1,
        )


def _starts(counts: Column) -> Column:
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts.astype(np.int32)


class DescriptorBuilder:
    """Writes a GraphDescriptor node by node, in pre-order. `open_region` and `close_region` nest."""

    def __init__(self, framework: str, program_name: str = "", *, final: bool = False) -> None:
        self.framework = framework
        self.program_name = program_name
        self.final = final
        self._strings: dict[str, int] = {"": 0}
        self._lists: dict[str, list[int]] = {name: [] for name in _BUILT}
        self._fragments: list[Fragment] = []
        # Bound once: an extractor calls `node` for every op of a program.
        lists = self._lists
        self._value_type = lists["value_type"]
        self._value_sharding = lists["value_sharding"]
        self._node_op = lists["node_op"]

    def string(self, text: str) -> int:
        """The index of a text in the string table."""
        index = self._strings.get(text)
        if index is None:
            index = self._strings[text] = len(self._strings)
        return index

    def node(
        self,
        op: int,
        operands: Sequence[int] = (),
        result_types: Sequence[int] = (),
        attributes: Sequence[tuple[int, int]] = (),
        *,
        effect: Effect = Effect.BY_NAME,
        sharding: int = 0,
    ) -> tuple[int, int]:
        """Append a node; texts are given as string indices. Returns the node and its first result."""
        lists = self._lists
        node, first = len(self._node_op), len(self._value_type)
        self._node_op.append(op)
        lists["node_effect"].append(effect)
        lists["node_first_result"].append(first)
        lists["node_results"].append(len(result_types))
        lists["node_operands"].append(len(operands))
        lists["node_attributes"].append(len(attributes))
        lists["operands"].extend(operands)
        for name, value in attributes:
            lists["attribute_name"].append(name)
            lists["attribute_value"].append(value)
        for result_type in result_types:
            self._value_type.append(result_type)
            self._value_sharding.append(sharding)
        return node, first

    def open_region(
        self, owner: int, argument_types: Sequence[int] = (), shardings: Sequence[int] = ()
    ) -> tuple[int, int]:
        """Begin a region of `owner` (or its next one). Returns the region and its first argument."""
        lists = self._lists
        region, first = len(lists["region_owner"]), len(self._value_type)
        lists["region_owner"].append(owner)
        lists["region_first_node"].append(len(self._node_op))
        lists["region_end_node"].append(-1)
        lists["region_first_argument"].append(first)
        lists["region_arguments"].append(len(argument_types))
        self._value_type.extend(argument_types)
        self._value_sharding.extend(shardings or [0] * len(argument_types))
        return region, first

    def close_region(self, region: int) -> None:
        self._lists["region_end_node"][region] = len(self._node_op)

    def function(self, node: int, name: str, *, public: bool) -> int:
        lists = self._lists
        lists["function_node"].append(node)
        lists["function_name"].append(self.string(name))
        lists["function_public"].append(int(public))
        return len(lists["function_node"]) - 1

    def call(self, node: int, function: int) -> None:
        self._lists["call_node"].append(node)
        self._lists["call_function"].append(function)

    def reference(self, node: int, function: int) -> None:
        self._lists["reference_node"].append(node)
        self._lists["reference_function"].append(function)

    def input(self, *, alias_output: int = -1, donated: bool = False) -> None:
        """One row per argument of the entry function, in order."""
        self._lists["input_alias_output"].append(alias_output)
        self._lists["input_donated"].append(int(donated))

    def fragment(self, fragment: Fragment) -> None:
        self._fragments.append(fragment)

    def read(self, node: int, operand: int, state: Read, reason: str = "") -> None:
        """What the kernel at `node` (the last one added) does with its operand number `operand`."""
        lists = self._lists
        if node != len(self._node_op) - 1:
            raise InvalidDescriptor("state a kernel's read set right after its node")
        slot = len(lists["operands"]) - lists["node_operands"][node] + operand
        lists["read_operand"].append(slot)
        lists["read_state"].append(state)
        lists["read_reason"].append(self.string(reason))

    def build(self, *, entry: int = 0, limits: Limits = LIMITS) -> GraphDescriptor:
        columns: dict[str, Any] = {name: column(values) for name, values in self._lists.items()}
        return GraphDescriptor(
            framework=self.framework,
            program_name=self.program_name,
            final=self.final,
            strings=tuple(self._strings),
            entry=entry,
            fragments=tuple(self._fragments),
            limits=limits,
            **columns,
        )


# The columns that a builder fills and that travel; each is a field of GraphDescriptor.
_BUILT = (
    "value_type",
    "value_sharding",
    "node_op",
    "node_effect",
    "node_first_result",
    "node_results",
    "node_operands",
    "node_attributes",
    "operands",
    "attribute_name",
    "attribute_value",
    "region_owner",
    "region_first_node",
    "region_end_node",
    "region_first_argument",
    "region_arguments",
    "function_node",
    "function_name",
    "function_public",
    "call_node",
    "call_function",
    "reference_node",
    "reference_function",
    "input_alias_output",
    "input_donated",
    "read_operand",
    "read_state",
    "read_reason",
)
COLUMNS = _BUILT
