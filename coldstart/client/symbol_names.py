"""Names and order of private functions, made canonical for the hash.

Order: public functions as they stand, then private ones by first mention in a depth-first walk from them, then those
that nobody mentions. Names: a private function is renamed only if each mention of it is the callee of a `func.call`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coldstart.client.jax_internals import ir
from coldstart.client.jax_module import symbols_in

if TYPE_CHECKING:
    from coldstart.client.normal_form import Survey

_PREFIX = "cs_f"
# Compilers and partitioners look for these in function names.
_MEANINGFUL = ("xla", "sdy", "shmap", "mhlo")


def normalise(survey: Survey, *, names: bool, order: bool) -> list[str]:
    """Rename and reorder; returns notes."""
    functions = {_name(op): op for op in survey.top if op.name == "func.func"}
    private = {name for name, op in functions.items() if _is_private(op)}
    mentions: dict[str, list[str]] = {name: [] for name in functions}
    fixed: set[str] = set()  # named by something else than a call
    sites: dict[str, list[Any]] = {name: [] for name in functions}
    positions: list[tuple[str, str]] = []
    for caller, callee, op in survey.calls:
        if callee in functions:
            positions.append((caller, callee))
            sites[callee].append(op)
    for caller, mention in survey.mentions:
        if mention.name == "sym_name":
            continue
        for symbol in symbols_in(mention.text):
            if symbol in functions:
                fixed.add(symbol)
                positions.append((caller, symbol))
    for caller, callee in positions:
        if caller in mentions:
            mentions[caller].append(callee)
    sequence = _first_mention(functions, private, mentions)
    notes = []
    if order and private:
        last = survey.top[-1]
        for name in sequence:
            op = functions[name]
            if op != last:
                op.move_after(last)
            last = op
        notes.append(f"symbol-order ({len(private)} private functions)")
    if names:
        renamed = _rename(sequence, functions, private - fixed, sites)
        if renamed:
            notes.append(f"symbol-names ({renamed} private functions)")
    return notes


def _first_mention(
    functions: dict[str, Any], private: set[str], mentions: dict[str, list[str]]
) -> list[str]:
    sequence = [name for name in functions if name not in private]
    seen = set(sequence)
    stack = [callee for name in reversed(sequence) for callee in reversed(mentions[name])]
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            sequence.append(name)
            stack.extend(reversed(mentions[name]))
    return sequence + [name for name in functions if name not in seen]


def _rename(
    sequence: list[str], functions: dict[str, Any], free: set[str], sites: dict[str, list[Any]]
) -> int:
    if any(name.startswith(_PREFIX) for name in functions):
        return 0  # names of ours are taken
    renamed = 0
    for index, name in enumerate(sequence):
        if name not in free or any(word in name for word in _MEANINGFUL):
            continue
        new = f"{_PREFIX}{index}"
        functions[name].attributes["sym_name"] = ir.StringAttr.get(new)
        for op in sites[name]:
            op.attributes["callee"] = ir.FlatSymbolRefAttr.get(new)
        renamed += 1
    return renamed


def _name(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def _is_private(op: Any) -> bool:
    visibility = op.attributes.get("sym_visibility", None)
    return visibility is not None and ir.StringAttr(visibility).value == "private"
