"""A lowered module → GraphDescriptor, and rewrites applied back to a clone of it.

Every op, attribute, type and region of the module stands in the descriptor, in the order of a pre-order walk, so that
a position (function, ordinal) means the same op here and in the daemon. The descriptor steers and explains; it never
stands in for the module: the key hashes the module itself (H1).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from coldstart.client import mosaic
from coldstart.client.confirm import Confirmation
from coldstart.client.jax_internals import ir
from coldstart.errors import InvalidDescriptor
from coldstart.identity.descriptor import DescriptorBuilder, Effect, GraphDescriptor, Read
from coldstart.identity.rewrite import Rewrite

EXTRACTOR_VERSION = 2
FRAMEWORK = "jax"

_MAX_DEPTH = 128
_LONG_TEXT = 1024  # longer attribute values travel as digests
_MANY_ELEMENTS = 64  # larger constants are digested from their bytes where they have any
_SYMBOL = re.compile(r'@(?:"((?:[^"\\]|\\.)*)"|([A-Za-z_$.][\w$.\-]*))')
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2})|\\(.)")


def describe(module: Any) -> GraphDescriptor:
    """The descriptor of a lowered module.

    Raises InvalidDescriptor for a module that descriptors can't say (several blocks in a region, a symbol that
    resolves to nothing): such a program is not rewritten.
    """
    return _Extractor(module).run()


def may_rewrite(module: Any) -> bool:
    """False where no rule can find anything: no slice with an offset and no dynamic slice."""
    found = False

    def visit(op: Any) -> Any:
        nonlocal found
        name = op.name
        if name == "stablehlo.dynamic_slice" or (
            name == "stablehlo.slice" and any(ir.DenseI64ArrayAttr(op.attributes["start_indices"]))
        ):
            found = True
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


class _Extractor:
    def __init__(self, module: Any) -> None:
        self.module = module
        top = module.operation
        name = top.attributes.get("sym_name", None)
        self.builder = DescriptorBuilder(FRAMEWORK, str(name.value) if name is not None else "")
        # MLIR attributes and types are unique within a context, so their identity is their value.
        self.attributes: dict[Any, tuple[int, tuple[str, ...]]] = {}
        self.types: dict[Any, int] = {}
        self.values: dict[Any, int] = {}
        self.functions: dict[str, int] = {}
        self.symbols: set[str] = set()
        self.pending: list[tuple[int, str, bool]] = []  # node, function name, is a call

    def run(self) -> GraphDescriptor:
        top = self.module.operation
        self._collect_symbols(top)
        builder = self.builder
        node, _ = builder.node(builder.string(top.name), (), (), self._attributes(top, -1))
        region, _ = builder.open_region(node)
        entry = -1
        for op in _only_block(top.regions[0]).operations:
            op = op.operation
            if op.name == "func.func":
                index = self._function(op)
                if _text(op.attributes["sym_name"]) == "main":
                    entry = index
            else:
                self._op(op, 1)
        builder.close_region(region)
        if entry < 0:
            raise InvalidDescriptor("the module has no function called main")
        for node, name, is_call in self.pending:
            if name in self.functions:
                (builder.call if is_call else builder.reference)(node, self.functions[name])
            elif is_call or name not in self.symbols:
                raise InvalidDescriptor(
                    f"an attribute names @{name}, which the module doesn't hold"
                )
        return builder.build(entry=entry)

    def _collect_symbols(self, top: Any) -> None:
        for op in _only_block(top.regions[0]).operations:
            if "sym_name" in op.operation.attributes:
                self.symbols.add(_text(op.operation.attributes["sym_name"]))

    def _function(self, op: Any) -> int:
        builder = self.builder
        name = _text(op.attributes["sym_name"])
        visibility = op.attributes.get("sym_visibility", None)
        private = visibility is not None and _text(visibility) == "private"
        node, _ = builder.node(
            builder.string(op.name), (), (), self._attributes(op, len(builder._node_op))
        )
        index = builder.function(node, name, public=not private)
        self.functions[name] = index
        region = op.regions[0]
        if len(region.blocks) == 0:
            raise InvalidDescriptor(f"function @{name} has no body")
        arguments = list(_only_block(region).arguments)
        facts = _argument_facts(op, len(arguments))
        self._region(
            region, node, 1, [self.builder.string(f.get("sdy.sharding", "")) for f in facts]
        )
        if name == "main":
            for fact in facts:
                alias = re.match(r"-?\d+", fact.get("tf.aliasing_output", "-1"))
                donor = "jax.buffer_donor" in fact
                builder.input(alias_output=int(alias[0]) if alias else -1, donated=donor)
        return index

    def _region(self, region: Any, owner: int, depth: int, shardings: Sequence[int] = ()) -> None:
        if depth > _MAX_DEPTH:
            raise InvalidDescriptor(f"regions nest deeper than {_MAX_DEPTH}")
        builder = self.builder
        block = _only_block(region)
        arguments = list(block.arguments)
        index, first = builder.open_region(
            owner, [self._type(argument.type) for argument in arguments], shardings
        )
        for k, argument in enumerate(arguments):
            self.values[argument] = first + k
        for op in block.operations:
            self._op(op.operation, depth + 1)
        builder.close_region(index)

    def _op(self, op: Any, depth: int) -> None:
        builder, values = self.builder, self.values
        name = op.name
        at = len(builder._node_op)
        attributes = self._attributes(op, at, is_call=name == "func.call")
        results = list(op.results)
        effect, reads, sharding = Effect.BY_NAME, None, 0
        if name == "stablehlo.custom_call":
            effect, reads = _custom_call(op)
        if results and "sdy.sharding" in op.attributes:
            sharding = self._attribute(op.attributes["sdy.sharding"])[0]
        node, first = builder.node(
            builder.string(name),
            [values[operand] for operand in op.operands],
            [self._type(result.type) for result in results],
            attributes,
            effect=effect,
            sharding=sharding,
        )
        for k, result in enumerate(results):
            values[result] = first + k
        if reads is not None:
            for k, (state, reason) in enumerate(zip(reads.states, reads.reasons, strict=True)):
                builder.read(node, k, state, reason)
        for region in op.regions:
            if len(region.blocks):
                self._region(region, node, depth)

    def _attributes(self, op: Any, node: int, *, is_call: bool = False) -> list[tuple[int, int]]:
        string, named = self.builder.string, []
        for name, attribute in mosaic.names_of(op).items():
            index, mentions = self._attribute(attribute)
            named.append((string(name), index))
            if is_call and name == "callee":
                self.pending.append((node, str(ir.FlatSymbolRefAttr(attribute).value), True))
            elif name not in ("sym_name", "call_target_name"):
                for symbol in mentions:
                    self.pending.append((node, symbol, False))
        return named

    def _attribute(self, attribute: Any) -> tuple[int, tuple[str, ...]]:
        known = self.attributes.get(attribute)
        if known is None:
            text = _attribute_text(attribute)
            mentions: tuple[str, ...] = ()
            if "@" in text and not isinstance(attribute, ir.StringAttr):
                mentions = symbols_in(text)
            if len(text) > _LONG_TEXT:
                digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
                text = f"sha256:{digest}:{len(text)}"
            known = self.attributes[attribute] = (self.builder.string(text), mentions)
        return known

    def _type(self, mlir_type: Any) -> int:
        index = self.types.get(mlir_type)
        if index is None:
            index = self.types[mlir_type] = self.builder.string(str(mlir_type))
        return index


def _custom_call(op: Any) -> tuple[Effect, mosaic.ReadSet | None]:
    if "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value:
        effect = Effect.EFFECT
    else:
        effect = Effect.BY_NAME
    if mosaic.is_kernel(op):
        return effect, mosaic.read_set(op)
    return effect, None


def _argument_facts(function: Any, count: int) -> list[dict[str, str]]:
    if "arg_attrs" not in function.attributes:
        return [{} for _ in range(count)]
    return [
        {name: str(value) for name, value in mosaic.dictionary(entry).items()}
        for entry in ir.ArrayAttr(function.attributes["arg_attrs"])
    ]


def _only_block(region: Any) -> Any:
    blocks = region.blocks
    if len(blocks) != 1:
        raise InvalidDescriptor(f"a region has {len(blocks)} blocks; descriptors know one")
    return blocks[0]


def _text(attribute: Any) -> str:
    return str(ir.StringAttr(attribute).value)


def symbols_in(text: str) -> tuple[str, ...]:
    """The symbols that an attribute's print names, in order."""
    if "@" not in text:
        return ()
    return tuple(_unescape(m[1]) if m[1] is not None else m[2] for m in _SYMBOL.finditer(text))


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else m[2], text)


