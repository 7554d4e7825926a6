"""What a Pallas TPU kernel reads: the read set of a `tpu_custom_call`, by the narrow rule.

An operand is unread if its block argument has no use in any function of the Mosaic body, no index map uses it, and
no output aliases it. That is said only of kernels whose every part is recognised (H3, H4):

    operands      = dynamic grid bounds | scalar prefetch | inputs
    kernel args   = grid indices | scalar prefetch | inputs | outputs | scratch       counts must add up
    index maps    = grid indices | scalar prefetch                                    @transform_i of window_params

An operand that stays in HBM, for the kernel to copy from by itself, has an empty window: no index map exists for it,
and each of its copies is a use of its block argument.

No side effect, communication, collective id, semaphore beside scratch, memory colour, or key that isn't listed below.
Everything else reads all of its operands, with the reason. Widen by reviewed steps, each with a kernel that shows it.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from dataclasses import dataclass
from typing import Any

from coldstart.client.jax_internals import ir, tpu_dialect
from coldstart.identity.descriptor import Read

TARGET = "tpu_custom_call"
# stable_mosaic versions whose bodies were looked at.
_VERSIONS = frozenset({11, 15, 17, 18})
_DYNAMIC = -(2**63)  # an iteration bound that is an operand

_CALL_ATTRIBUTES = {
    "api_version",
    "backend_config",
    "call_target_name",
    "called_computations",
    "has_side_effect",
    "kernel_name",
    "mhlo.frontend_attributes",
    "operand_layouts",
    "output_operand_aliases",
    "result_layouts",
}
_CONFIG = {"custom_call_config", "scoped_memory_configs"}
_CALL_CONFIG = {
    "body",
    "cost_estimate",
    "debug_locations",
    "needs_layout_passes",
    "serialization_format",
}
_MODULE_ATTRIBUTES = {"stable_mosaic.version", "sym_name"}
_KERNEL_ATTRIBUTES = {
    "dimension_semantics",
    "function_type",
    "iteration_bounds",
    "scalar_prefetch",
    "scratch_operands",
    "sym_name",
    "tpu.core_type",
    "window_params",
}
_MAP_ATTRIBUTES = {"function_type", "sym_name"}
_WINDOW_KEYS = {"transform_indices", "window_bounds", "pipeline_mode"}
_SPACES = ("vmem", "smem", "any", "hbm")
_UNMOVED = ("#tpu.memory_space<any>", "#tpu.memory_space<hbm>")
_ELEMENT = re.compile(r"(?:tensor|memref)<(?:[\d?]+x)*([^,<>]+)")


@dataclass(frozen=True, slots=True)
class ReadSet:
    """Per operand: what the kernel does with it and why we say so."""

    states: tuple[Read, ...]
    reasons: tuple[str, ...]
    analysed: bool  # False: all read, and the kernel may have effects


class _Unrecognised(Exception):
    """Something about a kernel that the narrow rule doesn't know; its text is the reason."""


@dataclass(frozen=True, slots=True)
class _Function:
    """One kernel function of a body: its arguments as (type, number of uses)."""

    grid: int
    dynamic: int  # grid bounds that are operands
    prefetch: int
    scratch: int
    windows: int | None
    arguments: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Body:
    kernels: tuple[_Function, ...]
    maps: tuple[tuple[int, ...], ...]  # uses of the arguments of each index map


def names_of(op: Any) -> dict[str, Any]:
    """An op's attributes by name; the iterator's items differ between versions."""
    attributes = op.attributes
    named = {}
    for item in attributes:
        if isinstance(item, str):
            named[item] = attributes[item]
        else:
            named[item.name] = item.attr
    return named


def is_kernel(op: Any) -> bool:
    """True for the call of a Pallas TPU kernel."""
    return bool(
        op.name == "stablehlo.custom_call"
        and ir.StringAttr(op.attributes["call_target_name"]).value == TARGET
    )


def dictionary(attribute: Any) -> dict[str, Any]:
    """A dictionary attribute's entries by name."""
    entries: Any = ir.DictAttr(attribute)
    return {item.name: item.attr for item in entries}


def read_set(op: Any) -> ReadSet:
    """The read set of one `tpu_custom_call`."""
    operands = len(op.operands)
    try:
        return _analyse(op, operands)
    except _Unrecognised as exc:
        reason = f"counts as read: {exc}"
        return ReadSet((Read.UNKNOWN,) * operands, (reason,) * operands, analysed=False)


