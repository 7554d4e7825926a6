"""Mesh-axis names and the spellings of one device, made canonical for the hash.

Axes are renamed only if every occurrence is a structured attribute of Shardy or of replica groups (H15); any other text
that holds an axis name as a word keeps all names as they are. Shardings over meshes of one device go where the program
has one partition and one replica (H11 iii); meshes with device ids, as callbacks have them, stay.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from coldstart.client import kernel_names
from coldstart.client.jax_internals import ir
from coldstart.client.jax_module import symbols_in
from coldstart.client.mosaic import config_of, dictionary, is_kernel, names_of

if TYPE_CHECKING:
    from coldstart.client.normal_form import Mention, Survey

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_AXIS = re.compile(r'"((?:[^"\\]|\\.)*)"=(\d+)')
_PLAIN = re.compile(r"[A-Za-z_][\w.\-]*")
_STRUCTURED = (
    "#sdy",
    "#stablehlo.replica_group_mesh_axes",
    "#stablehlo.axis_ref",
    "#stablehlo.mesh",
)
_PREFIX = "cs_axis"


class _Keep(Exception):
    """Some occurrence isn't understood: all names stay. Its text says which."""


def _meshes(top: list[Any]) -> dict[str, Any]:
    return {
        str(ir.StringAttr(op.attributes["sym_name"]).value): op
        for op in top
        if op.name == "sdy.mesh"
    }


def meshes_of_one(top: list[Any]) -> frozenset[str]:
    """Symbols of meshes with one device and no device ids."""
    small = set()
    for name, op in _meshes(top).items():
        text = str(op.attributes["mesh"])
        sizes = [int(size) for _, size in _AXIS.findall(text)]
        if "device_ids" not in text and all(size == 1 for size in sizes):
            small.add(name)
    return frozenset(small)


def only_over(text: str, meshes: frozenset[str]) -> bool:
    """True where a sharding's print names meshes, all of them among `meshes`."""
    named = symbols_in(text)
    return bool(named) and "mesh<" not in text and set(named) <= meshes


def drop_one_device(survey: Survey, small: frozenset[str]) -> None:
    """Take shardings over meshes of one off ops, then the meshes that nobody mentions any more."""
    mentioned: set[str] = set()
    for _, mention in survey.mentions:
        if mention.name == "sdy.sharding" and only_over(mention.text, small):
            del mention.op.attributes["sdy.sharding"]
        else:
            mentioned.update(symbols_in(mention.text))
    for name, op in _meshes(survey.top).items():
        if name in small and name not in mentioned:
            op.erase()


def rename_axes(survey: Survey) -> str:
    """Rename mesh axes by first occurrence; returns a note, "" where there is no mesh."""
    names: dict[str, str] = {}
    for op in _meshes(survey.top).values():
        for axis, _ in _AXIS.findall(str(op.attributes["mesh"])):
            names.setdefault(axis, f"{_PREFIX}{len(names)}")
    if not names:
        return ""
    try:
        if not all(_PLAIN.fullmatch(axis) for axis in names):
            raise _Keep("an axis has an unusual name")
        # Names of ours count as well: a text that holds one may mean the axis that somebody else calls so.
        known = "|".join((*map(re.escape, names), rf"{_PREFIX}\d+"))
        word = re.compile(rf"(?<![\w])(?:{known})(?![\w])")
        edits = []
        for _, mention in survey.mentions:
            new = _renamed_mention(mention, names, word)
            if new != mention.attribute:
                edits.append((mention, new))
    except _Keep as reason:
        return f"kept: {reason}"
    for mention, new in edits:
        mention.op.attributes[mention.name] = new
    return f"{len(names)} axes"


def _renamed_mention(mention: Mention, names: dict[str, str], word: re.Pattern[str]) -> Any:
    op, name = mention.op, mention.name
    if name in ("sym_name", "sym_visibility", "callee"):
        return mention.attribute
    if op.name == "sdy.mesh" and name == "stablehlo.mesh":
        return _substitute(mention.text, names)
    if name == "backend_config" and is_kernel(op):
        _check_kernel(op, names, word)
        return mention.attribute
    return _renamed(mention.attribute, mention.text, names, word)


def _renamed(attribute: Any, text: str, names: dict[str, str], word: re.Pattern[str]) -> Any:
    if text.startswith(_STRUCTURED):
        return _substitute(text, names)
    if isinstance(attribute, ir.ArrayAttr):
        items: Any = attribute
        return ir.ArrayAttr.get([_renamed(item, str(item), names, word) for item in items])
    if isinstance(attribute, ir.DictAttr):
        entries = dictionary(attribute)
        for key in entries:
            if word.search(key):
                raise _Keep(f"a key {key!r}")
        return ir.DictAttr.get(
            {key: _renamed(value, str(value), names, word) for key, value in entries.items()}
        )
    if any(word.search(quoted) for quoted in _QUOTED.findall(text)):
        raise _Keep(f"the text {text[:60]}")
    return attribute


def _substitute(text: str, names: dict[str, str]) -> Any:
    """The structured attribute with its axis names replaced; each quoted text in it must be one."""
    if '@"' in text or any(quoted not in names for quoted in _QUOTED.findall(text)):
        raise _Keep(f"a name in {text[:60]}")
    renamed = _QUOTED.sub(lambda m: f'"{names[m[1]]}"', text)
    try:
        attribute = ir.Attribute.parse(renamed)
    except ir.MLIRError as exc:
        raise _Keep(f"{text[:60]} can't be read back") from exc
    if str(attribute) != renamed:
        raise _Keep(f"{text[:60]} reads back as something else")
    return attribute


def _check_kernel(op: Any, names: dict[str, str], word: re.Pattern[str]) -> None:
    try:
        config = config_of(names_of(op))
        call = config["custom_call_config"]
        quoted = kernel_names.strings_of(call["body"])
    except (ValueError, KeyError, TypeError) as exc:
        raise _Keep("a kernel whose configuration isn't understood") from exc
    rest = {key: value for key, value in call.items() if key not in ("body", "debug_locations")}
    texts = [str({**config, "custom_call_config": rest}), *quoted]
    if any(word.search(text) for text in texts):
        raise _Keep("a kernel's text")
