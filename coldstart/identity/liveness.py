"""Which values reach an output or an effect, through calls, loops, branches and kernels.

Backward reachability over "depends on" edges. Everything used here distributes over unions of live results, so a
function needs no analysis per call site: one pass gives each of its values a bit mask of the *demands* that reach
it, one bit per result of the function and one for its effects. A call site's live results are a set of such bits,
and a value is dead in a context exactly when its mask and the context's bits have nothing in common. Contexts join
by `or`; a call graph of depth 50 costs 50 passes, not 2^50 (H16).

Demands, beside outputs: any op that is not on the list of pure ones (ops.py); the condition of every loop, since
whether a program ends is part of what it does; a branch's index where a branch holds an effect; whatever a public
function or one named by an attribute returns. What ends a region without being a terminator by name hands out its
operands and its own results: which of them is meant, only its emitter knows. Whatever stands in no function is live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from coldstart.errors import InvalidDescriptor
from coldstart.identity import ops
from coldstart.identity.descriptor import Effect, GraphDescriptor, Read

# A function with more results than this gets one bit for all of them: coarser, sound.
MAX_RESULT_BITS = 256
_Push = Callable[[int, int], None]
_EFFECT = 1  # the bit of a function's effects; results have 2, 4, 8, ..


class Kind(IntEnum):
    """How demands pass through a node."""

    PURE = 0  # any result -> all operands
    ROOT = 1  # all operands, always
    WHILE = 2
    BRANCH = 3
    MANUAL = 4
    CALL = 5
    KERNEL = 6  # any result -> the operands that it reads
    TERMINATOR = 7  # its parent says what is demanded
    SCOPE = 8


@dataclass(frozen=True, eq=False, slots=True)
class Liveness:
    """The answer: per value and node, does it reach an output or an effect in any context?"""

    value_live: NDArray[np.bool_]
    node_live: NDArray[np.bool_]
    kinds: list[Kind]

    def dead(self, values: range) -> bool:
        """True where none of these values matters, whoever calls the function they stand in."""
        return not self.value_live[values.start : values.stop].any()

    def idle(self, d: GraphDescriptor, node: int) -> bool:
        """True where a node does nothing but make results, and none matters: what a rule may edit."""
        return self.kinds[node] is Kind.PURE and self.dead(d.results_of(node))


def analyse(d: GraphDescriptor) -> Liveness:
    """Liveness of a whole descriptor. Raises InvalidDescriptor where calls form a cycle."""
    return _Analysis(d).run()


class _Analysis:
    """One pass over a descriptor. Columns are held as lists: the passes are scalar code."""

    def __init__(self, d: GraphDescriptor) -> None:
        self.d = d
        s = d.structure
        self.start = d.operand_start.tolist()
        self.operands = d.operands.tolist()
        self.first_result = d.node_first_result.tolist()
        self.results = d.node_results.tolist()
        self.value_node = s.value_node.tolist()
        self.value_region = s.value_region.tolist()
        self.subtree_end = s.subtree_end.tolist()
        self.first_region = s.first_region.tolist()
        self.regions: dict[int, list[int]] = {}  # node -> its regions
        for region, owner in enumerate(d.region_owner.tolist()):
            self.regions.setdefault(owner, []).append(region)
        self.region_owner = d.region_owner.tolist()
        self.region_first_argument = d.region_first_argument.tolist()
        self.region_arguments = d.region_arguments.tolist()
        self.terminator = s.terminator.tolist()
        self.functions = d.function_node.tolist()
        self.callee = dict(zip(d.call_node.tolist(), d.call_function.tolist(), strict=True))
        self.unread: dict[int, set[int]] = {}
        self.kinds = self._kinds()
        self.need = [0] * d.values  # value -> mask of demands
        self.mask = [0] * d.nodes  # node -> mask of demands, for nodes that pass them on whole
        self.bits = [0] * len(self.functions)  # result bits of a function; 0: joined
        self.summary: list[list[int]] = [[] for _ in self.functions]  # argument -> mask
        self.has_effect = [False] * len(self.functions)
        # Functions that do more than their nodes say, or have none: outside code.
        self.opaque = [
            d.node_effect[node] == Effect.EFFECT or self.terminator[self.first_region[node]] < 0
            for node in self.functions
        ]

    def run(self) -> Liveness:
        order, calls_of = self._callees_first()
        for function in order:
            self._summarise(function)
        context = self._contexts(order, calls_of)
        value_live = np.ones(self.d.values, dtype=np.bool_)
        node_live = np.ones(self.d.nodes, dtype=np.bool_)
        for function, node in enumerate(self.functions):
            live, end = context[function], self.subtree_end[node]
            for n in range(node, end):
                first, count = self.first_result[n], self.results[n]
                alive = self.mask[n] & live != 0
                for v in range(first, first + count):
                    value_live[v] = self.need[v] & live != 0
                    alive = alive or bool(value_live[v])
                node_live[n] = alive
        for region, owner in enumerate(self.region_owner):
            function = self.d.function_of(owner) if owner else -1
            if function >= 0:
                first = self.region_first_argument[region]
                for v in range(first, first + self.region_arguments[region]):
                    value_live[v] = self.need[v] & context[function] != 0
        return Liveness(value_live, node_live, self.kinds)

    # -- what each node is -------------------------------------------------------------------------------------

    def _kinds(self) -> list[Kind]:
        d = self.d
        of_string = [_kind_of_name(text) for text in d.strings]
        kinds = [of_string[op] for op in d.node_op.tolist()]
        for node in np.flatnonzero(d.node_effect == Effect.EFFECT).tolist():
            kinds[node] = Kind.ROOT
        for node in self.callee:
            if d.node_effect[node] != Effect.EFFECT:
                kinds[node] = Kind.CALL
        self._mark_kernels(kinds)
        if d.final:  # after the kernels, which are pure as well and say more
            for node in np.flatnonzero(d.node_effect == Effect.PURE).tolist():
                if kinds[node] is Kind.ROOT:
                    kinds[node] = Kind.PURE
        structured = (Kind.WHILE, Kind.BRANCH, Kind.MANUAL)
        for node in [n for n, kind in enumerate(kinds) if kind in structured]:
            if not self._well_shaped(kinds[node], node):
                kinds[node] = Kind.ROOT
        # A terminator that ends nothing and a scope below the top are not what they say.
        at_top = d.structure.node_region <= 0
        terminators = set(self.terminator)
        for node, kind in enumerate(kinds):
            if (kind is Kind.TERMINATOR and node not in terminators) or (
                kind is Kind.SCOPE and not at_top[node]
            ):
                kinds[node] = Kind.ROOT
        # Whatever ends a function hands out its results, even if its name and its effect don't say so.
        for node in self.functions:
            last = self.terminator[self.first_region[node]]
            if last >= 0 and kinds[last] is not Kind.TERMINATOR:
                kinds[last] = Kind.ROOT
        return kinds

    def _mark_kernels(self, kinds: list[Kind]) -> None:
        d = self.d
        if not len(d.read_operand):
            return
        owner = np.searchsorted(d.operand_start, d.read_operand, side="right") - 1
        rows: dict[int, list[tuple[int, int]]] = {}
        for node, slot, state in zip(
            owner.tolist(), d.read_operand.tolist(), d.read_state.tolist(), strict=True
        ):
            rows.setdefault(node, []).append((slot, state))
        for node, states in rows.items():
            complete = len(states) == self.start[node + 1] - self.start[node]
            known = all(state != Read.UNKNOWN for _, state in states)
            effect = d.node_effect[node] == Effect.EFFECT or kinds[node] is not Kind.ROOT
            if complete and known and not effect and node not in self.regions:
                kinds[node] = Kind.KERNEL
                self.unread[node] = {slot for slot, state in states if state == Read.UNREAD}

    # -- the order of functions --------------------------------------------------------------------------------

    def _callees_first(self) -> tuple[list[int], list[list[int]]]:
        calls_of: list[list[int]] = [[] for _ in self.functions]  # function -> its call nodes
        for node in self.callee:
            function = self.d.function_of(node)
            if function < 0:
                raise InvalidDescriptor(f"call {node} stands in no function")
            calls_of[function].append(node)
        order: list[int] = []
        state = [0] * len(self.functions)  # 0 new, 1 on the stack, 2 done
        for root in range(len(self.functions)):
            stack = [root] if state[root] == 0 else []
            while stack:
                function = stack[-1]
                if state[function] == 0:
                    state[function] = 1
                    for node in calls_of[function]:
                        callee = self.callee[node]
                        if state[callee] == 1:
                            raise InvalidDescriptor("calls form a cycle")
                        if state[callee] == 0:
                            stack.append(callee)
                else:
                    stack.pop()
                    if state[function] == 1:
                        state[function] = 2
                        order.append(function)
        return order, calls_of

    def _contexts(self, callees_first: list[int], calls_of: list[list[int]]) -> list[int]:
        d = self.d
        context = [0] * len(self.functions)
        everything = -1  # all bits
        context[d.entry] = everything
        for function in np.flatnonzero(d.function_public).tolist():
            context[function] = everything
        for function in (*d.reference_function.tolist(), *np.flatnonzero(self.opaque).tolist()):
            context[function] = everything
        for function in reversed(callees_first):
            live = context[function]
            if not live:
                continue
            for node in calls_of[function]:
                callee = self.callee[node]
                context[callee] |= _EFFECT
                if self.kinds[node] is Kind.ROOT:  # it does more than its function says
                    context[callee] = everything
                first = self.first_result[node]
                for k in range(self.results[node]):
                    if self.need[first + k] & live:
                        context[callee] |= self._result_bit(callee, k)
        return context

    def _result_bit(self, function: int, result: int) -> int:
        return 2 << result if self.bits[function] else 2

    # -- one function ------------------------------------------------------------------------------------------

    def _summarise(self, function: int) -> None:
        node = self.functions[function]
        end = self.subtree_end[node]
        region = self.first_region[node]
        last = self.terminator[region]
        returned = (
            self.operands[self.start[last] : self.start[last + 1]]
            if last >= 0 and self.kinds[last] is Kind.TERMINATOR
            else []
        )
        roots = self._roots(node, end)
        self.has_effect[function] = bool(roots) or self.opaque[function]
        one_demand = function == self.d.entry or len(returned) > MAX_RESULT_BITS
        self.bits[function] = 0 if one_demand else len(returned)
        edges = self.start[end] - self.start[node] + end - node
        if not self._propagate(function, node, roots, returned, budget=32 * edges + 1000):
            # Too many demands for too many values: one bit for all results, which each edge carries twice at most.
            for n in range(node, end):
                self.mask[n] = 0
                first = self.first_result[n]
                self.need[first : first + self.results[n]] = [0] * self.results[n]
            for r, owner in enumerate(self.region_owner):
                if node <= owner < end:
                    first, count = self.region_first_argument[r], self.region_arguments[r]
                    self.need[first : first + count] = [0] * count
            self.bits[function] = 0
            self._propagate(function, node, roots, returned, budget=None)
        first, count = self.region_first_argument[region], self.region_arguments[region]
        self.summary[function] = self.need[first : first + count]

    def _roots(self, node: int, end: int) -> list[int]:
        """Nodes of one function with an effect of their own or nested in them."""
        kinds = self.kinds
        roots = [
            n
            for n in range(node + 1, end)
            if kinds[n] is Kind.ROOT
            or kinds[n] is Kind.WHILE
            or (kinds[n] is Kind.CALL and self.has_effect[self.callee[n]])
        ]
        if roots:
            at = np.asarray(roots)
            for n in range(node + 1, end):
                inside = self.subtree_end[n]
                if inside > n + 1 and kinds[n] in (Kind.PURE, Kind.BRANCH):
                    low, high = np.searchsorted(at, (n + 1, inside))
                    if high > low:
                        if kinds[n] is Kind.PURE:
                            kinds[n] = Kind.ROOT
                        roots.append(n)
        return roots

    def _propagate(
        self, function: int, node: int, roots: list[int], returned: list[int], budget: int | None
    ) -> bool:
        """Push demands to everything they depend on. False where the budget of steps ran out."""
        need, mask, operands, start = self.need, self.mask, self.operands, self.start
        kinds, terminator = self.kinds, self.terminator
        values: list[int] = []  # whose demands grew
        nodes: list[int] = []  # whose demands grew, of those that pass them on whole

        def to_value(v: int, demand: int) -> None:
            if need[v] | demand != need[v]:
                need[v] |= demand
                values.append(v)

        def to_node(n: int, demand: int) -> None:
            if mask[n] | demand != mask[n]:
                mask[n] |= demand
                nodes.append(n)

        def to_end(region: int, demand: int) -> None:
            n = terminator[region]
            if n >= 0:
                to_node(n, demand)
                if kinds[n] is not Kind.TERMINATOR:
                    for v in range(self.first_result[n], self.first_result[n] + self.results[n]):
                        to_value(v, demand)

        body = self.first_region[node]
        if self.opaque[function]:
            first = self.region_first_argument[body]
            for v in range(first, first + self.region_arguments[body]):
                to_value(v, _EFFECT)
        if terminator[body] >= 0 and kinds[terminator[body]] is not Kind.TERMINATOR:
            to_end(body, _EFFECT)
        for n in roots:
            kind = kinds[n]
            if kind is Kind.WHILE:
                to_end(self.first_region[n], _EFFECT)
            elif kind is Kind.BRANCH:
                to_value(operands[start[n]], _EFFECT)
            elif kind is Kind.CALL:
                for j, demands in enumerate(self.summary[self.callee[n]]):
                    if demands & _EFFECT:
                        to_value(operands[start[n] + j], _EFFECT)
            else:
                to_node(n, _EFFECT)
        for k, v in enumerate(returned):
            to_value(v, self._result_bit(function, k))

        steps = 0
        while values or nodes:
            if budget is not None and steps > budget:
                return False
            if nodes:
                n = nodes.pop()
                demand = mask[n]
                skip = self.unread.get(n)
                for slot in range(start[n], start[n + 1]):
                    v = operands[slot]
                    if need[v] | demand != need[v] and (skip is None or slot not in skip):
                        need[v] |= demand
                        values.append(v)
                for r in self.regions.get(n, ()):
                    to_end(r, demand)
                steps += 1 + start[n + 1] - start[n]
                continue
            v = values.pop()
            steps += 1
            demand = need[v]
            n = self.value_node[v]
            if n < 0:
                region = self.value_region[v]
                owner = self.region_owner[region]
                k = v - self.region_first_argument[region]
                if owner == node:
                    continue  # an argument of this function: its demands are the summary
                if kinds[owner] is Kind.WHILE:
                    self._carry(owner, k, demand, to_value)
                elif kinds[owner] is Kind.MANUAL:
                    to_value(operands[start[owner] + k], demand)
                continue
            kind = kinds[n]
            k = v - self.first_result[n]
            if kind is Kind.WHILE:
                self._carry(n, k, demand, to_value)
                to_end(self.first_region[n], demand)
            elif kind is Kind.BRANCH:
                to_value(operands[start[n]], demand)
                for r in self.regions[n]:
                    to_value(operands[start[terminator[r]] + k], demand)
            elif kind is Kind.MANUAL:
                to_value(operands[start[terminator[self.first_region[n]]] + k], demand)
            elif kind is Kind.CALL:
                bit = self._result_bit(self.callee[n], k)
                for j, demands in enumerate(self.summary[self.callee[n]]):
                    if demands & bit:
                        to_value(operands[start[n] + j], demand)
                steps += len(self.summary[self.callee[n]])
            else:
                to_node(n, demand)
        return True

    def _carry(self, loop: int, k: int, demand: int, to_value: _Push) -> None:
        """Carried value k of a loop is demanded: its start, and what the body hands to the next round."""
        to_value(self.operands[self.start[loop] + k], demand)
        body = self.terminator[self.regions[loop][1]]
        to_value(self.operands[self.start[body] + k], demand)

    # -- shapes that the per-operand kinds rely on -------------------------------------------------------------

    def _returns(self, region: int) -> int:
        last = self.terminator[region]
        if last < 0 or _kind_of_name(self.d.op(last)) is not Kind.TERMINATOR:
            return -1
        return int(self.start[last + 1] - self.start[last])

    def _well_shaped(self, kind: Kind, n: int) -> bool:
        regions = self.regions.get(n, [])
        operands, results = self.start[n + 1] - self.start[n], self.results[n]
        arguments = [self.region_arguments[r] for r in regions]
        returned = [self._returns(r) for r in regions]
        if kind is Kind.WHILE:  # condition, body
            return arguments == [results, results] == [operands, results] and (
                returned == [1, results]
            )
        if kind is Kind.BRANCH:
            return (bool(regions) and operands == 1 and not any(arguments)) and returned == [
                results
            ] * len(regions)
        return len(regions) == 1 and arguments == [operands] and returned == [results]


def _kind_of_name(name: str) -> Kind:
    if name in ops.PURE:
        return Kind.PURE
    for names, kind in (
        (ops.TERMINATORS, Kind.TERMINATOR),
        (ops.WHILE, Kind.WHILE),
        (ops.BRANCH, Kind.BRANCH),
        (ops.MANUAL, Kind.MANUAL),
        (ops.SCOPES, Kind.SCOPE),
    ):
        if name in names:
            return kind
    return Kind.ROOT