def config_of(attributes: dict[str, Any]) -> dict[str, Any]:
    """The parsed backend config. Raises ValueError where it is not the JSON that Pallas writes."""
    config = attributes.get("backend_config")
    if not isinstance(config, ir.StringAttr):
        raise ValueError("backend_config is no text")
    parsed = json.loads(config.value)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("custom_call_config"), dict):
        raise ValueError("backend_config has no custom_call_config")
    return parsed


def _known(what: str, keys: Any, allowed: set[str]) -> None:
    unknown = sorted(set(keys) - allowed)
    if unknown:
        raise _Unrecognised(f"{what} {', '.join(unknown)}")


def _analyse(op: Any, operands: int) -> ReadSet:
    attributes = names_of(op)
    _known("the call has", attributes, _CALL_ATTRIBUTES)
    effect = attributes.get("has_side_effect")
    if effect is not None and ir.BoolAttr(effect).value:
        raise _Unrecognised("the kernel has a side effect")
    called = attributes.get("called_computations")
    if called is not None and len(ir.ArrayAttr(called)):
        raise _Unrecognised("the call names functions")
    try:
        config = config_of(attributes)
        call = config["custom_call_config"]
        _known("its config holds", config, _CONFIG)
        _known("its config holds", call, _CALL_CONFIG)
        if call.get("serialization_format") != 1:
            raise _Unrecognised(f"serialization format {call.get('serialization_format')}")
        body = _read_body(call["body"])
        if isinstance(body, str):
            raise _Unrecognised(body)
    except (ValueError, KeyError, TypeError) as exc:
        raise _Unrecognised(f"its config is not what Pallas writes ({exc})") from exc
    aliased = _aliased(attributes.get("output_operand_aliases"))
    types = [str(value.type) for value in op.operands]
    results = len(op.results)
    read: dict[int, str] = {}
    for kernel in body.kernels:
        _check_counts(kernel, body.maps, operands, results)
        _uses(kernel, body.maps, types, read)
    for index in aliased:
        if index >= operands:
            raise _Unrecognised("an alias of an operand that isn't there")
        read[index] = "an output aliases it"
    unread = "no function, index map or alias of the kernel touches it"
    return ReadSet(
        tuple(Read.READ if k in read else Read.UNREAD for k in range(operands)),
        tuple(read.get(k, unread) for k in range(operands)),
        analysed=True,
    )


def _check_counts(
    kernel: _Function, maps: tuple[tuple[int, ...], ...], operands: int, results: int
) -> None:
    inputs = operands - kernel.dynamic - kernel.prefetch
    expected = kernel.grid + kernel.prefetch + inputs + results + kernel.scratch
    if inputs < 0 or len(kernel.arguments) != expected:
        raise _Unrecognised(
            f"the kernel has {len(kernel.arguments)} arguments where {expected} are expected"
        )
    if kernel.windows is not None and kernel.windows != inputs + results:
        raise _Unrecognised(f"{kernel.windows} windows for {inputs} inputs, {results} outputs")
    for uses in maps:
        if len(uses) != kernel.grid + kernel.prefetch:
            raise _Unrecognised(f"an index map has {len(uses)} arguments")


def _uses(
    kernel: _Function, maps: tuple[tuple[int, ...], ...], types: list[str], read: dict[int, str]
) -> None:
    """Note in `read` which operands this kernel function or its index maps use."""
    outside_scratch = kernel.arguments[kernel.grid : len(kernel.arguments) - kernel.scratch]
    for text, _ in outside_scratch:
        if "semaphore" in text or not any(f"#tpu.memory_space<{s}>" in text for s in _SPACES):
            raise _Unrecognised(f"an operand or result is a {text}")
    for k in range(kernel.dynamic):
        read[k] = "it bounds the grid"
    for k in range(kernel.dynamic, len(types)):
        argument = kernel.grid + k - kernel.dynamic
        text, uses = kernel.arguments[argument]
        given, inside = _ELEMENT.match(types[k]), _ELEMENT.match(text)
        if given is None or inside is None or (given[1] != inside[1] and given[1] != "i1"):
            raise _Unrecognised(f"operand {k} is {types[k]} outside and {text} inside")
        if uses:
            read[k] = f"the kernel uses it ({uses} uses)"
        elif k - kernel.dynamic < kernel.prefetch:
            mapped = sum(map_uses[argument] for map_uses in maps)
            if mapped:
                read[k] = f"an index map uses it ({mapped} uses)"


