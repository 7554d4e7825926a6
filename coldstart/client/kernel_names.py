"""Names and debug locations of Pallas TPU kernels, taken out for the hash.

A kernel is named after its Python function in `kernel_name`, in the Mosaic body's kernel function and, on newer stacks,
in the body's module; locations stand in the body or beside it. The body is parsed, stripped and written again; a body
or configuration that isn't recognised stays byte for byte.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import re
from typing import Any

from coldstart.client.jax_internals import ir, strip_locations
from coldstart.client.mosaic import body_context, dictionary, names_of

_NAME = "kernel"
_MENTION = re.compile(r'@("(?:[^"\\]|\\.)*"|[\w$.\-]+)')
# Keys of the JSON text `kernel_metadata` that say nothing to a compiler.
_METADATA = frozenset({"mesh_axes"})


def normalise(op: Any, *, locations: bool, names: bool) -> bool:
    """Edit one `tpu_custom_call`. False where it was left as it is."""
    attributes = names_of(op)
    try:
        config = str(ir.StringAttr(attributes["backend_config"]).value)
        parsed = json.loads(config, object_pairs_hook=_no_duplicates)
        call = parsed["custom_call_config"]
        call["body"] = _normal_body(call["body"], locations, names)
    except (ValueError, KeyError, TypeError):
        return False
    if locations:
        call.pop("debug_locations", None)
    text = json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    op.attributes["backend_config"] = ir.StringAttr.get(text)
    if names:
        if "kernel_name" in attributes:
            op.attributes["kernel_name"] = ir.StringAttr.get(_NAME)
        if "mhlo.frontend_attributes" in attributes:
            frontend = dictionary(attributes["mhlo.frontend_attributes"])
            if "kernel_metadata" in frontend:
                frontend["kernel_metadata"] = _metadata(frontend["kernel_metadata"])
                op.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(frontend)
    return True


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        raise ValueError("a key stands twice")
    return parsed


def _metadata(attribute: Any) -> Any:
    try:
        parsed = json.loads(ir.StringAttr(attribute).value, object_pairs_hook=_no_duplicates)
    except ValueError:
        return attribute
    if not isinstance(parsed, dict) or not parsed.keys() & _METADATA:
        return attribute
    kept = {key: value for key, value in parsed.items() if key not in _METADATA}
    return ir.StringAttr.get(json.dumps(kept, sort_keys=True, separators=(",", ":")))


@functools.lru_cache(maxsize=256)
def _normal_body(body: str, locations: bool, names: bool) -> str:
    """A Mosaic body without locations and names. Raises ValueError where it can't be parsed."""
    context = body_context()
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(base64.b64decode(body, validate=True))
        except ir.MLIRError as exc:
            raise ValueError("not a Mosaic body") from exc
        if locations:
            strip_locations(module.operation)
        if names:
            _rename(module)
        out = io.BytesIO()
        # Version 0 is what JAX writes; the default would tie the bytes to the library's newest format.
        module.operation.write_bytecode(out, desired_version=0)
    return base64.b64encode(out.getvalue()).decode()


def _rename(module: Any) -> None:
    # In the generic form a definition's own name is an attribute; what stands after an @ is a mention.
    text = str(module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False))
    mentioned = {name.strip('"') for name in _MENTION.findall(text)}
    functions = [op.operation for op in module.body.operations]
    kernels = [op for op in functions if "tpu.core_type" in op.attributes]
    taken = {
        str(ir.StringAttr(op.attributes["sym_name"]).value) for op in functions if op not in kernels
    }
    for k, op in enumerate(kernels):
        old = str(ir.StringAttr(op.attributes["sym_name"]).value)
        new = _NAME if len(kernels) == 1 else f"{_NAME}_{k}"
        if old not in mentioned and new not in taken:
            op.attributes["sym_name"] = ir.StringAttr.get(new)
    if "sym_name" in module.operation.attributes:
        module.operation.attributes["sym_name"] = ir.StringAttr.get(_NAME)


@functools.lru_cache(maxsize=256)
def strings_of(body: str) -> frozenset[str]:
    """Every quoted text of a Mosaic body's print; for those who must know whether a name occurs in it."""
    with body_context():
        try:
            module = ir.Module.parse(base64.b64decode(body, validate=True))
        except ir.MLIRError as exc:
            raise ValueError("not a Mosaic body") from exc
        text = str(module.operation.get_asm(enable_debug_info=False))
    return frozenset(re.findall(r'"((?:[^"\\]|\\.)*)"', text))