def _attribute_text(attribute: Any) -> str:
    """An attribute's full text; of a large constant a digest over all of its bytes (never an elided print)."""
    many = isinstance(attribute, ir.DenseElementsAttr) and not attribute.is_splat
    if many and len(attribute) > _MANY_ELEMENTS:
        try:
            view = memoryview(attribute)
            data = view.cast("B") if view.c_contiguous and view.ndim else view.tobytes()
            digest = hashlib.sha256(data).hexdigest()
            return f"sha256:{digest}:{view.nbytes} : {attribute.type}"
        except (BufferError, TypeError, ValueError):
            pass  # bf16, f8, i4, bool: no buffer; their text holds every element
    return str(attribute)


# --- rewrites ------------------------------------------------------------------------------------


def apply_rewrites(clone: Any, rewrites: Iterable[Rewrite]) -> tuple[Rewrite, ...]:
    """Make the edits on a clone of the module, in place, and verify it. Returns those that were made.

    Each edit is checked against what the rules may do at all (offsets and scalar constants to zero, same sizes and
    types), and its op's results are confirmed dead on the module itself, whoever sent it. What can't be confirmed is
    left out: rules don't see each other's edits, so the others stand. Raises InvalidDescriptor where none can be made,
    or for what no rule would say; the clone is of no use then and the program is compiled as it is.
    """
    wanted: dict[str, dict[int, list[Rewrite]]] = {}
    for rewrite in rewrites:
        wanted.setdefault(rewrite.function, {}).setdefault(rewrite.op, []).append(rewrite)
    if not wanted:
        return ()
    made: list[Rewrite] = []
    refused: list[InvalidDescriptor] = []
    confirmation = Confirmation(clone)
    with clone.context, ir.Location.unknown():
        for function in _only_block(clone.operation.regions[0]).operations:
            function = function.operation
            if function.name != "func.func":
                continue
            edits = wanted.pop(_text(function.attributes["sym_name"]), None)
            if edits is not None:
                made += _edit_function(function, edits, confirmation, refused)
        if wanted:
            raise InvalidDescriptor(f"rewrites name functions that aren't there: {sorted(wanted)}")
        if not made:
            raise refused[0]
        try:
            verified = clone.operation.verify()
        except ir.MLIRError as exc:
            raise InvalidDescriptor("the rewritten module doesn't verify") from exc
        if not verified:
            raise InvalidDescriptor("the rewritten module doesn't verify")
    return tuple(made)