def _aliased(attribute: Any) -> set[int]:
    if attribute is None:
        return set()
    aliases = ir.ArrayAttr(attribute)
    found = [re.findall(r"operand_index = (\d+)", str(alias)) for alias in aliases]
    if any(len(numbers) != 1 for numbers in found):
        raise _Unrecognised("aliases that can't be read")
    return {int(numbers[0]) for numbers in found}


@functools.lru_cache(maxsize=256)
def _read_body(body: str) -> _Body | str:
    """The functions of a Mosaic body, or why they can't be told. Cached: the layers of a model share one body."""
    try:
        return _parse_body(body)
    except _Unrecognised as exc:
        return str(exc)
    except (ValueError, KeyError, TypeError) as exc:
        return f"its body is not what Pallas writes ({type(exc).__name__})"


def _parse_body(body: str) -> _Body:
    with body_context():
        try:
            module = ir.Module.parse(base64.b64decode(body, validate=True))
        except (binascii.Error, ir.MLIRError) as exc:
            raise _Unrecognised(f"the body can't be parsed ({type(exc).__name__})") from exc
        attributes = names_of(module.operation)
        _known("the body has", attributes, _MODULE_ATTRIBUTES)
        version = attributes.get("stable_mosaic.version")
        if version is None or ir.IntegerAttr(version).value not in _VERSIONS:
            raise _Unrecognised(f"Mosaic version {version}")
        kernels: list[_Function] = []
        maps: dict[str, tuple[int, ...]] = {}
        mapped: set[str] = set()
        for op in module.body.operations:
            if op.operation.name != "stable_mosaic.func.func":
                raise _Unrecognised(f"the body holds {op.operation.name}")
            named = names_of(op)
            if len(op.regions) != 1 or len(op.regions[0].blocks) != 1:
                raise _Unrecognised("a function of the body has several blocks")
            arguments = list(op.regions[0].blocks[0].arguments)
            uses = [sum(1 for _ in argument.uses) for argument in arguments]
            name = str(ir.StringAttr(named["sym_name"]).value)
            if "tpu.core_type" in named:
                texts = tuple(str(argument.type) for argument in arguments)
                kernel, symbols = _kernel(named, texts, uses)
                kernels.append(kernel)
                mapped |= symbols
            else:
                _known("an index map has", named, _MAP_ATTRIBUTES)
                maps[name] = tuple(uses)
        if len(kernels) != 1:
            raise _Unrecognised(f"the body has {len(kernels)} kernel functions")
        if set(maps) != mapped:
            raise _Unrecognised("a function that is neither kernel nor index map, or a missing one")
        return _Body(tuple(kernels), tuple(maps.values()))


def _kernel(
    named: dict[str, Any], texts: tuple[str, ...], uses: list[int]
) -> tuple[_Function, set[str]]:
    _known("the kernel function has", named, _KERNEL_ATTRIBUTES)
    if str(named["tpu.core_type"]) != "#tpu.core_type<tc>":
        raise _Unrecognised(f"it runs on {named['tpu.core_type']}")
    bounds = (
        list(ir.DenseI64ArrayAttr(named["iteration_bounds"])) if "iteration_bounds" in named else []
    )
    windows, symbols = None, set()
    prefetch = int(ir.IntegerAttr(named["scalar_prefetch"]).value)
    if "window_params" in named:
        windows = 0
        for window in ir.ArrayAttr(named["window_params"]):
            argument = len(bounds) + prefetch + windows
            windows += 1
            entries = dictionary(window)
            _known("a window has", entries, _WINDOW_KEYS)
            if not entries and any(s in "".join(texts[argument : argument + 1]) for s in _UNMOVED):
                continue
            symbol = entries.get("transform_indices")
            if not isinstance(symbol, ir.FlatSymbolRefAttr):
                raise _Unrecognised("a window without a function for its index map")
            symbols.add(str(symbol.value))
    function = _Function(
        grid=len(bounds),
        dynamic=sum(bound == _DYNAMIC for bound in bounds),
        prefetch=prefetch,
        scratch=int(ir.IntegerAttr(named["scratch_operands"]).value),
        windows=windows,
        arguments=tuple(zip(texts, uses, strict=True)),
    )
    if len(texts) < function.grid + function.prefetch + function.scratch:
        raise _Unrecognised("fewer arguments than grid, prefetch and scratch need")
    return function, symbols


def body_context() -> Any:
    """A fresh context in which Mosaic bodies parse."""
    context = ir.Context()
    tpu_dialect.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context
