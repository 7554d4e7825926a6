"""What the compiler ignores, taken out of a clone of the module, for the hash only.

`normal_form` edits the clone it is given and returns the bytecode to hash; the clone is of no other use afterwards.
The module that is compiled keeps its names (profilers match by them, H17). Which facts go, and why each may, is listed
in `coldstart/identity/rules/normal_form.py`. Where something isn't recognised it stays: a miss, never a wrong hit.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coldstart.client import kernel_names, mesh_names, symbol_names
from coldstart.client.jax_internals import ir, strip_locations
from coldstart.client.mosaic import dictionary, is_kernel, names_of
from coldstart.identity import rules
from coldstart.identity.rules import normal_form as listed

# Names of arguments and outputs for people.
_FOR_PEOPLE = frozenset({"jax.result_info", "jax.arg_info"})


@dataclass(slots=True)
class Mention:
    """An attribute that holds text or names a symbol; `text` is its print."""

    op: Any
    name: str
    attribute: Any
    text: str


@dataclass(slots=True)
class Survey:
    """What one walk over the module found."""

    top: list[Any]  # ops directly in the module
    calls: list[tuple[str, str, Any]]  # calling function, callee, op
    mentions: list[tuple[str, Mention]]  # enclosing function ("" outside), mention
    kernels: list[Any]


def normal_form(
    clone: Any, *, one_device: bool, rules_off: Iterable[str] = ()
) -> tuple[bytes, tuple[str, ...]]:
    """The bytecode to hash, and notes on what was left out.

    Args:
        clone: a clone of the module that is compiled; it is used up.
        one_device: the program has one partition and one replica.
        rules_off: names of rules that must not be used.
    """
    off = rules.known(rules_off)
    on = {rule.name for rule in rules.NORMAL_FORM if rule.name not in off}
    notes: list[str] = []
    module = clone.operation
    with clone.context, ir.Location.unknown():
        if listed.LOCATIONS.name in on:
            strip_locations(module)
            notes.append(listed.LOCATIONS.name)
        if listed.MODULE_NAME.name in on and "sym_name" in module.attributes:
            module.attributes["sym_name"] = ir.StringAttr.get("module")
            notes.append(listed.MODULE_NAME.name)
        survey = _survey(module)
        strip_names = listed.KERNEL_NAMES.name in on
        without_locations = listed.LOCATIONS.name in on
        kept = 0
        for op in survey.kernels:
            kept += not kernel_names.normalise(op, locations=without_locations, names=strip_names)
        if survey.kernels and strip_names:
            notes.append(f"{listed.KERNEL_NAMES.name} ({len(survey.kernels) - kept} kernels)")
        drop = _FOR_PEOPLE if listed.RESULT_INFO.name in on else frozenset()
        small = (
            mesh_names.meshes_of_one(survey.top)
            if (one_device and listed.ONE_DEVICE.name in on)
            else frozenset()
        )
        _edit_function_attributes(survey.top, drop, small)
        if drop:
            notes.append(listed.RESULT_INFO.name)
        survey = _survey(module)
        if small:
            mesh_names.drop_one_device(survey, small)
            survey = _survey(module)
            notes.append(f"{listed.ONE_DEVICE.name} ({len(small)} meshes of one)")
        names, order = listed.SYMBOL_NAMES.name in on, listed.SYMBOL_ORDER.name in on
        if names or order:
            notes.extend(symbol_names.normalise(survey, names=names, order=order))
        if listed.MESH_AXES.name in on:
            note = mesh_names.rename_axes(survey)
            if note:
                notes.append(f"{listed.MESH_AXES.name} ({note})")
        if not module.verify():
            raise ValueError("a module in normal form doesn't verify")
        out = io.BytesIO()
        module.write_bytecode(out)
    return out.getvalue(), tuple(notes)


def _survey(module: Any) -> Survey:
    survey = Survey([], [], [], [])
    texts: dict[Any, str] = {}
    current = [""]

    def visit(op: Any) -> Any:
        name = op.name
        if name == "func.call":
            callee = str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
            survey.calls.append((current[0], callee, op))
            if len(op.attributes) == 1:
                return ir.WalkResult.ADVANCE
        elif is_kernel(op):
            survey.kernels.append(op)
        for attribute_name, attribute in names_of(op).items():
            text = texts.get(attribute)
            if text is None:
                # Bulk data holds no names, and printing it is slow.
                bulk = isinstance(attribute, _BULK)
                text = texts[attribute] = "" if bulk else str(attribute)
            if ('"' in text or "@" in text) and not (
                name == "func.call" and attribute_name == "callee"
            ):
                mention = Mention(op, attribute_name, attribute, text)
                survey.mentions.append((current[0], mention))
        return ir.WalkResult.ADVANCE

    for block in module.regions[0].blocks:
        for op in block.operations:
            op = op.operation
            survey.top.append(op)
            current[0] = _symbol(op) if op.name == "func.func" else ""
            op.walk(visit, ir.WalkOrder.PRE_ORDER)
    return survey


_BULK = (ir.DenseElementsAttr, ir.DenseI64ArrayAttr, ir.IntegerAttr, ir.FloatAttr, ir.BoolAttr)


def _symbol(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def _edit_function_attributes(top: list[Any], drop: frozenset[str], small: frozenset[str]) -> None:
    """Take `drop` and shardings over meshes of one out of argument and result attributes."""
    for op in top:
        if op.name != "func.func":
            continue
        for name in ("arg_attrs", "res_attrs"):
            if name not in op.attributes:
                continue
            old: Any = ir.ArrayAttr(op.attributes[name])
            new = []
            for entry in old:
                facts = {
                    key: value
                    for key, value in dictionary(entry).items()
                    if key not in drop
                    and not (key == "sdy.sharding" and mesh_names.only_over(str(value), small))
                }
                new.append(facts)
            # An absent list and a list of empty dictionaries say the same.
            if any(new):
                op.attributes[name] = ir.ArrayAttr.get([ir.DictAttr.get(f) for f in new])
            else:
                del op.attributes[name]