def _edit_function(
    function: Any,
    edits: dict[int, list[Rewrite]],
    confirmation: Confirmation,
    refused: list[InvalidDescriptor],
) -> list[Rewrite]:
    found: list[tuple[Any, list[Rewrite]]] = []
    ordinal = -1  # the function itself is visited first

    def visit(op: Any) -> Any:
        nonlocal ordinal
        if ordinal in edits:
            found.append((op, edits[ordinal]))
        ordinal += 1
        return ir.WalkResult.ADVANCE

    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    if len(found) != len(edits):
        raise InvalidDescriptor("rewrites name ops that the function doesn't have")
    made: list[Rewrite] = []
    for op, of_op in found:
        try:
            confirmation.dead(op)
        except InvalidDescriptor as exc:
            refused.append(exc)
            continue
        _edit_op(op, of_op)
        made += of_op
    return made


def _edit_op(op: Any, rewrites: list[Rewrite]) -> None:
    new = {}
    for rewrite in rewrites:
        try:
            new[rewrite.attribute] = ir.Attribute.parse(rewrite.value)
        except ir.MLIRError as exc:
            raise InvalidDescriptor(f"{rewrite.value!r} is no attribute") from exc
    if not _legal(op, new):
        raise InvalidDescriptor(f"no rule edits {', '.join(sorted(new))} of {op.name} like this")
    for name, attribute in new.items():
        op.attributes[name] = attribute


def _legal(op: Any, new: dict[str, Any]) -> bool:
    try:
        if op.name == "stablehlo.slice" and set(new) == {"start_indices", "limit_indices"}:
            old_start = list(ir.DenseI64ArrayAttr(op.attributes["start_indices"]))
            old_limit = list(ir.DenseI64ArrayAttr(op.attributes["limit_indices"]))
            start = list(ir.DenseI64ArrayAttr(new["start_indices"]))
            limit = list(ir.DenseI64ArrayAttr(new["limit_indices"]))
            cut = [stop - begin for begin, stop in zip(old_start, old_limit, strict=True)]
            return start == [0] * len(old_start) and limit == cut
        if op.name == "stablehlo.constant" and set(new) == {"value"}:
            attribute = new["value"]
            return bool(
                attribute.type == op.attributes["value"].type
                and re.fullmatch(r"dense<0> : tensor<u?i\d+>", str(attribute))
            )
    except ValueError:  # an attribute of another kind
        return False
    return False


def unread_operands(descriptor: GraphDescriptor) -> int:
    """How many kernel operands count as unread; for records and tests."""
    return int((descriptor.read_state == Read.UNREAD).sum())
