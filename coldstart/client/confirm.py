"""A second opinion on every edit: does anything read this value? Forward, on the module itself.

Rewrites are decided backward, on a descriptor, maybe by somebody else. If the extractor forgot a use, or a daemon lies,
the edit would change what the program computes, and hashing what is compiled would not notice. So before an edit each
use of the edited op's results is followed through the module until it ends unread. What reaches an output, an effect, a
loop's condition or an op that isn't known refuses the edit: the program is then compiled as it is.
"""

from __future__ import annotations

from typing import Any

from coldstart.client import mosaic
from coldstart.client.jax_internals import ir
from coldstart.errors import InvalidDescriptor
from coldstart.identity import ops
from coldstart.identity.descriptor import Read

# Ways that a value travels are told apart by the calls they went in through, up to these; then the edit is refused.
MAX_CALLS = 64
MAX_STEPS = 100_000

Calls = tuple[
    Any, ...
]  # of each call that was entered and not left, its first result (None: it has none)
Step = tuple[Any, Calls]


class Confirmation:
    """Checks edits of one module. It may refuse what is dead; never the other way."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._functions: dict[str, Any] = {}
        self._sites: dict[str, list[Any]] = {}
        self._open: set[str] = set()  # functions that somebody else may call
        self._surveyed = False

    def dead(self, op: Any) -> None:
        """Raises InvalidDescriptor where something may read a result of `op`."""
        steps: list[Step] = [(value, ()) for value in op.results]
        seen = set(steps)
        while steps:
            value, calls = steps.pop()
            for use in value.uses:
                for step in self._follow(use.owner.operation, use.operand_number, calls):
                    if step not in seen:
                        seen.add(step)
                        steps.append(step)
            if len(seen) > MAX_STEPS:
                raise InvalidDescriptor("a value that is to be edited travels too far to follow")

    def _follow(self, op: Any, k: int, calls: Calls) -> list[Step]:
        """The values through which operand `k` of `op` may be seen."""
        name = op.name
        if name in ops.TERMINATORS:
            return self._returned(op, k, calls)
        if name == "func.call":
            self._survey()
            callee = self._functions[str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)]
            if len(calls) == MAX_CALLS:
                raise InvalidDescriptor("a value that is to be edited goes through too many calls")
            site = op.results[0] if len(op.results) else None
            return [(_argument(callee.regions[0], k), (*calls, site))]
        return [(value, calls) for value in self._seen_through(op, k)]

    def _seen_through(self, op: Any, k: int) -> list[Any]:
        name = op.name
        if name in ops.WHILE:
            return [op.results[k], *(_argument(region, k) for region in op.regions)]
        if name in ops.MANUAL:
            return [_argument(op.regions[0], k)]
        if mosaic.is_kernel(op):
            reads = mosaic.read_set(op)
            if reads.analysed:
                return [] if reads.states[k] is Read.UNREAD else list(op.results)
        if (name in ops.PURE or name in ops.BRANCH) and all(map(_is_pure, op.regions)):
            return list(op.results)
        raise InvalidDescriptor(f"{name} may read a value that is to be edited")

    def _returned(self, op: Any, k: int, calls: Calls) -> list[Step]:
        parent = op.parent.operation
        if parent.name == "func.func":
            if calls:  # it came in through this call, so it leaves there
                site = calls[-1]
                return [] if site is None else [(site.owner.results[k], calls[:-1])]
            name = str(ir.StringAttr(parent.attributes["sym_name"]).value)
            return [(value, ()) for value in self._call_results(name, k)]
        if parent.name in ops.WHILE:
            if op.block == parent.regions[0].blocks[0]:
                raise InvalidDescriptor("a loop's condition reads a value that is to be edited")
            carried = [parent.results[k], *(_argument(region, k) for region in parent.regions)]
            return [(value, calls) for value in carried]
        if parent.name in ops.BRANCH or parent.name in ops.MANUAL:
            return [(parent.results[k], calls)]
        if parent.name in ops.PURE:
            return [(value, calls) for value in parent.results]
        raise InvalidDescriptor(f"{parent.name} may read a value that is to be edited")

    def _call_results(self, name: str, k: int) -> list[Any]:
        self._survey()
        if name in self._open:
            raise InvalidDescriptor(f"@{name} returns a value that is to be edited")
        return [site.results[k] for site in self._sites.get(name, ())]

    def _survey(self) -> None:
        """Functions, their call sites, and which of them are public or named by attributes."""
        if self._surveyed:
            return
        self._surveyed = True
        texts: dict[Any, tuple[str, ...]] = {}
        from coldstart.client.jax_module import symbols_in

        def visit(op: Any) -> Any:
            if op.name == "func.func":
                name = str(ir.StringAttr(op.attributes["sym_name"]).value)
                self._functions[name] = op
                visibility = op.attributes.get("sym_visibility", None)
                if visibility is None or ir.StringAttr(visibility).value != "private":
                    self._open.add(name)
            for key, attribute in mosaic.names_of(op).items():
                if op.name == "func.call" and key == "callee":
                    name = str(ir.FlatSymbolRefAttr(attribute).value)
                    self._sites.setdefault(name, []).append(op)
                    continue
                if isinstance(attribute, (ir.StringAttr, ir.DenseElementsAttr)):
                    continue
                mentioned = texts.get(attribute)
                if mentioned is None:
                    mentioned = texts[attribute] = symbols_in(str(attribute))
                self._open.update(mentioned)
            return ir.WalkResult.ADVANCE

        self._module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)


def _argument(region: Any, k: int) -> Any:
    return region.blocks[0].arguments[k]


def _is_pure(region: Any) -> bool:
    return all(
        (op.operation.name in ops.PURE or op.operation.name in ops.TERMINATORS)
        and all(map(_is_pure, op.operation.regions))
        for block in region.blocks
        for op in block.operations
    )
